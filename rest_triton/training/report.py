"""The report of a run: results, plots and settings in one HTML file.

The folder of a run holds ``config.yaml`` (its settings), ``metrics.jsonl`` (a JSON object per epoch) and, once the run has
ended, ``summary.json``. The report is ``report.html``. Its plots are also written beside it, as PNG files.
"""

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import yaml

from ..utils.errors import UserError
from ..utils.files import write_whole
from ..utils.machine import readable
from ..utils.text import duration, percent
from . import plots
from .logger import read_metrics

SPLITS = ("train", "val", "test")
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: 0.1rem 1.5rem 0.1rem 0; }
th { font-weight: normal; color: #666; } td { overflow-wrap: anywhere; } img { max-width: 100%; }
"""


@dataclass(frozen=True)
class Run:
    """The files of a run: settings, epochs in order, and the summary, which is empty until the run has ended."""

    folder: Path
    settings: dict[str, Any]
    epochs: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [epoch for epoch in self.epochs if "val" in epoch]

    @property
    def best(self) -> tuple[int, float, float] | None:
        """(epoch, validation, test) of the first epoch with the best validation; None if no epoch was evaluated."""
        found = tuple(self.summary.get(name) for name in ("best_epoch", "best_val", "best_test"))
        if None not in found:
            return found  # type: ignore[return-value]
        if not self.evaluated:
            return None
        top = max(self.evaluated, key=lambda epoch: epoch["val"])
        return top["epoch"], top["val"], top.get("test", float("nan"))

    @property
    def seconds(self) -> float:
        return self.summary.get("seconds", self.epochs[-1]["seconds"] if self.epochs else 0.0)

    @property
    def metric(self) -> str:
        return str(self.summary.get("metric", "accuracy"))

    @property
    def state(self) -> str:
        if self.summary.get("finished"):
            return "finished"
        return f"not finished, {len(self.epochs)} epochs done"


def read_run(folder: Path) -> Run:
    """Read the run in ``folder``. Of an epoch that was trained again after a resume, the last record counts."""
    config, metrics, summary = folder / "config.yaml", folder / "metrics.jsonl", folder / "summary.json"
    if not config.exists() and not metrics.exists():
        raise UserError(f"{folder} has neither config.yaml nor metrics.jsonl; name the folder of a run")
    epochs: dict[int, dict[str, Any]] = {}
    for record in read_metrics(metrics):
        epochs[record["epoch"]] = {name: value for name, value in record.items() if value is not None}
    return Run(
        folder,
        yaml.safe_load(config.read_text()) or {} if config.exists() else {},
        [epochs[number] for number in sorted(epochs)],
        json.loads(summary.read_text()) if summary.exists() else {},
    )


def write_report(folder: Path) -> Path:
    """Write ``report.html`` and the PNG files of a run. Returns the path of the page.

    Example::

        webbrowser.open(write_report(Path("runs/products_gcn")).as_uri())
    """
    run = read_run(Path(folder))
    best, epochs = None if run.best is None else run.best[0], [run.epochs]
    metric, age = f"{run.metric} (%)", "mean row age (steps)"
    drawn: dict[str, tuple[str, Callable[[], bytes]]] = {
        "loss": ("loss.png", lambda: plots.curves(epochs, "training loss", ["loss"])),
        "val": ("accuracy.png", lambda: plots.curves(epochs, metric, SPLITS, scale=100, best=best)),
        "age": ("age.png", lambda: plots.curves(epochs, age, ["age"], from_zero=True)),
        "error": ("error.png", lambda: plots.curves(epochs, "approximation error", ["error"], from_zero=True)),
        "time": ("time.png", lambda: plots.times(run.epochs)),
    }
    for name, _ in drawn.values():  # an earlier report may have had others
        (run.folder / name).unlink(missing_ok=True)
    measured = {name for epoch in run.epochs for name in epoch}
    shown = [plot for figure, plot in drawn.items() if figure in measured]
    return _write_page(run.folder, _title(run), _results(run).items(), shown, run.settings.items())


def write_summary(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``report.html`` and ``accuracy.png`` of several runs that differ in their seeds. Returns the path of the page.

    The page has a line for each run, and the mean ± unbiased standard deviation of those that were evaluated.
    """
    if not runs:
        raise ValueError("runs is empty; give the folder of at least one run")
    folder, each = Path(folder), [read_run(Path(run)) for run in runs]
    metric = each[0].metric
    rows: list[tuple[str, ...]] = [
        ("seed", f"best validation {metric}", "test at best validation", "best epoch", "time", "state", "folder")
    ]
    for run in each:
        scores = ("-", "-", "-") if run.best is None else (percent(run.best[1]), percent(run.best[2]), str(run.best[0]))
        where = os.path.relpath(run.folder, folder)
        rows.append((str(run.settings.get("seed", "-")), *scores, duration(run.seconds), run.state, where))
    found = [run.best for run in each if run.best is not None]
    rows.append((f"mean ± std of {len(found)}", *(_spread([best[i] for best in found]) for i in (1, 2)), "", "", "", ""))
    divided = dict.fromkeys(partition_text(run.summary["partition"]) for run in each if run.summary.get("partition"))
    rows += [("partition", text) for text in divided]
    names = dict.fromkeys(name for run in each for name in run.settings)
    settings = [(name, ", ".join(dict.fromkeys(str(run.settings.get(name, "-")) for run in each))) for name in names]
    epochs = [run.evaluated for run in each if run.evaluated]
    draw = partial(plots.curves, epochs, f"{metric} (%)", ["val", "test"], scale=100)
    (folder / "accuracy.png").unlink(missing_ok=True)
    shown = [("accuracy.png", draw)] if epochs else []
    return _write_page(folder, f"{_title(each[0])}: {len(each)} seeds", rows, shown, settings)


def _title(run: Run) -> str:
    return ", ".join(str(run.settings[name]) for name in ("dataset", "model", "method") if name in run.settings)


def _results(run: Run) -> dict[str, str]:
    def known(name: str) -> list[Any]:
        return [epoch[name] for epoch in run.epochs if name in epoch]

    def last(name: str, shown: str) -> str | None:
        return shown.format(known(name)[-1]) if known(name) else None

    best, summary = run.best, run.summary
    rows = {
        "state": run.state,
        f"best validation {run.metric}": best and f"{percent(best[1])} (epoch {best[0]})",
        f"test {run.metric} at best validation": best and percent(best[2]),
        "epochs": str(len(run.epochs)),
        "training loss, last epoch": last("loss", "{:.4f}"),
        "mean row age, last epoch": last("age", "{:.1f} steps"),
        "approximation error, last measured": last("error", "{:.4g}"),
        "time": duration(run.seconds),
        "time of an epoch, median": known("time") and duration(median(sum(time.values()) for time in known("time"))),
        "peak memory": known("memory") and readable(max(known("memory"))),
        "partition": summary.get("partition") and partition_text(summary["partition"]),
        "parameters": "parameters" in summary and f"{summary['parameters']:,}",
        "machine": summary.get("machine"),
        "versions": ", ".join(f"{name} {version}" for name, version in summary.get("versions", {}).items()),
        "command": summary.get("command"),
    }
    return {name: str(value) for name, value in rows.items() if value}


def partition_text(partition: Mapping[str, Any]) -> str:
    """The partitioner that ran, the one that was asked for if it is another, and the quality of the clusters."""
    method, asked, why = str(partition.get("method", "-")), partition.get("asked"), partition.get("fallback")
    text = method if asked in (None, method, "auto") else f"{method} instead of {asked}"
    text += f" ({why})" if why else ""
    parts = partition.get("num_parts", partition.get("parts"))
    text += "" if parts is None else f", {parts} clusters"
    text += f", {100 * partition['cut']:.1f} % of edges cut" if "cut" in partition else ""
    text += f", balance {partition['balance']:.2f}" if "balance" in partition else ""
    around = partition.get("halo_per_row")
    return text + ("" if around is None else f", {around:.2f} halo rows per row of a batch")


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return percent(values[0]) if values else "-"
    return f"{100 * mean(values):.2f} ± {100 * stdev(values):.2f} %"


def _table(rows: Iterable[Iterable[Any]]) -> str:
    """An HTML table. The first cell of each row is its heading."""
    lines = ([escape(str(cell)) for cell in row] for row in rows)
    return "\n".join(
        ["<table>", *(f"<tr><th>{head}</th><td>{'</td><td>'.join(rest)}</td></tr>" for head, *rest in lines), "</table>"]
    )


def _write_page(
    folder: Path, title: str, results: Iterable[Iterable[str]], shown: Iterable[tuple[str, Callable[[], bytes]]],
    settings: Iterable[tuple[str, Any]],
) -> Path:  # fmt: skip
    body = [f"<h1>{escape(title)}</h1>", _table(results)]
    try:
        for name, draw in shown:
            png = draw()
            write_whole(folder / name, png)
            body.append(f'<p><img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{name}"></p>')
    except ImportError as error:
        body.append(f"<p>No plots: matplotlib cannot be imported ({escape(str(error))}).</p>")
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    page = ["<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *body, "<h2>Settings</h2>", _table(settings)]
    write_whole(folder / "report.html", "\n".join([*page, "</body></html>\n"]).encode())
    return folder / "report.html"
