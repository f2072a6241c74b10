"""Pictures of ops: how long the alternatives take, and how much of what the machine can do ours reach."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from rest_triton.training.plots import BLUE, INK, LINE, ORANGE, SKY, VERMILION

from .canvas import BAR, BARS, TEXT, TIMES, Rows, behind, beside, legend, remark, sheet, times, whisker
from .loading import duration, is_ours, is_scale
from .results import Record

MODES = {"forward": SKY, "backward": ORANGE, "both": BLUE}
NOT_OPS = ("epoch", "frequency", "growth")
AXIS, TOP = 0.48, 0.75  # inches: numbers and name of a horizontal axis; title and legend
NAME, NAMES = 40, 0.53  # characters of an alternative's name, and at what share of the panel it stands


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """In the order in which they were measured."""
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def of_ops(records: Iterable[Record]) -> list[Record]:
    """Those of ops that were measured beside an alternative: "ours" and these, not what the machine can do at best, nor what
    is there for scale, nor other things of ours."""
    candidates = [r for r in records if r.bench not in NOT_OPS and r.mode in MODES]
    candidates = [r for r in candidates if r.what == "ours" or (not is_ours(r) and not is_scale(r))]
    kept = {(r.bench, r.case) for r in candidates if r.what != "ours"}
    return [r for r in candidates if (r.bench, r.case) in kept]


def ops(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """For each op and case the fastest alternative's time, as a multiple of ours."""
    rows = Rows()
    bars: list[tuple[float, Record, Record]] = []
    words: list[tuple[float, str]] = []
    for bench, of_bench in grouped(of_ops(records), lambda r: r.bench).items():
        rows.heading(bench)
        for case, group in grouped(of_bench, lambda r: r.case).items():
            ours = {r.mode: r for r in group if r.what == "ours" and r.seconds}
            modes = [mode for mode in MODES if any(r.mode == mode for r in group)]
            for mode, y in zip(modes, rows.row(case, len(modes)), strict=True):
                others = [r for r in group if r.what != "ours" and r.mode == mode and r.seconds]
                if mode in ours and others:
                    bars.append((y, ours[mode], min(others, key=lambda r: r.seconds or 0)))
                else:
                    none = "no alternative has a right result" if mode in ours else "ours has no right result"
                    words.append((y, f"{mode}: {none}"))
    if not rows.height:
        return None
    note = (
        f"Best of interleaved rounds; 1 {TIMES} is ours, what reaches to the left is faster than ours. Logarithmic axis. "
        "Thin lines: best round of the one to median round of the other. Only alternatives whose result was right."
    )
    made = sheet("Time of the fastest alternative, as a multiple of ours", TOP + rows.height + AXIS, machine, note)
    panel = rows.panel(made, TOP)
    ends = [1.0]
    for y, mine, other in bars:
        ratio = _ratio(other, mine)
        low, high = ratio / (1 + (mine.noise or 0)), ratio * (1 + (other.noise or 0))
        panel.barh(y, ratio - 1, BAR * 0.86, left=1, color=MODES[other.mode])
        whisker(panel, low, high, y)
        behind(panel, max(high, 1), y, times(ratio))
        beside(panel, NAMES, y, other.what if len(other.what) <= NAME else f"{other.what[: NAME - 1]}…")
        ends += [low, high]
    for y, text in words:
        remark(panel, y, text)
    _relative(panel, rows, min(ends), max(3.0, *ends), 1 - NAMES + 0.09)
    _legend(made, [other.mode for _, _, other in bars])
    return made


