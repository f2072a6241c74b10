"""Results as files: CSV of runs and of epochs, a table for people."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..utils.machine import readable
from ..utils.text import duration
from .files import replace_file
from .results import Outcome, Results, Spread

SCORES = {"val", "test", "late", "stale_val", "stale_test"}
SECONDS = {"train_seconds", "epoch_seconds", "step_seconds", "evaluation_seconds", "target_seconds"}
HEADS = {
    "val": "best validation", "test": "test at it", "late": "test late in training",
    "stale_val": "best validation from stale tables", "stale_test": "test at it, from stale tables",
    "age": "mean row age (steps)", "error": "approximation error",
    "frequency": "refreshes per step", "train_seconds": "training", "epoch_seconds": "an epoch",
    "step_seconds": "a step", "memory": "peak memory", "best_epoch": "best epoch", "steps": "steps",
    "target_seconds": "training to the target", "target_epoch": "epochs to the target",
}  # fmt: skip


def head(name: str) -> str:
    """A column's name for people."""
    if name in HEADS:
        return HEADS[name]
    what, _, table = name.rpartition("_")
    titles = {"staleness": "staleness of table", "staleness_relative": "relative staleness of table"}
    return f"{titles[what]} {table}" if what in titles else name.replace("_", " ")


def number(name: str, value: float) -> str:
    if name in SCORES:
        return f"{100 * value:.2f}"
    if name in SECONDS:
        return duration(value)
    if name == "memory":
        return readable(value)
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def cell(name: str, spread: Spread | None) -> str:
    """Mean ± standard deviation, where there is one, to as many decimals as the mean."""
    if spread is None:
        return ""
    shown = number(name, spread.mean)
    if spread.std is None or name in SECONDS | {"memory"}:
        return shown
    scale, decimals = 100 if name in SCORES else 1, len(shown.partition(".")[2])
    return f"{shown} ± {number(name, spread.std) if 'e' in shown else f'{scale * spread.std:.{decimals}f}'}"


def markdown(results: Results, names: Sequence[str]) -> str:
    """A line for each case, with those columns that anybody has a figure for."""
    rows = results.table(names)
    names = [name for name in names if any(spreads[name] is not None for _, spreads, _ in rows)]
    labels = list(dict.fromkeys(label for found, _, _ in rows for label in found))
    lines = [
        "| " + " | ".join([label.replace("_", " ") for label in labels] + ["seeds"] + [head(name) for name in names]) + " |",
        "|" + "---|" * (len(labels) + 1 + len(names)),
    ]
    for (found, spreads, diverged), group in zip(rows, results.groups.values(), strict=True):
        seeds = str(len(group)) + (f" ({diverged} diverged)" if diverged else "")
        cells = [_text(found.get(label, "")) for label in labels] + [seeds] + [cell(name, spreads[name]) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_runs(path: Path, outcomes: Sequence[Outcome]) -> None:
    """results.csv: a line for each run. Scores are shares of one, times seconds, memory bytes."""
    labels = list(dict.fromkeys(label for outcome in outcomes for label in outcome.case.labels))
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.row))
    rows = [
        {"run": f"{o.case.name}-s{o.seed}"} | dict(o.case.labels) | {"seed": o.seed, "diverged": int(o.diverged)} | o.row
        for o in outcomes
    ]
    _write(path, ["run", *labels, "seed", "diverged", *names], rows)


def write_epochs(path: Path, outcomes: Sequence[Outcome]) -> None:
    """curves.csv: a line for each epoch of each run; lists, one value for each table, are columns of their own."""
    rows = []
    for outcome in outcomes:
        for epoch, trained in zip(outcome.run.epochs, outcome.trained, strict=True):
            row: dict[str, Any] = {"run": f"{outcome.case.name}-s{outcome.seed}", "trained_seconds": trained}
            for name, value in epoch.items():
                if isinstance(value, list):
                    row |= {f"{name}_{table}": one for table, one in enumerate(value)}
                elif isinstance(value, dict):
                    row |= {f"{name}_{part}": one for part, one in value.items()}
                else:
                    row[name] = value
            rows.append(row)
    _write(path, list(dict.fromkeys(name for row in rows for name in row)), rows)


def _write(path: Path, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())
