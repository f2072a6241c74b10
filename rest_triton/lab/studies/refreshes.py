"""How much is refreshed, and what else could be done about staleness: F, the refresh batch, the learning rate."""

from dataclasses import fields
from typing import Any

from ...config import Config
from ..pictures import Panel, along, by_epoch, by_time, draw
from ..results import Results
from ..study import GAS, Base, Case, Study
from ..words import against, costs, title


def _frequency(base: Base) -> list[Case]:
    methods: dict[str, dict[str, Any]] = {GAS: dict(method="gas")}
    for f in base.axis("frequency", (1, 2, 3, 4, 5), (1, 3, 5)):
        methods[f"REST F={f}"] = dict(method="gas+rest", frequency=f)
    for f in base.axis("frequency", (1, 3), (1,)):
        methods[f"REST F={f}, oldest first"] = dict(method="gas+rest", frequency=f, refresh_order="oldest")
    if "target_age" in {f.name for f in fields(Config)} and "frequency" not in base.given:
        batches = -(-base.config.num_parts // base.config.batch_size)
        # Half of the age that rows have without a refresh, about half an epoch, unless somebody names another.
        target: dict[str, Any] = {} if base.given & {"target_age", "target_drift"} else dict(target_age=batches / 4)
        auto: dict[str, Any] = dict(method="gas+rest", frequency="auto", **target)
        methods["REST F=auto"] = auto
        methods["REST F=auto, oldest first"] = auto | dict(refresh_order="oldest")
    return [base.case({"method": method}, **settings) for method, settings in methods.items()]


def _draw_frequency(results: Results) -> dict[str, bytes]:
    groups = list(results.groups.values())
    rows = {title(group): along(results, [group], "test", _costs(results, group), 100) for group in groups}
    ages = {title(group): along(results, [group], "age", _costs(results, group)) for group in groups}
    panels = [Panel("seconds per epoch of training", rows), Panel("seconds per epoch of training", ages)]
    curves = [
        Panel(x, {title(group): way(group, "val", 100) for group in groups})
        for way, x in ((by_epoch, "epoch"), (by_time, "seconds of training"))
    ]
    return {
        "frequency.png": draw(panels, "", shared=False, ylabels=[f"test {results.metric} (%)", "mean row age (steps)"]),
        "curves.png": draw(curves, f"validation {results.metric} (%)"),
    }


def _costs(results: Results, group: Any) -> list[float]:
    spread = results.spread(group, "epoch_seconds")
    return [float("nan") if spread is None else spread.mean]


def _tell(results: Results) -> list[str]:
    groups = list(results.groups.values())
    first = [group for group in groups if title(group) == GAS] or groups[:1]
    text = against(results, first[0], [group for group in groups if group is not first[0]])
    return [f"Test: {text}." if text else "", costs(results, groups)]


FREQUENCY = Study(
    "frequency", "Appendix C", "REST with F refreshes per step, in any order or the oldest rows first: scores, time, memory",
    _frequency, ("val", "test", "late", "age", "frequency", "epoch_seconds", "memory"), _draw_frequency, _tell, apart=True,
    seeds=(3, 1),
)  # fmt: skip


def _refresh_batch(base: Base) -> list[Case]:
    sizes = base.axis("refresh_batch", ("same", "half", "full"))
    cases = []
    for model in base.models() if not base.quick or "model" in base.given else [{}]:
        label = {"model": model["model"]} if model else {}
        cases.append(base.case(label | {"method": GAS}, **model, method="gas"))
        for size in sizes:
            settings: dict[str, Any] = dict(method="gas+rest", frequency=1, refresh_batch=size)
            cases.append(base.case(label | {"method": f"REST, {size}"}, **model, **settings))
    return cases


def _draw_refresh_batch(results: Results) -> dict[str, bytes]:
    names = results.values("method")
    models = results.values("model") or [None]
    panels = []
    for model in models:
        groups = results.where(model=model) if model else list(results.groups.values())
        place = [float(names.index(title(group))) for group in groups]
        panels.append(
            Panel(
                "refresh before each step", {"": along(results, groups, "test", place, 100)}, model.upper() if model else "",
                [name.removeprefix("REST, ") if name != GAS else "none (GAS)" for name in names],
            )
        )  # fmt: skip
    return {"refresh-batch.png": draw(panels, f"test {results.metric} (%)", shared=False)}


def _tell_refresh_batch(results: Results) -> list[str]:
    told = []
    for model in results.values("model") or [None]:
        groups = results.where(model=model) if model else list(results.groups.values())
        gas = [group for group in groups if title(group) == GAS]
        text = against(results, gas[0], [group for group in groups if group is not gas[0]]) if gas else ""
        told += [f"{f'{model.upper()}, test' if model else 'Test'}: {text}." if text else "", costs(results, groups)]
    return told


REFRESH_BATCH = Study(
    "refresh-batch", "Appendix O", "one refresh per step of as many clusters as a batch has, of half of them, or of all",
    _refresh_batch, ("val", "test", "late", "age", "epoch_seconds", "memory"), _draw_refresh_batch,
    _tell_refresh_batch, apart=True, seeds=(3, 1),
)  # fmt: skip


def _learning_rate(base: Base) -> list[Case]:
    rate = base.config.lr
    cases = [base.case({"method": GAS, "lr": rate}, method="gas")]
    for f in base.axis("frequency", (2, 5)):
        cases.append(base.case({"method": f"REST F={f}", "lr": rate}, method="gas+rest", frequency=f))
        cases.append(base.case({"method": f"GAS, rate / {f}", "lr": rate / f}, method="gas", lr=rate / f))
    return cases


def _draw_learning_rate(results: Results) -> dict[str, bytes]:
    groups = list(results.groups.values())
    panels = [
        Panel(x, {title(group): way(group, "test", 100) for group in groups})
        for way, x in ((by_epoch, "epoch"), (by_time, "seconds of training"))
    ]
    return {"learning-rate.png": draw(panels, f"test {results.metric} (%)")}


def _tell_learning_rate(results: Results) -> list[str]:
    told = _tell(results)
    for group in results.groups.values():
        if title(group).startswith("REST F="):
            f = title(group).removeprefix("REST F=")
            slower = results.where(method=f"GAS, rate / {f}")
            text = against(results, group, slower) if slower else ""
            told.append(f"F = {f} against a learning rate divided by it: {text}." if text else "")
    return told


LEARNING_RATE = Study(
    "learning-rate", "Appendix L", "REST with F against GAS with a learning rate divided by F", _learning_rate,
    ("val", "test", "late", "best_epoch", "age", "train_seconds"), _draw_learning_rate, _tell_learning_rate, seeds=(3, 2),
)  # fmt: skip
