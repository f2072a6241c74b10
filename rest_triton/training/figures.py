"""Pictures of runs, as PNG files in memory.

They are drawn on figures of their own, without pyplot: no backend is chosen and no style is set for the program around us.
Matplotlib is imported when the first one is drawn.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

Epochs = Sequence[Mapping[str, Any]]  # what metrics.jsonl holds, see rest_triton.training.report

# Okabe and Ito's colours, which people with any of the common kinds of colour blindness can tell apart.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
INK, LINE, GRID = "#222222", "#8a8a8a", "#e6e6e6"
SPLITS = {"train": ("training", ORANGE), "val": ("validation", BLUE), "test": ("test", GREEN)}
PHASES = {"data": SKY, "refresh": ORANGE, "train": BLUE, "evaluation": PURPLE}
DPI, HEIGHT, WIDTHS = 120, 3.4, {1: 6.2, 2: 8.2, 3: 11.0, 4: 13.6}  # inches, by panels: two fill the page as they are
FEW = 30  # as many points get a dot each
MARGIN = 1.04  # beyond the last point


def panels_of(count: int, ylabel: str, *, shared: bool = True) -> tuple[Any, list[Any]]:
    """A figure with so many panels beside each other. shared: the vertical axis is one for all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTHS[count], HEIGHT), dpi=DPI, layout="constrained", facecolor="white")
    panels = list(figure.subplots(1, count, sharey=shared, squeeze=False)[0])
    for panel in panels:
        panel.set_facecolor("white")
        panel.set_axisbelow(True)
        panel.grid(True, color=GRID, linewidth=0.8)
        for side, spine in panel.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(LINE)
        panel.tick_params(labelsize=10, color=LINE, labelcolor=INK)
    panels[0].set_ylabel(ylabel, fontsize=11, color=INK)
    return figure, panels


def _by_epoch(panel: Any, epochs: Epochs) -> list[int]:
    """Label the horizontal axis, from zero, and return the places on it."""
    from matplotlib.ticker import MaxNLocator

    numbers = [epoch["epoch"] for epoch in epochs]
    panel.set_xlabel("epoch", fontsize=11, color=INK)
    panel.set_xlim(0, MARGIN * max(1, *numbers))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return numbers


def _by_time(panel: Any, epochs: Epochs) -> list[float]:
    """Likewise, in the unit in which the time of a run is easily read."""
    last = max(epoch["seconds"] for epoch in epochs)
    unit, name = (1, "seconds") if last < 300 else (60, "minutes") if last < 3 * 3600 else (3600, "hours")
    panel.set_xlabel(f"time with evaluation ({name})", fontsize=11, color=INK)
    panel.set_xlim(0, MARGIN * max(1e-3, last) / unit)
    return [epoch["seconds"] / unit for epoch in epochs]


def _line(panel: Any, x: Sequence[float], y: Sequence[float], color: str, label: str = "", **style: Any) -> None:
    marker = dict(marker="o", markersize=3.5) if len(x) <= FEW else {}
    panel.plot(x, y, color=color, label=label or "_", **(dict(linewidth=1.8) | marker | style))


def _legend(figure: Any, panel: Any) -> None:
    """Above the panels, where it hides no line."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, fontsize=10, labelcolor=INK)


def png_of(figure: Any) -> bytes:
    memory = io.BytesIO()
    figure.savefig(memory, format="png")
    return memory.getvalue()


def loss(epochs: Epochs) -> bytes:
    """The training loss, against epochs and against time."""
    figure, (left, right) = panels_of(2, "training loss")
    known = [epoch for epoch in epochs if "loss" in epoch]
    values = [epoch["loss"] for epoch in known]
    _line(left, _by_epoch(left, known), values, BLUE)
    _line(right, _by_time(right, known), values, BLUE)
    return png_of(figure)


def accuracy(epochs: Epochs, best: int | None, metric: str = "accuracy") -> bytes:
    """Training, validation and test, against epochs and against time; epoch ``best`` is marked. Epochs without an
    evaluation are passed over."""
    evaluated = [epoch for epoch in epochs if "val" in epoch]
    figure, (left, right) = panels_of(2, f"{metric} (%)")
    numbers, times = _by_epoch(left, evaluated), _by_time(right, evaluated)
    for panel, x in ((left, numbers), (right, times)):
        for name, (label, color) in SPLITS.items():
            _line(panel, x, [100 * epoch.get(name, math.nan) for epoch in evaluated], color, label)
        if best in numbers:
            at = numbers.index(best)
            panel.axvline(x[at], color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            chosen = [100 * evaluated[at][name] for name in ("val", "test") if name in evaluated[at]]
            ring = dict(marker="o", markersize=8, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.4)
            panel.plot([x[at]] * len(chosen), chosen, linestyle="none", label=f"best validation, epoch {best}", **ring)
    _legend(figure, left)
    return png_of(figure)


def single(epochs: Epochs, name: str, ylabel: str, color: str) -> bytes:
    """One measurement against epochs, from zero; epochs without it are passed over."""
    measured = [epoch for epoch in epochs if name in epoch]
    figure, (panel,) = panels_of(1, ylabel)
    _line(panel, _by_epoch(panel, measured), [epoch[name] for epoch in measured], color)
    panel.set_ylim(bottom=0)
    return png_of(figure)


def time(epochs: Epochs) -> bytes:
    """What each epoch's seconds were spent on, stacked, with each part's share of all of them."""
    figure, (panel,) = panels_of(1, "seconds per epoch")
    timed = [epoch for epoch in epochs if "time" in epoch]
    total = sum(sum(epoch["time"].get(part, 0) for part in PHASES) for epoch in timed)
    numbers = _by_epoch(panel, timed)
    edges = [number - 0.5 for number in numbers] + [numbers[-1] + 0.5]
    below = [0.0] * len(timed)
    for part, color in PHASES.items():
        seconds = [epoch["time"].get(part, 0) for epoch in timed]
        if not any(seconds):
            continue
        above = [a + b for a, b in zip(below, seconds, strict=True)]
        label = f"{part} {100 * sum(seconds) / total:.0f} %"
        panel.stairs(above, edges, baseline=below, fill=True, color=color, linewidth=0, label=label)
        below = above
    panel.set_xlim(min(0, edges[0]), edges[-1])
    _legend(figure, panel)
    return png_of(figure)


def seeds(runs: Sequence[Epochs], metric: str = "accuracy") -> bytes:
    """Validation and test of several runs: a thin line for each, and their mean over the epochs that all evaluated."""
    figure, panels = panels_of(2, f"{metric} (%)")
    curves = [{epoch["epoch"]: epoch for epoch in run if "val" in epoch} for run in runs]
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    for panel, name in zip(panels, ("val", "test"), strict=True):
        label, color = SPLITS[name]
        _by_epoch(panel, [epoch for curve in curves for epoch in curve.values()])
        for number, curve in enumerate(curves):
            values = [100 * epoch.get(name, math.nan) for epoch in curve.values()]
            _line(panel, list(curve), values, color, "" if number else "one seed", linewidth=0.9, alpha=0.6, markersize=2)
        mean = [100 * sum(curve[epoch].get(name, math.nan) for curve in curves) / len(curves) for epoch in common]
        _line(panel, common, mean, color, f"mean of {len(curves)}", linewidth=2.6)
        panel.set_title(label, fontsize=11, color=INK, loc="left")
        panel.legend(loc="lower right", frameon=False, fontsize=10, labelcolor=INK)
    return png_of(figure)
