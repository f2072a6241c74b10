"""How good the methods are: by model and batch size, and by depth."""

from ..pictures import Panel, Series, along, draw
from ..results import Outcome, Results
from ..study import FULL, GAS, Base, Case, Study, distinct
from ..words import against, costs


def _accuracy(base: Base) -> list[Case]:
    cases = []
    for model in base.models():
        for batch_size in base.batch_sizes():
            for method, settings in base.methods().items():
                batch = "all" if method == FULL else batch_size
                labels = {"model": model["model"], "batch_size": batch, "method": method}
                cases.append(base.case(labels, **model, **settings, batch_size=batch_size))
    return distinct(cases)


def _draw_accuracy(results: Results) -> dict[str, bytes]:
    sizes = [size for size in results.values("batch_size") if size != "all"]
    panels = []
    for model in results.values("model"):
        full = results.where(model=model, method=FULL)
        level = results.spread(full[0], "test") if full else None
        lines: dict[str, Series] = {}
        for method in (m for m in results.values("method") if m != FULL):
            groups = results.where(model=model, method=method)
            place = [float(sizes.index(group[0].case.labels["batch_size"])) for group in groups]
            lines[method] = along(results, groups, "test", place, 100)
        levels = {} if level is None else {FULL: 100 * level.mean}
        panels.append(Panel("clusters in a batch", lines, model.upper(), [str(size) for size in sizes], levels=levels))
    return {"accuracy.png": draw(panels, f"test {results.metric} (%)", shared=False)}


def _against_gas(results: Results, groups: list[list[Outcome]]) -> str:
    gas = [group for group in groups if group[0].case.labels["method"] == GAS]
    return against(results, gas[0], [group for group in groups if group is not gas[0]]) if gas else ""


def _tell_accuracy(results: Results) -> list[str]:
    told = []
    for model in results.values("model"):
        full = results.where(model=model, method=FULL)
        for size in (size for size in results.values("batch_size") if size != "all"):
            text = _against_gas(results, results.where(model=model, batch_size=size) + full)
            told.append(f"{model.upper()}, {size} clusters in a batch: {text}." if text else "")
    first = results.where(model=results.values("model")[0])
    sizes = [group[0].case.labels["batch_size"] for group in first]
    smallest = min((size for size in sizes if size != "all"), default="all")
    return [*told, costs(results, [g for g, size in zip(first, sizes, strict=True) if size in (smallest, "all")])]


ACCURACY = Study(
    "accuracy", "Tables 1 and 2", "GAS, REST, REST-IS and full batch, by model and batch size", _accuracy,
    ("val", "test", "late", "age", "epoch_seconds"), _draw_accuracy, _tell_accuracy,
)  # fmt: skip


def _layers(base: Base) -> list[Case]:
    return [
        base.case({"layers": depth, "method": method}, **settings, num_layers=depth)
        for depth in base.axis("num_layers", (1, 3, 5, 8, 10), (1, 5, 10))
        for method, settings in base.methods().items()
    ]


def _draw_layers(results: Results) -> dict[str, bytes]:
    lines, ages = {}, {}
    for method in results.values("method"):
        groups = results.where(method=method)
        depths = [float(group[0].case.labels["layers"]) for group in groups]
        lines[method] = along(results, groups, "test", depths, 100)
        ages[method] = along(results, groups, "epoch_seconds", depths)
    panels = [Panel("propagation layers", lines), Panel("propagation layers", ages)]
    labels = [f"test {results.metric} (%)", "seconds per epoch of training"]
    return {"layers.png": draw(panels, "", shared=False, ylabels=labels)}


def _tell_layers(results: Results) -> list[str]:
    told = []
    for depth in results.values("layers"):
        text = _against_gas(results, results.where(layers=depth))
        told.append(f"{depth} layer{'' if depth == 1 else 's'}: {text}." if text else "")
    return [*told, costs(results, results.where(layers=results.values("layers")[-1]))]


LAYERS = Study(
    "layers", "Appendix H", "GAS, REST, REST-IS and full batch, by propagation layers of APPNP", _layers,
    ("val", "test", "late", "age", "epoch_seconds"), _draw_layers, _tell_layers, settings=dict(model="appnp", num_layers=5),
)  # fmt: skip
