"""The results of a study: columns of numbers, results.csv, and README.md with command, table and picture."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..utils.files import write_whole
from ..utils.machine import readable
from .runner import diverged, ended, summary
from .study import Columns, Results, Run, Spread, Study, gain, spread

NOTE = """Scores are in percent, ± is the standard deviation over seeds. A gain is in points, over the case that `against`
names, seed by seed; bold: more than the standard deviation of the pairs. docs/lab.md explains the columns."""
SCORES = {"val", "test", "late", "stale_val", "stale_test"}
TABLES = 16  # the number of tables that have columns


def _best(key: str, name: str) -> Callable[[Run], float | None]:
    """``name`` at the first epoch with the highest ``key``."""

    def column(run: Run) -> float | None:
        epochs = [epoch for epoch in run.epochs if key in epoch]
        return max(epochs, key=lambda epoch: epoch[key]).get(name) if epochs else None

    return column


def _late(name: str) -> Callable[[Run], float | None]:
    """The mean of ``name`` over the second half of the epochs."""

    def column(run: Run) -> float | None:
        values = [epoch[name] for epoch in run.epochs[len(run.epochs) // 2 :] if name in epoch]
        return mean(values) if values else None

    return column


def _last(name: str, table: int | None = None) -> Callable[[Run], float | None]:
    """``name`` at the last epoch that has it. table: its value for this table."""

    def column(run: Run) -> float | None:
        value = next((epoch[name] for epoch in reversed(run.epochs) if name in epoch), None)
        if table is None or value is None:
            return value
        return value[table] if table < len(value) else None

    return column


def _reached(run: Run) -> int | None:
    """The index of the first epoch with a validation score of at least the target, None if there is none."""
    return next((at for at, epoch in enumerate(run.epochs) if epoch.get("val", -1) >= run.target), None)


def _steps(run: Run) -> int:
    return sum(epoch["steps"] for epoch in run.epochs)


#: The columns of results.csv, as far as a run has measured them. docs/lab.md explains them.
COLUMNS: Columns = {
    "best_epoch": _best("val", "epoch"), "val": _best("val", "val"), "test": _best("val", "test"), "late": _late("test"),
    "stale_val": _best("stale_val", "stale_val"), "stale_test": _best("stale_val", "stale_test"),
    "age": _late("age"), "frequency": _late("frequency"), "error": _last("error"),
    **{f"{name}_{t}": _last(name, t) for name in ("staleness", "staleness_relative") for t in range(TABLES)},
    "steps": _steps, "loss": _last("loss"),
    "train_seconds": lambda run: run.seconds[-1],
    "epoch_seconds": lambda run: median(b - a for a, b in zip([0.0, *run.seconds], run.seconds, strict=False)),
    "step_seconds": lambda run: run.seconds[-1] / max(1, _steps(run)),
    "evaluation_seconds": lambda run: sum(epoch["time"]["evaluation"] for epoch in run.epochs),
    # In a process that did other runs before, the peak may be that of another run.
    "memory": lambda run: max(epoch["memory"] for epoch in run.epochs) if run.apart else None,
    "target_epoch": lambda run: None if (at := _reached(run)) is None else run.epochs[at]["epoch"],
    "target_seconds": lambda run: None if (at := _reached(run)) is None else run.seconds[at],
}  # fmt: skip


def columns(*names: str) -> Columns:
    """Some of :data:`COLUMNS`."""
    return {name: COLUMNS[name] for name in names}


def read(study: Study, runs: Sequence[Run]) -> Results:
    """The runs that have ended, with their figures."""
    done = [run for run in runs if ended(run, study)]
    for run in done:
        file = run.folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        run.epochs = [{name: value for name, value in json.loads(line).items() if value is not None} for line in lines]
    measured = [run for run in done if run.epochs and not diverged(run)]
    target = min((best for run in measured if (best := COLUMNS["val"](run)) is not None), default=float("inf"))
    for run in measured:
        run.target = target
        row = {name: column(run) for name, column in (COLUMNS | study.columns | study.also).items()}
        run.row = {name: value for name, value in row.items() if value is not None}
    return Results(study, done, len(runs))


def cell(name: str, value: Spread | None) -> str:
    """Mean ± standard deviation as text, with the same number of decimals. Scores are in percent, memory has a unit."""
    if value is None:
        return ""
    if name == "memory":
        return readable(value.mean)
    scale = 100 if name in SCORES else 1
    style = ".2f" if name in SCORES else ".0f" if abs(value.mean) >= 100 else ".3g"
    shown = f"{scale * value.mean:{style}}"
    if value.std is None:
        return shown
    spread_style = ".1g" if "e" in shown else f".{len(shown.partition('.')[2])}f"
    return f"{shown} ± {scale * value.std:{spread_style}}"


def gain_cell(value: Spread | None) -> str:
    """A gain in points, bold if it is larger than the standard deviation of the pairs."""
    if value is None:
        return ""
    shown = f"{100 * value.mean:+.2f}" + ("" if value.std is None else f" ± {100 * value.std:.2f}")
    return f"**{shown}**" if value.beyond else shown


def table(results: Results) -> list[list[str]]:
    """A heading and a line for each case. Columns without values are left out."""
    names = [name for name in results.study.columns if any(name in run.row for run in results.runs)]
    scores = [name for name in ("test", "late") if name in names]
    compared = bool(scores) and any(results.reference(group) for group in results.groups)
    gains = ["against", *(f"{name} gain" for name in scores)] if compared else []
    lines = [[*results.study.axes, "seeds", *names, *gains]]
    for group in results.groups:
        labels, failed = group[0].labels, sum(diverged(run) for run in group)
        line = [f"{v:g}" if isinstance(v, float) else str(v) for v in labels.values()]
        line += [f"{len(group)}" + (f" ({failed} diverged)" if failed else ""), *(cell(n, spread(group, n)) for n in names)]
        if compared:
            reference = results.reference(group)
            line += [reference[0].method if reference else ""]
            line += [gain_cell(gain(group, reference, name)) for name in scores]
        lines.append(line)
    return lines


def markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def rows(results: Results) -> list[dict[str, Any]]:
    """A row for each run. Scores are from 0 to 1, times in seconds, memory in bytes."""
    return [
        dict(run=run.name, **run.labels, seed=run.config.seed, diverged=int(diverged(run)), **run.row)
        for run in results.runs
    ]


def write(results: Results, out: Path, command: str) -> str:
    """Write README.md, results.csv and the picture for all runs that have ended. Returns the table."""
    study, lines = results.study, rows(results)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(n for line in lines for n in line)), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    write_whole(out / "results.csv", text.getvalue().encode())
    shown, picture = markdown(table(results)) if lines else "", f"{study.name}.png"
    machines = ", ".join(sorted({str(summary(run)["machine"]) for run in results.runs if summary(run)}))
    count = f"{len(results.runs)} of {results.planned} runs have ended" + (f"; machine: {machines}." if machines else ".")
    page = [f"# {study.name}", f"    {command}", f"{study.about[0].upper()}{study.about[1:]}.", count, shown, NOTE]
    if any(run.row for run in results.runs):
        write_whole(out / picture, study.picture(results))
        page += [f"![{study.name}]({picture})"]
    write_whole(out / "README.md", ("\n\n".join(part for part in page if part) + "\n").encode())
    return shown
