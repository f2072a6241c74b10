"""Pictures of studies: PNG images with a few panels, drawn without pyplot."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .results import SCORES
from .study import FULL, GAS, Results, Run, Spread, spread, spread_of

# Okabe and Ito's colours, which remain distinct under the common kinds of colour blindness.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#8a6d3b", "#8c8c8c")
FIXED = {FULL: "#222222", GAS: "#D55E00"}
MARKERS = "os^Dv<>p*h"
FEW = 30  # lines of up to this many points have markers

Point = tuple[float, Spread]


@dataclass
class Panel:
    """Lines by name.

    Args:
        places: the names of 0, 1, … on the x-axis. joined: whether the points of a line are connected.
        between: the ends of the y-axis. logarithmic: the y-axis.
    """

    x: str
    y: str
    lines: dict[str, list[Point]]
    title: str = ""
    places: Sequence[str] = ()
    joined: bool = True
    between: tuple[float, float] | None = None
    logarithmic: bool = False


def draw(panels: Sequence[Panel], across: int = 0) -> bytes:
    """A PNG with the panels and one legend above them.

    across: smaller panels, as many side by side; those of a row have the same y-axis. 0: all panels are in one row.
    """
    from matplotlib.figure import Figure

    rows, wide = -(-len(panels) // (across or len(panels))), across or len(panels)
    size = (1.5 + 2.2 * wide, 0.9 + 2.2 * rows) if across else (3 + 2.8 * wide, 3.6)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    others = [name for name in names if name not in FIXED]
    looks: dict[str, Any] = {
        name: dict(color=FIXED.get(name) or COLOURS[others.index(name) % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
        for at, name in enumerate(names)
    }
    handles: dict[str, Any] = {}
    axes = figure.subplots(rows, wide, squeeze=False, sharey="row" if across else False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for at, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        axis.grid(True, color="#e6e6e6", linewidth=0.8)
        axis.set(xlabel=panel.x if at + wide >= len(panels) else "", ylabel=panel.y if at % wide == 0 or not across else "")
        if panel.logarithmic:
            axis.set_yscale("log")
        axis.set_title(panel.title, loc="left", fontsize=11)
        for name, points in panel.lines.items():
            if points:
                handles.setdefault(name, _line(axis, points, looks[name], panel.joined))
        if panel.places:
            turned = max(map(len, panel.places)) * len(panel.places) > 40
            axis.set_xticks(range(len(panel.places)), panel.places, rotation=90 if turned else 0)
        if panel.between is not None:
            axis.set_ylim(*panel.between)
    if len(handles) > 1:
        fit = int(figure.get_figwidth() / (0.7 + 0.08 * max(map(len, handles))))  # inches of a column, at most
        columns = max(1, min(2 * wide + 1, fit))
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns, frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _line(axis: Any, points: Sequence[Point], look: Mapping[str, Any], joined: bool) -> Any:
    x, y = [x for x, _ in points], [value.mean for _, value in points]
    style = dict(look) | dict(markersize=4.5 if len(x) <= FEW or not joined else 0, linestyle="-" if joined else "none")
    (line,) = axis.plot(x, y, linewidth=1.7, **style)
    bars = [(x, value.mean, value.std) for x, value in points if value.std is not None]
    if bars and len(points) <= FEW:
        axis.errorbar(*zip(*bars, strict=True), fmt="none", ecolor=look["color"], elinewidth=1.1, capsize=3)
    return line


def _scaled(name: str, value: Spread) -> Spread:
    """Scores in percent, memory in MiB."""
    scale = 100 if name in SCORES else 2**-20 if name == "memory" else 1
    return Spread(scale * value.mean, None if value.std is None else scale * value.std)


def _label(name: str) -> str:
    """The label of a column's axis, with its unit."""
    unit = " (%)" if name in SCORES else " (MiB)" if name == "memory" else ""
    return name.replace("_", " ") + unit


def along(results: Results, axis: str, name: str, *, joined: bool = True, **labels: Any) -> Panel:
    """A panel of a column by the values of a label, for the cases with these labels, with a line for each method."""
    places, lines = sorted(results.values(axis), key=lambda value: value == "all"), dict[str, list[Point]]()
    methods = results.values("method")
    for group in results.where(**labels):
        value = spread(group, name)
        if value is not None:
            beside = 0.0 if joined else 0.1 * methods.index(group[0].method)
            point = places.index(group[0].labels[axis]) + beside, _scaled(name, value)
            lines.setdefault("" if axis == "method" else group[0].method, []).append(point)
    title = ", ".join(str(value) for value in labels.values())
    return Panel(_label(axis), _label(name), lines, title, [f"{place}" for place in places], joined and axis != "method")


def curves(groups: Sequence[Sequence[Run]], x: str, name: str, title: str = "") -> Panel:
    """A panel of a metric by epoch, as mean over seeds, with a line for each method.

    Args:
        x: ``epoch``, ``step`` or ``seconds``, of training. name: as in metrics.jsonl; ``staleness_0`` is that of table 0.
    """
    lines = {group[0].method: _curve(group, x, name) for group in groups}
    return Panel("seconds of training" if x == "seconds" else x, _label(name), lines, title)


def _curve(group: Sequence[Run], x: str, name: str) -> list[Point]:
    """Mean and standard deviation at the epochs for which all seeds have a value."""
    key, _, table = name.rpartition("_") if name.startswith("staleness") else (name, "", "")
    seeds = []
    for run in (run for run in group if run.row):
        at = run.seconds if x == "seconds" else [epoch[x] for epoch in run.epochs]
        measured = [(place, epoch) for place, epoch in zip(at, run.epochs, strict=True) if key in epoch]
        seeds.append({e["epoch"]: (place, e[key][int(table)] if table else e[key]) for place, e in measured})
    points = []
    for epoch in sorted(set.intersection(*map(set, seeds))) if seeds else ():
        places, values = zip(*(seed[epoch] for seed in seeds), strict=True)
        value = spread_of(values)
        assert value is not None
        points.append((sum(places) / len(places), _scaled(name, value)))
    return points
