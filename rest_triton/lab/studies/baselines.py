"""The paper's first table for a data set: methods without tables, full batch, GAS, LMC and GraphFM with their REST forms.

All have the base's model, number of epochs and, nearly, updates per epoch: a batch has as many training nodes, and a
subgraph as many nodes, as a batch of clusters has on average.
"""

from typing import Any

from ...methods.options import LAYERWISE, SAINTS
from ..pictures import along, draw
from ..results import columns
from ..study import FULL, FULL_EPOCHS, Base, Cases, Labels, Study

HISTORIES = ("gas", "lmc", "graphfm")


def _sizes(base: Base) -> dict[str, dict[str, Any]]:
    """The size of a batch of each method without tables.

    FastGCN, LADIES and GraphSAINT are there in two forms: unbiased as in their papers, and as they are often used.
    """
    c = base.config
    share = c.batch_size / c.num_parts
    nodes = dict(batch_nodes=max(1, -(-base.training * c.batch_size // c.num_parts)))
    drawn = {"saint-node": 1, "saint-edge": 2, "saint-walk": 1 + c.walk_length}
    found: dict[str, dict[str, Any]] = {"cluster": {}, "sage": nodes, "sgc": nodes}
    for name in LAYERWISE:
        found[name] = nodes | base.default(layer_nodes=max(1, round(base.nodes * share)))
        found[f"{name}, rows normalised"] = found[name] | dict(row_normalise=True)
    for name in SAINTS:
        found[name] = base.default(subgraph_nodes=max(1, round(base.nodes * share / drawn[name])))
        found[f"{name}, no weights"] = found[name] | dict(coverage=0.0)
    return found


def _cases(base: Base) -> Cases:
    cases, sizes = Cases(), _sizes(base)
    for model, own in base.models().items():
        times = {name: FULL_EPOCHS * getattr(base.config, name) for name in ("epochs", "eval_every", "checkpoint_every")}
        methods: dict[str, dict[str, Any]] = {FULL: dict(method="full") | times}
        methods |= {name: dict(method=name.partition(",")[0]) | own for name, own in sizes.items()}
        for name in HISTORIES:
            methods |= {f"{name}{form}": dict(method=f"{name}{form}") for form in ("", "+rest", "+rest-is")}
        for name, settings in methods.items():
            wanted = "method" not in base.given or settings["method"] == base.config.method
            if wanted and (name != "sgc" or model == "gcn"):
                cases[model, name] = own | settings
    return cases


def _reference(labels: Labels) -> Labels:
    """REST's forms are compared with their method, all others with full batch."""
    method = labels["method"].partition("+")[0]
    return {**labels, "method": FULL if method == labels["method"] else method}


BASELINES = Study(
    "baselines", "methods without tables, full batch, GAS, LMC and GraphFM with REST, by model (Table 1)",
    ("model", "method"), _cases, columns("val", "test", "late", "epoch_seconds", "steps", "memory"),
    lambda results: draw([along(results, "method", "test", model=model) for model in results.values("model")]),
    reference=_reference, apart=True, counts_training=True,
)  # fmt: skip
