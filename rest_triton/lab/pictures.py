"""Pictures of studies, in the style of a run's (:mod:`rest_triton.training.plots`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..training.plots import BLUE, GREEN, INK, LINE, ORANGE, PURPLE, SKY, VERMILION, panels_of, png_of
from .results import Outcome, Results, Spread, curve
from .study import FULL, GAS, IS

COLOURS = {FULL: INK, GAS: VERMILION, IS: GREEN}
REFRESHED = (SKY, BLUE, PURPLE, ORANGE, GREEN, INK)  # REST with one F after the other
OTHERS = (VERMILION, BLUE, GREEN, ORANGE, PURPLE, SKY, INK)
MARKERS = "os^Dv<>p*h"
DASHES = ((0, (4, 2)), (0, (1.2, 1.5)), (0, (6, 2, 1, 2)))
WHOLE, FROM_ZERO = ("epoch", "propagation layers"), ("seconds of training", "seconds per epoch of training")
MOST = 8  # points with a bar each; where there are more, a band says how far seeds spread


@dataclass
class Series:
    """One line: places, values, and their spread where it is known."""

    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float | None] = ()


@dataclass
class Panel:
    """Lines by name. xlabel: of its horizontal axis. names: of places, if they are not numbers to scale. level: a line by
    name that has one value everywhere."""

    xlabel: str
    lines: Mapping[str, Series]
    title: str = ""
    names: Sequence[str] = ()
    log: tuple[bool, bool] = (False, False)
    levels: Mapping[str, float] = field(default_factory=dict)
    scattered: bool = False
    diagonal: bool = False


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same colour for the same method in every picture; others take turns. A variant of a method, after a comma, has its
    colour, dashed."""
    colours = {name: COLOURS[name] for name in names if name in COLOURS}
    rest = [name for name in names if name.startswith("REST F=") and "," not in name]
    colours |= {name: REFRESHED[i % len(REFRESHED)] for i, name in enumerate(rest)}
    left = [colour for colour in OTHERS if colour not in colours.values()] or list(OTHERS)
    unknown = [name for name in names if name not in colours and name.partition(",")[0] not in colours]
    colours |= {name: left[i % len(left)] for i, name in enumerate(unknown)}
    found, variants = dict[str, dict[str, Any]](), dict[str, int]()
    for i, name in enumerate(names):
        of, comma, _ = name.partition(",")
        found[name] = dict(color=colours.get(name) or colours[of], marker=MARKERS[i % len(MARKERS)])
        if comma and name not in colours:
            found[name] |= dict(linestyle=DASHES[variants.get(of, 0) % len(DASHES)], markerfacecolor="white")
            variants[of] = variants.get(of, 0) + 1
    return found


def draw(
    panels: Sequence[Panel], ylabel: str, *, shared: bool = True, ylabels: Sequence[str] = (), zero: bool = False
) -> bytes:
    """The panels beside each other, one legend above them. zero: the vertical axis begins there."""
    figure, axes = panels_of(len(panels), ylabel, shared=shared)
    names = list(dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.levels)))
    style, handles = styles(names), dict[str, Any]()
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        for name, series in panel.lines.items():
            if series.x:
                handles.setdefault(name, _line(axis, series, style[name], panel.scattered))
        for name, value in panel.levels.items():
            line = axis.axhline(value, color=style[name]["color"], linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
            handles.setdefault(name, line)
        axis.set_title(panel.title, fontsize=11, color=INK, loc="left")
        _axes(axis, panel)
        if ylabels:
            axis.set_ylabel(ylabels[number], fontsize=11, color=INK)
        if zero and not panel.log[1]:
            axis.set_ylim(bottom=0)
    if handles and list(handles) != [""]:
        _legend(figure, handles, max(1, min(len(handles), {1: 3, 2: 5, 3: 7}.get(len(panels), 8))))
    return png_of(figure)


def _legend(figure: Any, handles: Mapping[str, Any], columns: int) -> None:
    """Above the panels, where it hides nothing."""
    options: dict[str, Any] = dict(loc="outside upper left", ncols=columns, frameon=False, fontsize=10, labelcolor=INK)
    figure.legend(handles.values(), handles.keys(), **options)


def _axes(axis: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis.set_xlabel(panel.xlabel, fontsize=11, color=INK)
    if panel.names:
        axis.set_xticks(range(len(panel.names)), panel.names)
        axis.set_xlim(-0.4, len(panel.names) - 0.6)
    elif panel.xlabel in WHOLE:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.set_xlim(left=0)
    elif panel.xlabel in FROM_ZERO:
        axis.set_xlim(left=0)
    values = [value for series in panel.lines.values() for value in (*series.x, *series.y) if value > 0]
    if panel.diagonal and values:
        ends = [min(values) / 1.3, max(values) * 1.3]
        axis.plot(ends, ends, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for log, way, scale in zip(panel.log, (axis.xaxis, axis.yaxis), (axis.set_xscale, axis.set_yscale), strict=True):
        if log:
            scale("log")
            low, high = way.get_view_interval()
            way.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,), numticks=8))
            way.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            way.set_minor_formatter(NullFormatter())


