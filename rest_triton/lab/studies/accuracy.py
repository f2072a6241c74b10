"""Scores of the methods: by model and batch size, by depth, and with one setting changed at a time."""

from typing import Any

from ..pictures import along, draw
from ..results import columns
from ..study import FULL, Base, Cases, Labels, Study, gas_or_full


def _accuracy(base: Base) -> Cases:
    sized = base.sized(base.batch_sizes())
    return {(model, *key): own | settings for model, own in base.models().items() for key, settings in sized.items()}


ACCURACY = Study(
    "accuracy", "GAS, REST, REST-IS and full batch by model and batch size (Tables 1, 2)", ("model", "batch_size", "method"),
    _accuracy, columns("val", "test", "late", "age", "epoch_seconds"),
    lambda results: draw([along(results, "batch_size", "test", model=model) for model in results.values("model")]),
)  # fmt: skip


def _depths(base: Base) -> Cases:
    return {
        (depth, method): settings | dict(num_layers=depth)
        for depth in base.axis("num_layers", (1, 3, 5, 8, 10), (1, 5, 10))
        for method, settings in base.methods().items()
    }


LAYERS = Study(
    "layers", "GAS, REST, REST-IS and full batch by propagation layers of APPNP (Appendix H)", ("layers", "method"), _depths,
    columns("val", "test", "late", "age", "epoch_seconds"),
    lambda results: draw([along(results, "layers", name) for name in ("test", "epoch_seconds")]),
    settings=dict(model="appnp", num_layers=5),
)  # fmt: skip


def _regimes(base: Base) -> Cases:
    c, regimes = base.config, dict[str, dict[str, Any]](base={})
    values: dict[str, tuple[list[Any], list[Any]]] = {  # in full, and quick
        "batch_size": ([1, min(4 * c.batch_size, c.num_parts // 2)], [1]),
        "num_parts": ([max(2, c.num_parts // 4), 4 * c.num_parts], [4 * c.num_parts]),
        "num_layers": ([2, 5, 8], [6]),
        "lr": ([c.lr / 10, 5 * c.lr], [5 * c.lr]),
        "dropout": ([0.0], [0.0]),
        "batch_norm": ([not c.batch_norm], [not c.batch_norm]),
    }
    for name, (full, quick) in values.items():
        for value in quick if base.quick else full:
            if value == getattr(c, name) or (name == "batch_size" and value < 1):
                continue
            shown = ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"
            clusters = dict(batch_size=max(1, round(value * c.batch_size / c.num_parts))) if name == "num_parts" else {}
            regimes[f"{name} {shown}"] = {name: value} | clusters
    return {
        (regime, method): settings | changes | base.default(error_every=c.eval_every)
        for regime, changes in regimes.items()
        for method, settings in base.methods((1, 2, 4)).items()
        if not (method == FULL and _of_clusters(regime))
    }


def _of_clusters(regime: str) -> bool:
    """Whether full batch is the same in this regime as in the base."""
    return regime.startswith(("batch_size", "num_parts"))


def _reference(labels: Labels) -> Labels:
    reference = gas_or_full(labels)
    return {**reference, "regime": "base"} if reference["method"] == FULL and _of_clusters(labels["regime"]) else reference


REGIMES = Study(
    "regimes", "one setting changed at a time: scores by exact inference and from stale tables", ("regime", "method"),
    _regimes, columns("test", "late", "stale_test", "age", "error", "epoch_seconds"),
    lambda results: draw([along(results, "regime", name, joined=False) for name in ("test", "late", "stale_test")]),
    seeds=(3, 1), epochs=(40, 12), reference=_reference,
)  # fmt: skip
