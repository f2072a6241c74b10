"""Pictures of what changes with a setting: the cost of refreshing more often, and how time and memory grow."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rest_triton.training.plots import BLUE, GREEN, INK, LINE, ORANGE, PURPLE, SKY, VERMILION

from .bars import grouped
from .canvas import MARGIN, TEXT, TIMES, WIDTH, foot_height, legend, sheet, styled
from .growth import fit
from .results import Record

# By the colour and by the mark: a line is told from the others in grey, too.
LINES = [(BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILION, "D"), (PURPLE, "v"), (SKY, "P")]
AXES = ("edges", "width", "clusters in a batch", "layers")  # in this order, others after them
AMOUNTS: dict[str, tuple[str, Callable[[Record], float | None]]] = {
    "time": ("seconds", lambda r: r.seconds),
    "memory": ("GiB", lambda r: None if r.memory is None else r.memory / (1 << 30)),
}
ROW, LEGEND = 2.35, 100  # inches of a row of panels, characters of a line of the legend


def _x(record: Record) -> float:
    return record.x or 0.0


def of_frequency(records: Iterable[Record]) -> list[Record]:
    """Those of cases that were measured with F = 0 too: without it there is nothing to be relative to."""
    known = [r for r in records if r.bench == "frequency" and r.x is not None and r.seconds]
    related = {(r.case, r.what) for r in known if r.x == 0}
    return [r for r in known if (r.case, r.what) in related]


def frequency(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """An epoch's time for each F, relative to F = 0 of the same case."""
    curves = grouped(of_frequency(records), lambda r: r.case if r.what == "ours" else f"{r.case}, {r.what}")
    if not curves:
        return None
    note = "Best of interleaved epochs, relative to F = 0 (no refresh) of the same case; thin lines: up to the median epoch."
    columns = 2 if max(map(len, curves)) <= 46 else 1
    above = 0.42 + 0.2 * math.ceil(len(curves) / columns)
    made = sheet("What refreshing costs: an epoch of REST with F refreshes a step", above + 3.4, machine, note)
    panel = styled(_area(made, 1, 1, above, foot_height(machine, note))[0][0])
    for number, (label, found) in enumerate(curves.items()):
        group = sorted(found, key=_x)
        color, mark = LINES[number % len(LINES)]
        y = [(r.seconds or 0) / (group[0].seconds or 1) for r in group]
        up = [value * (1 + (r.noise or 0)) for value, r in zip(y, group, strict=True)]
        x = [_x(r) for r in group]
        panel.vlines(x, y, up, color=color, linewidth=1.2)
        short = textwrap.shorten(label, LEGEND, placeholder=" …")
        panel.plot(x, y, color=color, marker=mark, markersize=5, linewidth=1.8, label=short)
    panel.axhline(1, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    panel.set_ylim(bottom=0)
    panel.set_xlim(left=-0.15)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {TIMES}"))
    panel.set_xlabel("F", fontsize=TEXT, color=INK)
    panel.set_ylabel("time of an epoch relative to F = 0", fontsize=TEXT, color=INK)
    legend(made, panel.get_legend_handles_labels()[0], columns)
    return made


def of_growth(records: Iterable[Record]) -> list[Record]:
    """Those that a logarithmic axis has a place for."""
    return [r for r in records if r.bench == "growth" and r.mode in AMOUNTS and _x(r) > 0 and AMOUNTS[r.mode][1](r)]


def growth(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """Time and memory against each axis, both logarithmic, with fitted lines and their slopes."""
    known = of_growth(records)
    if not known:
        return None
    axes = sorted({r.case for r in known}, key=lambda case: (AXES.index(case) if case in AXES else len(AXES), case))
    modes = [mode for mode in AMOUNTS if any(r.mode == mode for r in known)]
    note = (
        "Both axes logarithmic. Slope: of the dashed line, least squares of the logarithms, ± its standard error; 1 is in "
        "proportion, dotted from our first point where ours is near it."
    )
    made = sheet("How time and memory grow", 0.5 + ROW * len(axes), machine, note)
    panels = _area(made, len(axes), len(modes), 0.4, foot_height(machine, note))
    names = sorted(dict.fromkeys(r.what for r in known), key=lambda what: what != "ours")  # a colour for each in all panels
    for case, line in zip(axes, panels, strict=True):
        for mode, panel in zip(modes, line, strict=True):
            here = [r for r in known if r.case == case and r.mode == mode]
            styled(panel)
            if here:
                _grown(panel, here, names)
                _scales(panel, [_x(r) for r in here])
            else:
                panel.set_axis_off()
            panel.set_xlabel(case, fontsize=TEXT, color=INK)
            panel.set_ylabel(f"{mode} ({AMOUNTS[mode][0]})", fontsize=TEXT, color=INK)
    return made


def _grown(panel: Any, records: Sequence[Record], names: Sequence[str]) -> None:
    """Points, fitted lines, and what proportion to the axis would be, from the first point of ours."""
    for what, found in grouped(records, lambda r: r.what).items():
        group = sorted(found, key=_x)
        x, y = [_x(r) for r in group], [AMOUNTS[r.mode][1](r) or 0 for r in group]
        color, mark = LINES[names.index(what) % len(LINES)]
        label = what
        if len(set(x)) > 1:
            fitted = fit(x, y)
            label = f"{what}: {fitted}"
            panel.plot([x[0], x[-1]], [fitted.at(x[0]), fitted.at(x[-1])], color=color, linewidth=1.2, linestyle=(0, (5, 2)))
            if what == "ours" and abs(fitted.slope - 1) < 0.5:
                panel.plot([x[0], x[-1]], [y[0], y[0] * x[-1] / x[0]], color=LINE, linewidth=1, linestyle=":", zorder=1)
        panel.plot(x, y, color=color, marker=mark, markersize=5, linestyle="none", label=label)
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    middle = math.sqrt(low * high)
    low, high = min(low, middle / 1.8), max(high, middle * 1.8)  # what hardly changes is to look like it
    panel.set_ylim(low, high * (high / low) ** (0.16 * len(names) + 0.05))  # room for the legend
    panel.legend(loc="upper left", frameon=False, fontsize=TEXT - 0.5, labelcolor=INK, borderpad=0.1, handletextpad=0.3)


def _scales(panel: Any, x: Sequence[float]) -> None:
    """Plain numbers on both axes; on the horizontal one where something was measured, if these do not crowd."""
    places = sorted(set(x))
    apart = (places[-1] / places[0]) ** 0.1 if len(places) > 1 else 1.0
    if len(places) <= 8 and all(b / a >= apart for a, b in pairwise(places)):
        panel.xaxis.set_major_locator(FixedLocator(places))
    else:
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """Without powers of ten: 4000, 250k, 2M."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}" if value >= 1000 else f"{value:.3g}"


def _area(made: Figure, rows: int, columns: int, top: float, bottom: float) -> Any:
    """Panels between ``top`` and ``bottom`` inches."""
    height = made.get_figheight()
    edge = MARGIN / WIDTH
    made.set_layout_engine("constrained", rect=(edge, bottom / height, 1 - 2 * edge, 1 - (top + bottom) / height))
    return made.subplots(rows, columns, squeeze=False)
