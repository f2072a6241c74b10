"""Draw what a session of bench/ measured.

    pytest bench/ --benchmark-only --benchmark-json=results.json
    python -m bench.plot results.json [--out docs/figures]

    ops.png       each op on each case: alternatives and the machine's limit, relative to ours
    epochs.png    whole epochs, relative to ours
    growth.png    how time and memory of an epoch grow

as far as the file has measurements for them.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

OURS = "ours"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8a8a"
Row = dict[str, Any]  # a benchmark of pytest-benchmark's JSON
ROW = 0.2  # inches


def of_group(rows: Sequence[Row], *groups: str) -> list[dict[str, Any]]:
    return [row["extra_info"] for row in rows if row["group"] in groups]


def ops(rows: Sequence[Row]) -> Figure | None:
    """A line for each op and case: the fastest alternative, all others, the fastest limit."""
    shown = [row for row in rows if row["group"] not in ("epoch", "methods") and len(row["extra_info"]["seconds"]) > 1]
    if not shown:
        return None
    figure = Figure((11, 1.2 + ROW * len(shown)), layout="constrained")
    panel = figure.subplots()
    labels = []
    for y, row in enumerate(shown):
        info = row["extra_info"]
        ours = info["seconds"][OURS]
        ratios = sorted(seconds / ours for name, seconds in info["seconds"].items() if name != OURS)
        panel.plot(ratios[1:], [y] * len(ratios[1:]), "o", color=GREY, markersize=3, alpha=0.6)
        panel.plot(ratios[:1], [y], "o", color=BLUE, markersize=5)
        if info["limits"]:
            panel.plot([min(info["limits"].values()) / ours], [y], "|", color=ORANGE, markersize=9, markeredgewidth=2)
        labels.append(f"{row['group']}: {info['case']}  ({shown_seconds(ours)})")
    panel.set_yticks(range(len(labels)), labels, fontsize=7)
    panel.invert_yaxis()
    panel.margins(y=0.01)
    panel.set_xscale("log", base=2)
    relative_axis(panel, "time relative to ours (blue: fastest alternative, grey: others, orange: limit of the machine)")
    return figure


def epochs(rows: Sequence[Row]) -> Figure | None:
    """A bar for each variant of each case."""
    cases = of_group(rows, "epoch")
    if not cases:
        return None
    figure = Figure((9, 0.8 + ROW * sum(len(case["seconds"]) + 1 for case in cases)), layout="constrained")
    panel = figure.subplots()
    y, places, labels = 0.0, [], []
    for case in cases:
        places.append(y)
        labels.append(case["case"])
        for name, seconds in case["seconds"].items():
            y += 1
            ratio = seconds / case["seconds"][OURS]
            panel.barh(y, ratio, color=BLUE if name == OURS else ORANGE if "PyGAS" in name else GREY, height=0.8)
            panel.text(ratio, y, f" {ratio:.2f} x, {shown_seconds(seconds)}", va="center", fontsize=7)
            places.append(y)
            labels.append(name)
        y += 1
    panel.set_yticks(places, labels, fontsize=7)
    for tick, label in zip(panel.get_yticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if any(case["case"] == label for case in cases) else "normal")
    panel.set_ylim(y - 0.4, -0.6)
    panel.margins(x=0.15)
    relative_axis(panel, "time of an epoch relative to ours")
    return figure


def growth(rows: Sequence[Row]) -> Figure | None:
    """Time and memory along each axis, both logarithmic, with the slope of a fitted line: 1 is in proportion."""
    points = of_group(rows, "growth")
    axes = list(dict.fromkeys(point["axis"] for point in points))
    if not points:
        return None
    figure = Figure((9, 2.4 * len(axes)), layout="constrained")
    for panels, axis in zip(figure.subplots(len(axes), 2, squeeze=False), axes, strict=True):
        here = [point for point in points if point["axis"] == axis]
        x = [point["x"] for point in here]
        fitted(panels[0], axis, "seconds of an epoch", x, [point["seconds"][OURS] for point in here])
        fitted(panels[1], axis, "memory, GiB", x, [point["memory"] / (1 << 30) for point in here])
    return figure


def fitted(panel: Axes, axis: str, what: str, x: Sequence[float], y: Sequence[float]) -> None:
    panel.loglog(x, y, "o", color=BLUE)
    if len(set(x)) > 1 and min(y) > 0:
        slope, level = np.polyfit(np.log(x), np.log(y), 1)
        panel.loglog(x, [math.exp(level) * value**slope for value in x], "--", color=ORANGE, label=f"slope {slope:.2f}")
        panel.legend(frameon=False, fontsize=8)
    panel.set_xlabel(axis, fontsize=8)
    panel.set_ylabel(what, fontsize=8)
    panel.set_xticks(sorted(set(x)))
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for side in (panel.xaxis, panel.yaxis):
        side.set_major_formatter(lambda value, _: f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value:g}")
    panel.minorticks_off()
    panel.tick_params(labelsize=7)


def relative_axis(panel: Axes, label: str) -> None:
    panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    panel.set_xlabel(label, fontsize=8)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g} x")
    panel.minorticks_off()


def shown_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description="Draw what a session of bench/ measured")
    parser.add_argument("results", metavar="RESULTS.json", type=Path, help="by pytest --benchmark-json or --benchmark-save")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("docs/figures"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        rows = json.loads(options.results.read_text())["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.exit(2, f"{options.results} is no JSON of pytest-benchmark ({error}); --benchmark-json=FILE writes one\n")
    options.out.mkdir(parents=True, exist_ok=True)
    for draw in (ops, epochs, growth):
        figure = draw(rows)
        if figure is not None:
            figure.savefig(options.out / f"{draw.__name__}.png", dpi=110)
            print(options.out / f"{draw.__name__}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