def alternatives(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """For each op every alternative: the mean over the cases, and a dot for each case."""
    rows = Rows()
    bars: list[tuple[float, str, list[float]]] = []
    words: list[tuple[float, str]] = []
    for bench, group in grouped(of_ops(records), lambda r: r.bench).items():
        ours = {(r.case, r.mode): r for r in group if r.what == "ours" and r.seconds}
        spans = [duration(pick(r.seconds or 0 for r in ours.values())) for pick in (min, max)] if ours else ["not measured"]
        cases = len({r.case for r in group})
        rows.heading(bench, f"{cases} case{'s' * (cases > 1)}; ours: {' to '.join(dict.fromkeys(spans))}")
        for what, others in grouped((r for r in group if r.what != "ours"), lambda r: r.what).items():
            found: dict[str, list[float]] = {}
            failed: dict[str, int] = {}
            for r in sorted(others, key=lambda r: list(MODES).index(r.mode)):
                if r.seconds and (r.case, r.mode) in ours:
                    found.setdefault(r.mode, []).append(_ratio(r, ours[r.case, r.mode]))
                else:
                    why = "ours has no right result" if r.seconds else r.note or "no right result"
                    failed[why] = failed.get(why, 0) + 1
            texts = [f"{count} of {len(others)}: {why}" for why, count in failed.items()]
            places = rows.row(what, len(found) + len(texts))
            bars += [(y, *item) for y, item in zip(places, found.items(), strict=False)]
            words += zip(places[len(found) :], texts, strict=True)
    if not rows.height:
        return None
    note = (
        f"1 {TIMES} is ours, what reaches to the left is faster than ours. Logarithmic axis. Bars: geometric mean over the "
        "cases that were measured and right; dots: each case."
    )
    made = sheet("Time of every alternative, as a multiple of ours", TOP + rows.height + AXIS, machine, note)
    panel = rows.panel(made, TOP)
    for y, mode, ratios in bars:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        panel.barh(y, mean - 1, BAR * 0.86, left=1, color=MODES[mode])
        dots: dict[str, Any] = dict(linestyle="none", marker="o", markersize=3.2, markeredgewidth=0.5, zorder=3)
        if len(ratios) > 1:
            panel.plot(ratios, [y] * len(ratios), color=INK, markeredgecolor="white", **dots)
        behind(panel, max(1.0, mean, *ratios), y, times(mean))
    for y, text in words:
        remark(panel, y, text)
    ends = [1.0, 3.0, *(ratio for _, _, ratios in bars for ratio in ratios)]
    _relative(panel, rows, min(ends), max(ends), 0.13)
    _legend(made, [mode for _, mode, _ in bars])
    return made


def _ratio(other: Record, mine: Record) -> float:
    return (other.seconds or 0) / (mine.seconds or 1)


def _relative(panel: Axes, rows: Rows, low: float, high: float, free: float) -> None:
    """A logarithmic axis of times, with a share of it left free on the right for what is written there."""
    panel.set_xscale("log")
    low /= 1.15
    panel.set_xlim(low, low * (high / low) ** (1 / (1 - free)))
    panel.vlines([1] * len(rows.spans), *zip(*rows.spans, strict=True), color=INK, linewidth=1.2, zorder=4)
    decade = BARS * (1 - free) / math.log10(high / low)  # inches
    steps = (1, 2, 5) if decade > 1.3 else (1, 3) if decade > 0.8 else (1,)
    ticks = [step * 10.0**power for power in range(-4, 5) for step in steps]
    panel.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= 1.05 * high]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {TIMES}"))
    panel.set_xlabel("time relative to ours", fontsize=TEXT, color=INK)


def _legend(made: Figure, modes: Iterable[str]) -> None:
    shown = sorted(set(modes), key=lambda mode: (list(MODES).index(mode) if mode in MODES else len(MODES), mode))
    legend(made, [Patch(color=MODES.get(mode, LINE), label=mode) for mode in shown], max(1, len(shown)))


def of_roofline(records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.what == "ours" and r.of_ceiling is not None]


def roofline(records: Sequence[Record], machine: Mapping[str, Any]) -> Figure | None:
    """The share of its ceiling that each of our ops reaches."""
    rows = Rows()
    bars: list[tuple[float, Record]] = []
    known = of_roofline(records)
    letters = {name: chr(ord("a") + n) for n, name in enumerate(dict.fromkeys(r.ceiling_name for r in known))}
    for bench, group in grouped(known, lambda r: r.bench).items():
        rows.heading(bench)
        for case, modes in grouped(group, lambda r: r.case).items():
            bars += zip(rows.row(case, len(modes)), modes, strict=True)
    if not bars:
        return None
    ceilings = "; ".join(f"({letter}) {name or 'not named'}" for name, letter in letters.items())
    note = (
        "Bytes that an op has to move, by formula, over its best time. Thin lines: best to median round. Ceilings, "
        f"measured on this machine beside the op: {ceilings}."
    )
    heading = "Bandwidth of our ops, as a share of what this machine reaches"
    made = sheet(heading, TOP + rows.height + AXIS, machine, note)
    panel = rows.panel(made, TOP)
    for y, record in bars:
        share = record.of_ceiling or 0
        panel.barh(y, share, BAR * 0.86, color=MODES.get(record.mode, LINE))
        whisker(panel, share / (1 + (record.noise or 0)), share, y)
        panel.plot([1, 1], [y - BAR / 2, y + BAR / 2], color=VERMILION, linewidth=2.5, zorder=4, solid_capstyle="butt")
        rates = f"{record.gbps or 0:.1f} of {record.ceiling or 0:.1f} GB/s ({letters[record.ceiling_name]})"
        behind(panel, max(share, 1), y, f"{100 * share:.0f} %: {rates}")
    most = max(1.0, *(record.of_ceiling or 0 for _, record in bars))
    panel.set_xlim(0, most * 1.5)
    panel.xaxis.set_major_locator(FixedLocator([tick / 4 for tick in range(int(4 * most) + 1)]))
    panel.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    panel.set_xlabel("share of the ceiling (mark at 100 %)", fontsize=TEXT, color=INK)
    _legend(made, [record.mode for _, record in bars])
    return made
