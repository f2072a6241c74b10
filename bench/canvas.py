"""What all pictures of bench/ share: their size, their look, rows of bars, and a foot that says where the numbers are from.

They are drawn on figures of their own, without pyplot, in the colours of a run's report.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from rest_triton.training.plots import GRID, INK, LINE

WIDTH, DPI = 8.3, 200  # a README is 830 pixels wide: an inch is 100 of those, drawn twice as fine
TEXT, SMALL = 9, 7.5  # points: 12 and 10 pixels
MARGIN = 0.12
FAINT = "#555555"
TIMES = "\N{MULTIPLICATION SIGN}"
LABELS = 2.75  # inches left of the bars
BARS = WIDTH - LABELS - 3 * MARGIN  # and of the panel that they are in
LABEL_WIDTH, HEADING, DETAIL, REMARK, SMALL_PRINT = 38, 90, 120, 72, 150  # characters of a line that fit
BAR, LINE_HEIGHT, GAP = 0.155, 0.155, 0.07
OVER_LINES: dict[str, Any] = dict(bbox=dict(facecolor="white", edgecolor="none", pad=1.5))  # hides those of the panel


def styled(panel: Axes, grid: Literal["both", "x"] = "both") -> Axes:
    panel.set_facecolor("white")
    panel.set_axisbelow(True)
    panel.grid(True, axis=grid, color=GRID, linewidth=0.8)
    for side, spine in panel.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    panel.tick_params(labelsize=TEXT, color=LINE, labelcolor=INK)
    return panel


def source(machine: Mapping[str, Any]) -> str:
    """Where and when it was measured."""
    known: dict[str, Any] = dict.fromkeys(("processor", "threads", "commit", "malloc", "time"), "unknown") | dict(machine)
    processor = f"{known['processor']}, {known['threads']} threads" + (f", {known['gpu']}" if known.get("gpu") else "")
    torch = (known.get("versions") or {}).get("torch", "unknown")
    parts = (processor, f"torch {torch}", f"commit {known['commit']}", f"malloc: {known['malloc']}", str(known["time"])[:10])
    return "  ·  ".join(parts)


def foot_height(machine: Mapping[str, Any], note: str) -> float:
    return 2 * MARGIN + 0.142 * len(_small_print(machine, note))


def _small_print(machine: Mapping[str, Any], note: str) -> list[str]:
    return [line for text in (note, source(machine)) for line in balanced(text, SMALL_PRINT)]


def sheet(heading: str, height: float, machine: Mapping[str, Any], note: str) -> Figure:
    """A figure with so many inches for a title and what is drawn; under that how to read it, and where it was measured."""
    made = Figure(figsize=(WIDTH, height + foot_height(machine, note)), dpi=DPI, facecolor="white")
    title(made, heading)
    small: dict[str, Any] = dict(fontsize=SMALL, color=FAINT, va="bottom", linespacing=1.35)
    made.text(MARGIN / WIDTH, MARGIN / made.get_figheight(), "\n".join(_small_print(machine, note)), **small)
    return made


def title(made: Figure, text: str, below: float = 0.0) -> None:
    """In the left corner at the top, or ``below`` inches under it."""
    place = MARGIN / WIDTH, 1 - (below + MARGIN) / made.get_figheight()
    made.text(*place, text, fontsize=11, weight="bold", color=INK, va="top")


def legend(made: Figure, handles: Sequence[Artist], columns: int, below: float = 0.38) -> None:
    """``below`` inches under the upper edge, over all panels."""
    place = MARGIN / WIDTH, 1 - below / made.get_figheight()
    tight: dict[str, Any] = dict(borderpad=0, borderaxespad=0, columnspacing=1.4, frameon=False)
    tight["handlelength"] = 1.1 if handles and isinstance(handles[0], Patch) else 2.0
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=place, ncols=columns, fontsize=TEXT, labelcolor=INK, **tight
    )


def balanced(text: str, width: int) -> list[str]:
    """As few lines as fit, of about the same length: no word is left alone on the last."""
    fewest = len(textwrap.wrap(text, width, break_on_hyphens=False))
    longest = min(width, max(map(len, text.split()), default=1))
    tried = (textwrap.wrap(text, narrow, break_on_hyphens=False) for narrow in range(longest, width + 1))
    return next(lines for lines in tried if len(lines) <= fewest)


def times(ratio: float) -> str:
    """With as many digits as a measurement on a shared machine has."""
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 1.995 else 2
    return f"{ratio:.{digits}f} {TIMES}" if ratio >= 0.095 else f"{ratio:.1g} {TIMES}"


class Rows:
    """Rows of bars under headings, from the top down, measured in inches; then the panel that they are drawn on."""

    def __init__(self) -> None:
        self.height = 0.0
        self.spans: list[tuple[float, float]] = []  # from where to where rows go
        self._texts: list[tuple[float, str, dict[str, Any]]] = []

    def heading(self, text: str, detail: str = "") -> None:
        self.height += 0.1 if self._texts else 0.0
        self._lines(text, HEADING, dict(weight="bold", fontsize=TEXT))
        if detail:
            self._lines(detail, DETAIL, dict(fontsize=TEXT - 0.5, color=FAINT))
        self.height += 0.04

    def _lines(self, text: str, width: int, style: dict[str, Any]) -> None:
        for line in textwrap.wrap(text, width):
            self._texts.append((self.height + LINE_HEIGHT / 2, line, OVER_LINES | style))
            self.height += LINE_HEIGHT

    def row(self, label: str, bars: int = 1, thickness: float = BAR) -> list[float]:
        """The middles of so many bars under each other, beside a label."""
        lines = balanced(label, LABEL_WIDTH)
        tall = max(bars * thickness, len(lines) * LINE_HEIGHT)
        middle = self.height + tall / 2
        at = dict(x=(MARGIN + LABELS - 0.08) / WIDTH, ha="right", fontsize=TEXT, linespacing=1.1)
        self._texts.append((middle, "\n".join(lines), at))
        self.spans.append((self.height - GAP / 2, self.height + tall + GAP / 2))
        self.height += tall + GAP
        return [middle + (number - (bars - 1) / 2) * thickness for number in range(bars)]

    def panel(self, made: Figure, top: float) -> Axes:
        """Beginning ``top`` inches under the figure's upper edge."""
        height = made.get_figheight()
        place = ((MARGIN + LABELS) / WIDTH, 1 - (top + self.height) / height, BARS / WIDTH, self.height / height)
        panel = styled(made.add_axes(place), "x")
        panel.set_ylim(self.height, 0)
        panel.set_yticks([])
        panel.spines["left"].set_visible(False)
        for y, text, style in self._texts:
            known: dict[str, Any] = dict(x=MARGIN / WIDTH, va="center", color=INK) | style
            at = known.pop("x")
            made.text(at, 1 - (top + y) / height, text, **known)
        return panel


