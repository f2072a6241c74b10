"""What happens in the course of training: scores, ages of rows, their distance from the truth."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from ..pictures import Panel, Series, along, by_epoch, by_step, by_time, draw
from ..results import Outcome, Results
from ..study import FULL, Base, Case, Study, distinct
from ..tables import cell
from ..words import against, costs, listed, title


def _every(base: Base, times: int) -> dict[str, Any]:
    """Compare histories with the truth about so many times, if nobody says how often."""
    return {} if "error_every" in base.given else dict(error_every=max(1, base.config.epochs // times))


def _convergence(base: Base) -> list[Case]:
    often = {} if "eval_every" in base.given else dict(eval_every=1)
    cases = []
    for batch_size in base.batch_sizes()[:: 1 if base.quick else 2]:
        for method, settings in base.methods().items():
            batch = "all" if method == FULL else batch_size
            # Full batch is evaluated after every fourth step: an evaluation costs about as much as one.
            labels, more = {"batch_size": batch, "method": method}, {} if method == FULL else often
            cases.append(base.case(labels, **(settings | more), batch_size=batch_size))
    return distinct(cases)


def _draw_convergence(results: Results) -> dict[str, bytes]:
    sizes, full = [size for size in results.values("batch_size") if size != "all"], results.where(batch_size="all")
    pictures = {}
    for size in sizes:
        groups = results.where(batch_size=size) + full
        # Full batch: one step an epoch, so that epochs would not compare.
        ways = (by_epoch, "epoch", groups[: len(groups) - len(full)]), (by_time, "seconds of training", groups)
        panels = [Panel(x, {title(group): way(group, "test", 100) for group in some}) for way, x, some in ways]
        panels.insert(
            1, Panel("updates of the weights", {title(g): by_step(g, "test", 100) for g in groups}, log=(True, False))
        )
        pictures[f"convergence-{size}.png"] = draw(panels, f"test {results.metric} (%)")
    return pictures


def _tell_convergence(results: Results) -> list[str]:
    told = []
    for size in (size for size in results.values("batch_size") if size != "all"):
        groups = results.where(batch_size=size) + results.where(batch_size="all")
        parts = []
        for group in groups:
            spread = results.spread(group, "best_epoch")
            if spread is not None:
                steps = mean(o.run.epochs[o.row["best_epoch"] - 1]["step"] for o in group if "best_epoch" in o.row)
                parts.append(f"{title(group)} after {spread.mean:.0f} epochs ({steps:.0f} steps)")
        text = against(results, groups[0], groups[1:])
        told.append(f"{size} clusters in a batch: {text}. Validation was best with {listed(parts)}." if parts else "")
    return [*told, costs(results, list(results.groups.values()))]


CONVERGENCE = Study(
    "convergence", "Figures 1, 5 and 6, Appendices D and K", "test score against epochs, steps and seconds", _convergence,
    ("val", "test", "late", "best_epoch", "steps", "train_seconds"), _draw_convergence, _tell_convergence, seeds=(3, 2),
)  # fmt: skip


def _persistence(base: Base) -> list[Case]:
    cases = []
    for batch_size in replace(base, quick=False).batch_sizes():
        for method, settings in base.methods((1, 2, 4), full=False).items():
            cases.append(base.case({"batch_size": batch_size, "method": method}, **settings, batch_size=batch_size))
    return cases


def _draw_persistence(results: Results) -> dict[str, bytes]:
    sizes = results.values("batch_size")
    left = {
        method: along(results, groups, "age", [float(sizes.index(g[0].case.labels["batch_size"])) for g in groups])
        for method in results.values("method")
        for groups in [results.where(method=method)]
    }
    right: dict[str, Series] = {title(group): by_epoch(group, "age") for group in results.where(batch_size=sizes[0])}
    panels = [Panel("clusters in a batch", left, names=[str(size) for size in sizes])]
    panels += [Panel("epoch", right, f"{sizes[0]} clusters in a batch")]
    return {"persistence.png": draw(panels, "mean row age (steps)", zero=True)}


def _tell_persistence(results: Results) -> list[str]:
    told = []
    for size in results.values("batch_size"):
        parts = []
        for group in results.where(batch_size=size):
            age = results.spread(group, "age")
            parts += [] if age is None else [f"{title(group)} {cell('age', age)}"]
        told.append(f"{size} clusters in a batch: rows were {listed(parts)} steps old." if parts else "")
    return ["Ages are means over nodes and over the steps of the second half of the epochs, of the first table.", *told]


PERSISTENCE = Study(
    "persistence", "Figure 2, Appendix G", "mean row age against batch size and F", _persistence, ("age", "epoch_seconds"),
    _draw_persistence, _tell_persistence, epochs=(8, 4), seeds=(2, 1), settings=dict(eval_every=8),
)  # fmt: skip


def _error(base: Base) -> list[Case]:
    cases = []
    for method, settings in base.methods((1, 2, 4) if not base.quick else (1, 4), full=False).items():
        cases.append(base.case({"method": method}, **settings, **_every(base, 15)))
        if "+" in settings["method"] and "refresh_mode" not in base.given and settings["frequency"] == 1:
            labels = {"method": f"{method}, eval mode"}
            cases.append(base.case(labels, **settings, refresh_mode="eval", **_every(base, 15)))
    return cases


def _table(group: Sequence[Outcome], table: int) -> Series:
    """Staleness of one table against epochs."""
    name = f"staleness_{table}"
    for outcome in group:
        for epoch in outcome.measured:
            epoch[name] = epoch["staleness"][table]
    return by_epoch(group, name)


def _draw_error(results: Results) -> dict[str, bytes]:
    groups = [group for group in results.groups.values() if group[0].measured]
    if not groups:
        return {}
    last = Panel("epoch", {title(g): by_epoch(g, "error") for g in groups}, "last layer")
    tables = min(len(groups[0][0].measured[-1]["staleness"]), 3)
    panels = [last]
    panels += [Panel("epoch", {title(g): _table(g, t) for g in groups}, f"history table {t}") for t in range(tables)]
    return {"error.png": draw(panels, "mean distance from exact", shared=False, zero=True)}


def _tell_error(results: Results) -> list[str]:
    told = []
    for group in results.groups.values():
        error, age = results.spread(group, "error"), results.spread(group, "age")
        if error is None or age is None:
            continue
        tables = [results.spread(group, f"staleness_relative_{t}") for t in range(len(group[0].measured[-1]["staleness"]))]
        shares = listed([f"{100 * spread.mean:.0f} %" for spread in tables if spread is not None])
        told.append(
            f"{title(group)}: {cell('error', error)}, tables off by {shares} of their norm, rows {age.mean:.1f} steps old."
        )
    if not told:
        return []
    return [
        "The approximation error is the mean over nodes of ‖h̃ - h‖ of the logits after the last epoch, in eval mode.",
        *told,
        _scores_from_tables(results),
    ]


def _scores_from_tables(results: Results) -> str:
    parts = []
    for group in results.groups.values():
        exact, stale = results.spread(group, "test"), results.spread(group, "stale_test")
        if exact is not None and stale is not None:
            parts.append(f"{title(group)} {cell('stale_test', stale)} from stale tables and {cell('test', exact)} exactly")
    return f"Test scores, each at its own best validation: {'; '.join(parts)}." if parts else ""


ERROR = Study(
    "error", "Figure 3, Appendices G and I", "how far results and tables are from the truth, in the course of training",
    _error,
    ("error", "staleness_relative_0", "staleness_relative_1", "staleness_relative_2", "age", "test", "stale_test"),
    _draw_error, _tell_error, epochs=(45, 15), seeds=(3, 1),
)  # fmt: skip
