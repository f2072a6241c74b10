"""What methods cost: memory, and time until they are good."""

import math
from statistics import mean
from typing import Any

from ...utils.machine import readable
from ...utils.text import duration
from ..pictures import Panel, Series, along, by_time, draw
from ..results import Outcome, Results
from ..study import FULL, GAS, Base, Case, Study, distinct
from ..words import against, costs, listed, title


def _accumulation(base: Base) -> list[Case]:
    methods: dict[str, dict[str, Any]] = {GAS: dict(method="gas")}
    for f in base.axis("frequency", (1, 3), (1,)):
        methods[f"REST F={f}"] = dict(method="gas+rest", frequency=f)
        # As many forwards per update.
        methods[f"GAS, {f + 1} batches accumulated"] = dict(method="gas", accumulate=f + 1)
    return [base.case({"method": method}, **settings) for method, settings in methods.items()]


def _bars(results: Results, groups: list[list[Outcome]], names: list[str]) -> list[Panel]:
    """Memory and seconds by method; each method is a place on the axis."""
    place = [float(i) for i in range(len(groups))]
    short = [_short(title(group)) for group in groups]
    scales = {"memory": 1 / 2**20}
    return [
        Panel("", {"": along(results, groups, name, place, scales.get(name, 1.0))}, names=short) for name in names
    ]  # fmt: skip


def _short(name: str) -> str:
    return (
        name.replace(" batches accumulated", " accum.")
        .replace("REST ", "REST\n")
        .replace("GAS, ", "GAS\n")
        .replace(" batch", "\nbatch")
    )


def _draw_accumulation(results: Results) -> dict[str, bytes]:
    panels = _bars(results, list(results.groups.values()), ["memory", "epoch_seconds", "step_seconds"])
    labels = ["peak memory (MiB)", "seconds per epoch of training", "seconds per update of the weights"]
    return {"accumulation.png": draw(panels, "", shared=False, ylabels=labels, zero=True)}


def _memory(results: Results) -> str:
    parts = []
    for group in results.groups.values():
        memory, epoch, step = (results.spread(group, name) for name in ("memory", "epoch_seconds", "step_seconds"))
        if memory is not None and epoch is not None and step is not None:
            parts.append(f"{title(group)} {readable(memory.mean)}, {duration(epoch.mean)} and {duration(step.mean)}")
    return f"Peak memory of the process, an epoch and an update: {'; '.join(parts)}." if parts else ""


def _tell_accumulation(results: Results) -> list[str]:
    gas, others = results.where(method=GAS), [g for g in results.groups.values() if title(g) != GAS]
    text = against(results, gas[0], others) if gas else ""
    return [_memory(results), f"Test: {text}." if text else ""]


ACCUMULATION = Study(
    "accumulation", "Appendix N", "REST against gradients that are accumulated over as many forwards: memory, time",
    _accumulation, ("test", "age", "epoch_seconds", "step_seconds", "memory"), _draw_accumulation, _tell_accumulation,
    apart=True, seeds=(2, 1), epochs=(20, 5),
)  # fmt: skip


def _efficiency(base: Base) -> list[Case]:
    often = {} if "eval_every" in base.given else dict(eval_every=1)
    cases = []
    for batch_size in base.batch_sizes():
        for method, settings in base.methods().items():
            labels = {"batch_size": "all" if method == FULL else batch_size, "method": method}
            more = often if method != FULL else {}
            cases.append(base.case(labels, **(settings | more), batch_size=batch_size))
    return distinct(cases)


def target(results: Results) -> float:
    """The lowest of all runs' best validation scores: every run reaches it."""
    return min((o.row["val"] for o in results.outcomes if "val" in o.row), default=math.nan)


def reached(outcome: Outcome, wanted: float) -> tuple[int, float] | None:
    """(epoch, seconds of training) at which a run was first evaluated to be as good."""
    for epoch, trained in zip(outcome.run.epochs, outcome.trained, strict=True):
        if epoch.get("val", -math.inf) >= wanted:
            return epoch["epoch"], trained
    return None


def _reach(results: Results) -> None:
    """What the target is depends on all runs: it is entered into their rows when all are known."""
    wanted = target(results)
    for outcome in results.outcomes:
        found = None if outcome.diverged else reached(outcome, wanted)
        if found is not None:
            outcome.row["target_epoch"], outcome.row["target_seconds"] = found


def _draw_efficiency(results: Results) -> dict[str, bytes]:
    sizes = [size for size in results.values("batch_size") if size != "all"]
    full, panels = results.where(method=FULL), []
    for name, scale in (("memory", 1 / 2**20), ("target_seconds", 1.0)):
        level = results.spread(full[0], name) if full else None
        lines: dict[str, Series] = {}
        for method in (m for m in results.values("method") if m != FULL):
            groups = results.where(method=method)
            place = [float(sizes.index(g[0].case.labels["batch_size"])) for g in groups]
            lines[method] = along(results, groups, name, place, scale)
        levels = {} if level is None else {FULL: scale * level.mean}
        panels.append(Panel("clusters in a batch", lines, names=[str(size) for size in sizes], levels=levels))
    labels = ["peak memory (MiB)", f"seconds to {100 * target(results):.1f} % validation"]
    pictures = {"efficiency.png": draw(panels, "", shared=False, ylabels=labels, zero=True)}
    if sizes:
        groups = results.where(batch_size=sizes[0]) + full
        curves = [
            Panel(
                "seconds of training",
                {title(g): by_time(g, "val", 100) for g in groups},
                levels={"target": 100 * target(results)},
            )
        ]
        pictures["curves.png"] = draw(curves, f"validation {results.metric} (%)")
    return pictures


def _tell_efficiency(results: Results) -> list[str]:
    parts = []
    for group in results.groups.values():
        seconds = [o.row["target_seconds"] for o in group if "target_seconds" in o.row]
        memory, size = results.spread(group, "memory"), group[0].case.labels["batch_size"]
        if seconds and memory is not None:
            where = "" if size == "all" else f" ({size} clusters)"
            parts.append(f"{title(group)}{where} {duration(mean(seconds))} and {readable(memory.mean)}")
    wanted = f"{100 * target(results):.2f} % validation, the lowest of all runs' best"
    told = [f"Training until {wanted}, and peak memory of the process: {listed(parts)}." if parts else ""]
    return [*told, costs(results, list(results.groups.values()))]


EFFICIENCY = Study(
    "efficiency", "Appendix B", "peak memory, and training time to a validation score that all reach", _efficiency,
    ("val", "test", "late", "target_epoch", "target_seconds", "epoch_seconds", "memory"), _draw_efficiency, _tell_efficiency,
    apart=True, seeds=(3, 1), complete=_reach,
)  # fmt: skip