def _line(axis: Any, series: Series, look: Mapping[str, Any], scattered: bool) -> Any:
    style: dict[str, Any] = dict(markersize=4.5 if len(series.x) <= 30 else 0, linewidth=1.7) | dict(look)
    if scattered:
        return axis.plot(series.x, series.y, **(style | dict(linestyle="none", markersize=4, alpha=0.75)))[0]
    (line,) = axis.plot(series.x, series.y, **style)
    known = [(x, y, s) for x, y, s in zip(series.x, series.y, series.spread, strict=False) if s is not None]
    if known:
        xs, ys, ss = zip(*known, strict=True)
        if len(series.x) <= MOST:
            axis.errorbar(xs, ys, ss, fmt="none", ecolor=look["color"], elinewidth=1.1, capsize=3)
        else:
            low, high = ([y + sign * s for y, s in zip(ys, ss, strict=True)] for sign in (-1, 1))
            axis.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)
    return line


def along(
    results: Results, groups: Sequence[Sequence[Outcome]], name: str, place: Sequence[float], scale: float = 1.0
) -> Series:
    """A figure of each group at its place on the horizontal axis."""
    found = [(x, results.spread(group, name)) for x, group in zip(place, groups, strict=True)]
    known = [(x, spread) for x, spread in found if spread is not None]
    return Series(
        [x for x, _ in known],
        [scale * spread.mean for _, spread in known],
        [None if spread.std is None else scale * spread.std for _, spread in known],
    )


def by_epoch(group: Sequence[Outcome], name: str, scale: float = 1.0) -> Series:
    x, y, spread = curve(group, lambda outcome, at: outcome.run.epochs[at]["epoch"], name)
    return _scaled(x, y, spread, scale)


def by_step(group: Sequence[Outcome], name: str, scale: float = 1.0) -> Series:
    """Against updates of the weights: an epoch of full-batch training is one of them."""
    x, y, spread = curve(group, lambda outcome, at: outcome.run.epochs[at]["step"], name)
    return _scaled(x, y, spread, scale)


def by_time(group: Sequence[Outcome], name: str, scale: float = 1.0) -> Series:
    """Against seconds of training, without evaluations."""
    x, y, spread = curve(group, lambda outcome, at: outcome.trained[at], name)
    return _scaled(x, y, spread, scale)


def _scaled(x: list[float], y: list[float], spread: list[float | None], scale: float) -> Series:
    return Series(x, [scale * value for value in y], [None if s is None else scale * s for s in spread])


@dataclass
class Dots:
    """One panel of :func:`dots`: for each name, (row, figure) pairs. Figures are shares, shown in points."""

    title: str
    series: Mapping[str, Sequence[tuple[int, Spread]]]


def dots(panels: Sequence[Dots], rows: Sequence[str], xlabel: str) -> bytes:
    """Rows by name, a dot for each series, side by side within a row; the vertical line is zero."""
    figure, axes = panels_of(len(panels), "")
    figure.set_size_inches(10.5, 1.3 + 0.5 * len(rows))
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    style, handles = styles(names), dict[str, Any]()
    for panel, axis in zip(panels, axes, strict=True):
        axis.axvline(0, color=LINE, linewidth=1.2, zorder=1)
        for turn, name in enumerate(names):
            off = 0.62 * ((turn + 0.5) / len(names) - 0.5)
            for row, spread in panel.series.get(name, ()):
                look: dict[str, Any] = dict(style[name]) | dict(markersize=5, linestyle="none")
                (dot,) = axis.plot([100 * spread.mean], [row + off], **look)
                handles.setdefault(name, dot)
                if spread.std is not None:
                    bar: dict[str, Any] = dict(xerr=[100 * spread.std], fmt="none", ecolor=look["color"], elinewidth=1.1)
                    axis.errorbar([100 * spread.mean], [row + off], **bar)
        axis.set_title(panel.title, fontsize=11, color=INK, loc="left")
        axis.set_yticks(range(len(rows)), rows)
        axis.set_ylim(len(rows) - 0.5, -0.5)
    figure.supxlabel(xlabel, fontsize=11, color=INK)
    _legend(figure, handles, len(names))
    return png_of(figure)
