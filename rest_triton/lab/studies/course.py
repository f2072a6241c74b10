"""Metrics in the course of training: scores, ages of rows, distances of results and rows from exact ones."""

from dataclasses import replace

from ..pictures import along, curves, draw
from ..results import columns
from ..study import FULL, Base, Cases, Results, Study


def _scores(results: Results) -> bytes:
    panels, full = [], results.where(method=FULL)
    for size in [size for size in results.values("batch_size") if size != "all"] or ["all"]:
        groups, title = [group for group in results.where(batch_size=size) if group not in full], f"batch size {size}"
        panels.append(curves(groups or full, "epoch", "test", title))  # without full batch, which has one step per epoch
        panels.append(curves(groups + full, "seconds", "test", title))
    return draw(panels[:4])


CONVERGENCE = Study(
    "convergence", "test score against epochs and seconds (Figures 1, 5, 6; Appendices D, K)", ("batch_size", "method"),
    lambda base: base.sized(base.batch_sizes()[:: 1 if base.quick else 2], eval_every=1),
    columns("val", "test", "late", "best_epoch", "steps", "train_seconds"), _scores, seeds=(3, 2),
)  # fmt: skip


def _ages(results: Results) -> bytes:
    smallest = results.values("batch_size")[0]
    course = curves(results.where(batch_size=smallest), "epoch", "age", f"batch size {smallest}")
    return draw([along(results, "batch_size", "age"), course])


PERSISTENCE = Study(
    "persistence", "mean row age by batch size and F (Figure 2; Appendix G)", ("batch_size", "method"),
    lambda base: base.sized(replace(base, quick=False).batch_sizes(), (1, 2, 4), full=False),
    columns("age", "epoch_seconds"), _ages, epochs=(8, 4), seeds=(2, 1), settings=dict(eval_every=8),
)  # fmt: skip


def _error(base: Base) -> Cases:
    measured, cases = base.default(error_every=max(1, base.config.epochs // 15)), Cases()
    for method, settings in base.methods((1, 4) if base.quick else (1, 2, 4), full=False).items():
        cases[method,] = settings | measured
        if settings.get("frequency") == 1 and "refresh_mode" not in base.given:
            cases[f"{method}, eval mode",] = settings | measured | dict(refresh_mode="eval")
    return cases


def _distances(results: Results) -> bytes:
    tables = [f"staleness_{t}" for t in range(3) if any(f"staleness_{t}" in run.row for run in results.runs)]
    return draw([curves(results.groups, "epoch", name) for name in ("error", *tables)])


ERROR = Study(
    "error", "distance of results and of each table from exact ones (Figure 3; Appendices G, I)", ("method",), _error,
    columns("error", "staleness_relative_0", "staleness_relative_1", "staleness_relative_2", "age", "test", "stale_test"),
    _distances, epochs=(45, 15), seeds=(3, 1),
)  # fmt: skip