def behind(panel: Axes, x: float, y: float, text: str) -> None:
    """A label right of a bar's end."""
    offset: dict[str, Any] = dict(xytext=(4, 0), textcoords="offset points", va="center_baseline")
    panel.annotate(text, (x, y), fontsize=TEXT - 0.5, color=INK, **offset)


def beside(panel: Axes, share: float, y: float, text: str) -> None:
    """In small print, at this share of the panel's width."""
    style: dict[str, Any] = dict(fontsize=SMALL, color=FAINT, va="center_baseline")
    panel.text(share, y, text, transform=panel.get_yaxis_transform(), **style)


def remark(panel: Axes, y: float, text: str) -> None:
    """Instead of a bar, over all of the panel's width; results.csv has what does not fit."""
    short = textwrap.shorten(text, REMARK, placeholder=" …")
    style: dict[str, Any] = dict(fontsize=TEXT - 0.5, color=FAINT, style="italic", va="center_baseline", zorder=5)
    panel.text(0.01, y, short, transform=panel.get_yaxis_transform(), **OVER_LINES, **style)


def whisker(panel: Axes, low: float, high: float, y: float) -> None:
    """Black with a white rim, to be seen on a bar and beside it."""
    rim = [withStroke(linewidth=2.2, foreground="white")]
    panel.plot([low, high], [y, y], color=INK, linewidth=1, solid_capstyle="butt", zorder=3, path_effects=rim)
