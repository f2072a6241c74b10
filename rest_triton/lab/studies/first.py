"""The first embedding of a batch's halo: from a table, or computed anew (``--first``).

GCN of two and three layers by GAS, REST and REST-IS: scores, seconds, memory, and errors of tables and of gradients. With
two layers and an exact first one there is no table, so nothing to refresh.
"""

from typing import Any

from ..pictures import along, draw
from ..results import columns
from ..study import FULL, GAS, Base, Cases, Labels, Study, gas_or_full
from .methods import BESIDE, LEAVES, SHOWN, column, measure


def _cases(base: Base) -> Cases:
    c, cases = base.config, Cases()
    kept: dict[str, Any] = dict(checkpoint_every=c.epochs, save_history=True)
    for layers in base.axis("num_layers", (2, 3)):
        for method, settings in base.methods().items():
            for first in ("cached", "exact"):
                if first == "cached" or (method != FULL and (layers > 2 or method == GAS)):
                    cases[layers, method, first] = kept | settings | dict(num_layers=layers, first=first)
    return cases


def _reference(labels: Labels) -> Labels:
    """An exact first layer is compared with the cached one, and that as in other studies."""
    return {**labels, "first": "cached"} if labels["first"] == "exact" else gas_or_full(labels)


FIRST = Study(
    "first", "the first layer of neighbours from a table or computed anew: scores, costs, errors of gradients",
    ("layers", "method", "first"), _cases,
    columns("val", "test", "late", "epoch_seconds", "memory", "age") | {name: column(name) for name in SHOWN},
    lambda results: draw([along(results, "layers", name, first=first) for name in ("test", "bias")
                          for first in results.values("first")]),
    epochs=(50, 20), seeds=(5, 3), reference=_reference, apart=True, after=measure, leaves=LEAVES,
    also={name: column(name) for name in BESIDE},
)  # fmt: skip
