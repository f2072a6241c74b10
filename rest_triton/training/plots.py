"""Plots of runs, as PNG bytes.

The plots use no pyplot: no backend is chosen and no style is set for the calling program. Matplotlib is imported when the
first plot is drawn.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

Epochs = Sequence[Mapping[str, Any]]  # the lines of a metrics.jsonl

# Okabe and Ito's colours, which people with the common kinds of colour blindness can tell apart.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
INK, LINE, GRID = "#222222", "#8a8a8a", "#e6e6e6"
COLOURS = {"loss": BLUE, "train": ORANGE, "val": BLUE, "test": GREEN, "age": VERMILION, "error": PURPLE}
PHASES = {"data": SKY, "refresh": ORANGE, "train": BLUE, "evaluation": PURPLE}
DPI, HEIGHT, WIDTHS = 120, 3.4, {1: 6.2, 2: 8.2, 3: 11.0, 4: 13.6}  # inches, by the number of panels
FEW = 30  # curves of up to this many points have markers


def panels_of(count: int, ylabel: str, *, shared: bool = True) -> tuple[Any, list[Any]]:
    """A figure with ``count`` panels side by side. shared: all panels have one vertical axis."""
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


def png_of(figure: Any) -> bytes:
    memory = io.BytesIO()
    figure.savefig(memory, format="png")
    return memory.getvalue()


def _by_epoch(figure: Any, panel: Any, right: float) -> bytes:
    """Label the horizontal axis, put the legend above the panel, and return the PNG."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("epoch", fontsize=11, color=INK)
    panel.set_xlim(0, right)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    handles, labels = panel.get_legend_handles_labels()
    if len(labels) > 1:
        options = dict(ncols=len(labels), frameon=False, fontsize=10, labelcolor=INK)
        figure.legend(handles, labels, loc="outside upper left", **options)
    return png_of(figure)


def curves(
    runs: Sequence[Epochs], ylabel: str, names: Sequence[str], *, scale: float = 1.0, best: int | None = None,
    from_zero: bool = False,
) -> bytes:  # fmt: skip
    """Figures of one or more runs by epoch. Epochs without a figure are left out.

    Several runs have a thin line each, and a thick one for the mean over the epochs that all of them have.

    Args:
        names: of the figures in metrics.jsonl. best: an epoch to mark. from_zero: the vertical axis begins at zero.
    """
    figure, (panel,) = panels_of(1, ylabel)
    for name in names:
        known = [{epoch["epoch"]: scale * epoch[name] for epoch in run if name in epoch} for run in runs]
        if not any(known):
            continue
        common = sorted(set.intersection(*map(set, known)))
        mean = {epoch: math.fsum(run[epoch] for run in known) / len(known) for epoch in common}
        for run in known if len(known) > 1 else ():
            panel.plot(list(run), list(run.values()), color=COLOURS[name], linewidth=0.9, alpha=0.5)
        markers = dict(marker="o", markersize=3.5) if len(mean) <= FEW else {}
        label = f"{name}, mean of {len(known)}" if len(known) > 1 else name
        panel.plot(list(mean), list(mean.values()), color=COLOURS[name], linewidth=1.8, label=label, **markers)
    if best is not None:
        panel.axvline(best, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, label=f"best val, epoch {best}")
    if from_zero:
        panel.axhline(0, color=LINE, linewidth=1)
        panel.set_ylim(bottom=0)
    return _by_epoch(figure, panel, 1.04 * max(epoch["epoch"] for run in runs for epoch in run))


def times(epochs: Epochs) -> bytes:
    """The seconds of each epoch by phase, stacked. The legend has each phase's share of the run."""
    figure, (panel,) = panels_of(1, "seconds per epoch")
    timed = [epoch for epoch in epochs if "time" in epoch]
    total = sum(sum(epoch["time"].values()) for epoch in timed)
    numbers, below = [epoch["epoch"] for epoch in timed], [0.0] * len(timed)
    edges = [number - 0.5 for number in numbers] + [numbers[-1] + 0.5]
    for phase, colour in PHASES.items():
        seconds = [epoch["time"].get(phase, 0.0) for epoch in timed]
        if any(seconds):
            above = [a + b for a, b in zip(below, seconds, strict=True)]
            label = f"{phase} {100 * sum(seconds) / total:.0f} %"
            panel.stairs(above, edges, baseline=below, fill=True, color=colour, linewidth=0, label=label)
            below = above
    return _by_epoch(figure, panel, edges[-1])
