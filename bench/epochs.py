"""The picture of whole epochs: ours and others', and what they are spent on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from rest_triton.training.plots import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION

from .bars import AXIS, TOP, grouped
from .canvas import SMALL, TEXT, TIMES, Rows, behind, legend, remark, sheet, times, whisker
from .loading import duration
from .results import Record

YELLOW, GREY = "#F0E442", "#bbbbbb"  # the former of the same palette
PARTS = {
    "data": SKY, "aggregate": GREEN, "dense": BLUE, "activate": YELLOW, "history": PURPLE, "refresh": ORANGE,
    "optimizer": VERMILION, "other": GREY,
}  # fmt: skip
WHOLE = "#6f7f8f"  # an epoch that was not split up
TALL = 0.2  # inches of a bar: numbers stand in it


def of_epochs(records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.bench == "epoch" and r.mode in ("epoch", "part", "overhead")]


def epochs(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """Times relative to ours, each bar divided by the parts of that epoch where they were measured."""
    modes = grouped(of_epochs(records), lambda r: r.mode)
    parts = grouped(modes.get("part", []), lambda r: r.case)
    overheads = {r.case: r.seconds for r in modes.get("overhead", []) if r.seconds}
    rows = Rows()
    placed: list[tuple[float, Record, Record | None, list[Record]]] = []
    for case, group in grouped(modes.get("epoch", []), lambda r: r.case).items():
        ours = next((r for r in group if r.what == "ours"), None)
        empty = overheads.get(case)
        detail = f"Python and dispatch, the same steps without data: {duration(empty)}" if empty else ""
        if empty and ours is not None and ours.seconds:
            detail += f", {100 * empty / ours.seconds:.1f} % of ours"
        rows.heading(case, detail)
        for r in sorted(group, key=lambda r: r.what != "ours"):
            spent = parts.get(case if r.what == "ours" else f"{case} ({r.what})", [])
            placed.append((rows.row(r.what, 1, TALL)[0], r, ours, spent))
    if not placed:
        return None
    note = (
        "Best of interleaved epochs, evaluation not counted; thin lines: up to the median epoch. "
        "Numbers in bars: a part's share of its epoch, in percent; shares are of an epoch in which every op was timed."
    )
    made = sheet("An epoch of training, and what it is spent on", TOP + rows.height + AXIS, machine, note)
    panel = rows.panel(made, TOP)
    ends = [1.0]
    for y, record, ours, _ in placed:
        if not record.seconds or ours is None or not ours.seconds:
            why = f"{duration(record.seconds)}, ours has no right result" if record.seconds else record.note
            remark(panel, y, why or "no right result")
            continue
        ratio = record.seconds / ours.seconds
        high = ratio * (1 + (record.noise or 0))
        ends.append(high)
        panel.barh(y, ratio, TALL * 0.86, color=WHOLE)
        whisker(panel, ratio, high, y)
        behind(panel, high, y, duration(record.seconds) + ("" if record is ours else f", {times(ratio)} ours"))
    panel.set_xlim(0, max(ends) * 1.32)
    for y, record, ours, spent in placed:
        if record.seconds and ours is not None and ours.seconds:
            _divided(panel, y, record.seconds / ours.seconds, spent)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {TIMES}"))
    panel.set_xlabel("time relative to ours", fontsize=TEXT, color=INK)
    shown = {r.what for *_, spent in placed for r in spent if r.seconds}
    colors = {part: color for part, color in PARTS.items() if part in shown}
    colors |= {"not split up": WHOLE} if any(not spent for *_, spent in placed) else {}
    legend(made, [Patch(color=color, label=name) for name, color in colors.items()], max(1, len(colors)))
    return made


def _divided(panel: Axes, y: float, length: float, parts: Sequence[Record]) -> None:
    """The parts over the bar, with their shares where there is room."""
    total = sum(r.seconds or 0 for r in parts)
    room = 0.035 * panel.get_xlim()[1]  # of two digits
    order, left = list(PARTS), 0.0
    for record in sorted(parts, key=lambda r: order.index(r.what) if r.what in order else len(order)):
        share = (record.seconds or 0) / total if total else 0.0
        color = PARTS.get(record.what, GREY)
        panel.barh(y, share * length, TALL * 0.86, left=left, color=color, edgecolor="white", linewidth=0.4)
        if share * length >= room:
            ink = "white" if color in (BLUE, VERMILION, GREEN) else INK
            middle = left + share * length / 2
            panel.text(middle, y, f"{100 * share:.0f}", ha="center", va="center_baseline", fontsize=SMALL, color=ink)
        left += share * length
