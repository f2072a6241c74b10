"""From the directory of a run to pictures and a page.

A run directory holds ``config.yaml`` (its settings), ``metrics.jsonl`` (a JSON object per epoch) and, once the run has
ended, ``summary.json``. The page, ``report.html``, is one file with the pictures in it; they also lie beside it as files.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import yaml

from ..utils.machine import readable
from . import figures
from .page import Picture, draw_all, duration, pairs, percent, shown, write_page

METHODS = {"gas": "GAS", "gas+rest": "GAS + REST", "gas+rest-is": "GAS + REST-IS", "full": "full-batch training"}
PICTURES = {"loss": "loss.png", "val": "accuracy.png", "age": "age.png", "error": "error.png", "time": "time.png"}
MISSING = "-"


@dataclass(frozen=True)
class Run:
    """What a run left behind: settings, epochs in their order, and its summary, which is empty if it was killed."""

    folder: Path
    settings: dict[str, Any]
    epochs: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [epoch for epoch in self.epochs if "val" in epoch]

    @property
    def best(self) -> tuple[int, float, float] | None:
        """(epoch, validation, test) where validation was best, the first of equals; None if nothing was evaluated."""
        if {"best_epoch", "best_val", "best_test"} <= self.summary.keys():
            found = self.summary["best_epoch"], self.summary["best_val"], self.summary["best_test"]
            if None not in found:
                return found
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


def read_run(folder: Path) -> Run:
    """The run in this directory. A last line that was torn when the run was killed is left out; of an epoch that was done
    again, after a resume, the last time counts."""
    config, metrics, summary = folder / "config.yaml", folder / "metrics.jsonl", folder / "summary.json"
    if not config.exists() and not metrics.exists():
        raise FileNotFoundError(
            f"{folder} has neither config.yaml nor metrics.jsonl; name the directory that a training run wrote"
        )
    lines = metrics.read_bytes().decode(errors="replace").splitlines() if metrics.exists() else []
    epochs: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            epoch = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise ValueError(f"line {number} of {metrics} is not JSON: {line[:60]!r}; remove it to see the others") from None
        epochs[epoch["epoch"]] = {name: value for name, value in epoch.items() if value is not None}
    return Run(
        folder,
        yaml.safe_load(config.read_text()) or {} if config.exists() else {},
        [epochs[number] for number in sorted(epochs)],
        json.loads(summary.read_text()) if summary.exists() else {},
    )


def write_report(folder: Path) -> Path:
    """Draw ``loss.png``, ``accuracy.png``, ``age.png``, ``error.png`` and ``time.png``, those of them that the run has
    measurements for, and write ``report.html``, whose path is returned. Without matplotlib the page says so.

    Example::

        webbrowser.open(write_report(Path("runs/products_gcn")).as_uri())
    """
    run = read_run(Path(folder))
    for name in PICTURES.values():  # of an earlier report: they may not belong to this page
        (run.folder / name).unlink(missing_ok=True)
    body = [
        f"<h2>Results</h2>{pairs(_results(run))}",
        *draw_all(run.folder, _pictures(run)),
        f"<h2>Settings</h2>{pairs((name, shown(value)) for name, value in run.settings.items())}",
        *_commands([run]),
    ]
    return write_page(run.folder, _title(run.settings), _sentence(run), body)


def _pictures(run: Run) -> list[Picture]:
    """Those that the run has measurements for."""
    epochs, mark = run.epochs, None if run.best is None else run.best[0]
    age, error = ("age", "mean row age (steps)", figures.VERMILION), ("error", "approximation error", figures.PURPLE)
    known = {
        "loss": ("Training loss, by epochs and by time.", lambda: figures.loss(epochs)),
        "val": (
            f"Exact {run.metric} of all nodes; the epoch with the best validation is marked.",
            lambda: figures.accuracy(epochs, mark, run.metric),
        ),
        "age": (
            "How many steps ago the rows of the histories were written, on average over an epoch.",
            lambda: figures.single(epochs, *age),
        ),
        "error": (
            "Approximation error: how far embeddings made from histories are from exact ones.",
            lambda: figures.single(epochs, *error),
        ),
        "time": ("What the seconds of each epoch were spent on.", lambda: figures.time(epochs)),
    }
    measured = {name for epoch in epochs for name in epoch}
    return [Picture(PICTURES[name], *known[name]) for name in known if name in measured]


def write_summary(folder: Path, runs: Sequence[Path]) -> Path:
    """The same for several runs that differ in their seeds: ``accuracy.png`` with all of them, and ``report.html`` with a
    line for each and mean ± standard deviation (unbiased) of those that were evaluated. Returns the path of the page."""
    if not runs:
        raise ValueError("runs is empty; give the directories of at least one run")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    each = [read_run(Path(run)) for run in runs]
    (folder / "accuracy.png").unlink(missing_ok=True)
    metric, curves = each[0].metric, [run.epochs for run in each if run.evaluated]
    caption = f"Exact {metric} of all nodes: a thin line for each seed, and their mean over the epochs that all evaluated."
    picture = Picture("accuracy.png", caption, lambda: figures.seeds(curves, metric))
    names = list(dict.fromkeys(name for run in each for name in run.settings))
    settings = [(name, ", ".join(dict.fromkeys(shown(run.settings.get(name, MISSING)) for run in each))) for name in names]
    body = [
        f"<h2>Results</h2>{_seeds_table(folder, each)}",
        *draw_all(folder, [picture] if curves else []),
        f"<h2>Settings</h2>{pairs(settings)}",
        *_commands(each),
    ]
    return write_page(folder, f"{_title(each[0].settings)}: {len(each)} seeds", _sentence(each[0], len(each)), body)


def _title(settings: Mapping[str, Any]) -> str:
    method = str(settings.get("method", ""))
    named = f", {METHODS.get(method, method)}" if method else ""
    return f"{_model(settings)} on {settings.get('dataset', 'a graph')}{named}"


def _sentence(run: Run, seeds: int = 1) -> str:
    """What was run, in words; settings that are not there are left out."""
    s = run.settings
    method, rest = str(s.get("method", "")), str(s.get("method", "")).partition("+")[2]
    text = f"A {s['num_layers']}-layer {_model(s)}" if "num_layers" in s else f"A {_model(s)}"
    text += f" of width {s['hidden_channels']}" if "hidden_channels" in s else ""
    text += f", trained on {s.get('dataset', 'a graph')}" + (f" by {METHODS.get(method, method)}" if method else "")
    frequency = s.get("frequency")
    if rest == "rest" and frequency == "auto":
        drift = s.get("target_drift")
        kept = f"their drift under {drift}" if drift else f"their mean age under {s.get('target_age')} steps"
        text += f" with as many refreshes per step as keep rows' {kept.removeprefix('their ')}"
    elif rest == "rest" and frequency is not None:
        text += f" with {frequency} refresh{'' if frequency == 1 else 'es'} per step"
    elif rest == "rest-is" and frequency is not None:
        text += f" with each batch's halo refreshed in {frequency} piece{'' if frequency == 1 else 's'}"
    if method != "full" and {"num_parts", "batch_size"} <= s.keys():
        text += f"; {s['batch_size']} of {s['num_parts']} clusters in a batch"
    text += f"; {seeds} seeds." if seeds > 1 else f"; seed {s['seed']}." if "seed" in s else "."
    if s.get("eval_updates_history"):
        text += " Evaluation wrote the histories, too: their rows are younger than training alone would leave them."
    return text + ("" if seeds > 1 or run.summary.get("finished") else f" {_state(run).capitalize()}.")


def _model(settings: Mapping[str, Any]) -> str:
    return str(settings.get("model", "model")).upper()


def _state(run: Run) -> str:
    if run.summary.get("finished"):
        return "finished"
    return (
        f"not finished: epoch {run.epochs[-1]['epoch']} was the last"
        if run.epochs
        else "not finished: no epoch was completed"
    )


def _results(run: Run) -> list[tuple[str, str]]:
    last, best, summary = run.epochs[-1] if run.epochs else {}, run.best, run.summary
    rows = []
    if best is not None:
        rows += [(f"best validation {run.metric}", f"{percent(best[1])} (epoch {best[0]})")]
        rows += [(f"test {run.metric} at best validation", percent(best[2]))]
    rows += [("epochs", str(len(run.epochs)))]
    rows += [("training loss, last epoch", f"{last['loss']:.4f}")] if "loss" in last else []
    rows += [("mean row age, last epoch", f"{last['age']:.1f} steps")] if "age" in last else []
    errors = [epoch["error"] for epoch in run.epochs if "error" in epoch]
    rows += [("approximation error, last measured", f"{errors[-1]:.4g}")] if errors else []
    rows += [("time", duration(run.seconds))] if run.epochs else []
    spent = [sum(epoch["time"].values()) for epoch in run.epochs if "time" in epoch]
    rows += [("time of an epoch, median", duration(median(spent)))] if spent else []
    memory = [epoch["memory"] for epoch in run.epochs if "memory" in epoch]
    rows += [("peak memory", readable(max(memory)))] if memory else []
    rows += [("parameters", f"{summary['parameters']:,}")] if "parameters" in summary else []
    rows += [("machine", str(summary["machine"]))] if "machine" in summary else []
    versions = summary.get("versions", {})
    return rows + ([("versions", ", ".join(f"{n} {v}" for n, v in versions.items()))] if versions else [])


def _seeds_table(folder: Path, runs: Sequence[Run]) -> str:
    heads = ("seed", f"best validation {runs[0].metric}", "test at best validation", "best epoch", "time", "")
    rows = []
    for run in runs:
        best, page = run.best, run.folder / "report.html"
        scores = [MISSING] * 3 if best is None else [percent(best[1]), percent(best[2]), str(best[0])]
        cells = [escape(cell) for cell in (shown(run.settings.get("seed", MISSING)), *scores, duration(run.seconds))]
        link = f'<a href="{escape(os.path.relpath(page, folder))}">{escape(_state(run))}</a>'
        rows.append("".join(f"<td>{cell}</td>" for cell in (*cells, link if page.exists() else escape(_state(run)))))
    found = [run.best for run in runs if run.best is not None]
    spread = [_spread([best[i] for best in found]) for i in (1, 2)]
    total = (f"mean of {len(found)}" if len(found) < 2 else f"mean ± std of {len(found)}", *spread)
    return (
        f"<div class='wide'><table class='seeds'><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"
        f"{''.join(f'<tr>{row}</tr>' for row in rows)}"
        f'<tr class="mean">{"".join(f"<td>{cell}</td>" for cell in total)}<td></td><td></td><td></td></tr></table></div>'
    )


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return percent(values[0]) if values else MISSING
    return f"{100 * mean(values):.2f} ± {100 * stdev(values):.2f} %"


def _commands(runs: Sequence[Run]) -> list[str]:
    found = dict.fromkeys(str(run.summary["command"]) for run in runs if "command" in run.summary)
    return [f"<h2>To repeat it</h2><pre>{escape(chr(10).join(found))}</pre>"] if found else []
