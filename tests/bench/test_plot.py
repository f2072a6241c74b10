"""Pictures of made-up results."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from bench import plot
from bench.bars import alternatives, ops, roofline
from bench.canvas import balanced
from bench.curves import frequency, growth, plain
from bench.epochs import PARTS, epochs
from bench.results import Record, read

from .records import (
    CASES,
    COPYING,
    MACHINE,
    MODEL,
    READING,
    all_records,
    of_epochs,
    of_frequency,
    of_growth,
    of_ops,
    written,
)

PNG = b"\x89PNG\r\n\x1a\n"


def drawn(name: str, records: Sequence[Record] | None = None) -> Figure:
    figure = plot.PICTURES[name](all_records() if records is None else records, MACHINE)
    assert figure is not None
    FigureCanvasAgg(figure).draw()
    return figure


def texts(figure: Figure) -> list[Text]:
    """All that can be read in it. Matplotlib also keeps numbers for places that an axis does not reach."""
    found = [*figure.texts]
    for legend in (*figure.legends, *(panel.get_legend() for panel in figure.axes)):
        found += legend.get_texts() if legend else []
    for panel in (panel for panel in figure.axes if panel.axison):
        found += [*panel.texts, panel.xaxis.label, panel.yaxis.label]
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_visible() and text.get_text()]


def words(figure: Figure) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in texts(figure)]


def bars(figure: Figure) -> list[tuple[float, float]]:
    """(from, to) of every bar, from the top down."""
    found = [patch for panel in figure.axes for patch in panel.patches]
    found.sort(key=lambda bar: (round(bar.get_y(), 3), bar.get_x()))
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in found]


def test_each_picture_is_drawn_from_records_of_its_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "some", all_records())
    assert plot.main([path, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for name in plot.PICTURES:
        data = (tmp_path / "out" / name).read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data[:8] == PNG and width == 1660 and 400 < height < 4000
        assert str(tmp_path / "out" / name) in said
    assert "no picture" not in said and "no records" not in said


def test_the_records_lie_beside_the_pictures(tmp_path: Path) -> None:
    records = of_frequency()
    path = written(tmp_path / "some", records)
    plot.main([path, "--out", str(tmp_path / "out")])
    assert read(tmp_path / "out" / "results.json") == (MACHINE, records)
    assert (tmp_path / "out" / "results.csv").read_text() == (tmp_path / "some.csv").read_text()
    plot.main([str(tmp_path / "out" / "results.json"), "--out", str(tmp_path / "out")])  # draw again from these
    assert read(tmp_path / "out" / "results.json") == (MACHINE, records)


@pytest.mark.parametrize(
    "records, names",
    [
        (of_ops(), {"ops.png", "alternatives.png", "roofline.png"}),
        (of_epochs(), {"epochs.png"}),
        (of_frequency(), {"frequency.png"}),
        (of_growth(), {"growth.png"}),
    ],
)
def test_pictures_without_records_are_left_out_and_named(tmp_path: Path, records: list[Record], names: set[str]) -> None:
    old = tmp_path / sorted(set(plot.PICTURES) - names)[0]
    old.write_bytes(b"old")
    said = plot.draw(tmp_path, MACHINE, records)
    assert {path.name for path in tmp_path.glob("*.png")} == names | {old.name}
    assert old.read_bytes() == b"old"
    for name in set(plot.PICTURES) - names:
        assert any(line.startswith(f"{name}: no records") for line in said)
    assert [line for line in said if "another session" in line] == [line for line in said if line.startswith(old.name)]


def test_records_in_no_picture_are_told(tmp_path: Path) -> None:
    built = Record("graph", "20 million edges", "ours", "build", 0.2)
    unrelated = Record("frequency", "a case", "ours", "epoch", 2.0, x=1)
    said = plot.draw(tmp_path, MACHINE, [*of_frequency(), built, unrelated])
    assert said[-1] == "2 records are in no picture: graph (build), frequency (epoch)"


@pytest.mark.parametrize("name", plot.PICTURES)
def test_each_picture_says_where_it_is_from(name: str) -> None:
    foot = next(text for text in words(drawn(name)) if "commit" in text)
    for part in ("A Processor, 2 cores, 2 threads", "torch 2.13.0", "commit abc1234", "malloc: as it comes", "2026-11-18"):
        assert part in foot


def long(records: Iterable[Record]) -> list[Record]:
    """With names as long as nobody should give them."""
    name = "a name that goes on and on, with dtypes, widths, a weight per edge and what else there is"
    return [
        replace(r, case=f"{r.case}, {name}", what=r.what if "ours" in r.what else f"{r.what} {name}", note=4 * name)
        if r.bench not in ("growth", "epoch") else r
        for r in records
    ]  # fmt: skip


@pytest.mark.parametrize("name", plot.PICTURES)
@pytest.mark.parametrize("change", [list, long])
def test_nothing_overlaps_or_is_cut_off(name: str, change: Any) -> None:
    figure = drawn(name, change(all_records()))
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text
    for (one, a), (other, b) in combinations(boxes, 2):
        across, up = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        # A box has room for letters that reach further up and down than those in it do.
        assert across <= 1 or up <= 0.2 * min(a.height, b.height), f"{one!r} is over {other!r}"


def test_ops_are_compared_with_the_fastest_alternative() -> None:
    less = Record("scatter_rows", "60,000 rows", "ours, without stamps", "forward", 0.001, 0.1)
    figure = drawn("ops.png", [*all_records(), less])
    # By mode: twice as long on the first case, three times on the second; then activate, and scatter_rows, which is slower.
    wanted = [(1, 2)] * 3 + [(1, 3)] * 3 + [(1, 10), (0.75, 1)]
    found = [tuple(sorted(bar)) for bar in bars(figure)]
    assert found == [pytest.approx(pair) for pair in wanted]
    said = words(figure)
    assert said.count("pull + cat + CSR @ dense, int64") == 3 and said.count("pull + cat + sparse.mm(sum), int64") == 3
    assert "10 \N{MULTIPLICATION SIGN}" in said and "0.75 \N{MULTIPLICATION SIGN}" in said
    assert not any("limit" in text or "for scale" in text for text in said)
    assert figure.axes[0].get_xscale() == "log"


def test_an_op_without_a_right_result_has_words_instead_of_a_bar() -> None:
    records = [replace(r, seconds=None) if r.bench == "activate" and r.what == "ours" else r for r in of_ops()]
    assert "both: ours has no right result" in words(drawn("ops.png", records))
    records = [replace(r, seconds=None) if r.bench == "activate" and r.what != "ours" else r for r in of_ops()]
    assert "both: no alternative has a right result" in words(drawn("ops.png", records))


def test_every_alternative_has_its_mean_and_its_failures() -> None:
    figure = drawn("alternatives.png")
    by_csr, by_sum = 8**0.5, 3.0
    assert [tuple(sorted(bar)) for bar in bars(figure)] == [
        pytest.approx((1, value)) if value > 1 else pytest.approx((value, 1))
        for value in (*[by_csr] * 3, *[by_sum] * 3, 10, 0.75)
    ]
    dots = [sorted(line.get_xdata()) for line in figure.axes[0].lines]
    assert dots == [pytest.approx([2, 4])] * 3 + [pytest.approx([3, 3])] * 3
    assert "1 of 1: WRONG: both is off by 3.0e-01" in words(figure)
    assert "2 cases; ours: 10.0 ms" in words(figure)


def test_the_roofline_shows_shares_of_ceilings() -> None:
    figure = drawn("roofline.png")
    assert [bar[1] for bar in bars(figure)] == pytest.approx([0.7] * 6 + [25 / 36, 1.25])
    said = words(figure)
    assert any(f"(a) {READING}; (b) {COPYING}." in text for text in said)
    assert said.count("70 %: 28.0 of 40.0 GB/s (a)") == 6
    assert "125 %: 25.0 of 20.0 GB/s (b)" in said  # a ceiling that was exceeded is shown as such
    assert said.count(CASES[0]) == 1
    assert roofline([replace(r, ceiling=None) for r in all_records()], MACHINE) is None


def test_epochs_are_divided_where_their_parts_are_known() -> None:
    figure = drawn("epochs.png")
    found = bars(figure)
    wholes = [bar for bar in found if bar in ((0, pytest.approx(1)), (0, pytest.approx(1.3)), (0, pytest.approx(3)))]
    assert len(wholes) == 3 and len(found) == 3 + 2 * 5
    ends = [0.1, 0.3, 0.8, 0.9, 1.0]
    parts = [bar[1] for bar in found if bar not in wholes]
    assert parts == pytest.approx([*ends, *(3 * end for end in ends)])
    said = words(figure)
    assert "1.30 s" in said and "3.90 s, 3.0 \N{MULTIPLICATION SIGN} ours" in said
    assert any("without data: 13.0 ms, 1.0 % of ours" in text for text in said)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["data", "aggregate", "dense", "activate", "other", "not split up"] and set(legend[:-1]) < set(PARTS)


def test_an_epoch_that_failed_has_words_instead_of_a_bar() -> None:
    failed = Record("epoch", MODEL, "another", "epoch", None, note="not run: out of memory")
    assert "not run: out of memory" in words(drawn("epochs.png", [*of_epochs(), failed]))


def test_frequencies_are_relative_to_none() -> None:
    figure = drawn("frequency.png")
    curve = figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [0, 1, 2, 3] and list(curve.get_ydata()) == pytest.approx([1, 1.25, 1.5, 1.75])
    assert figure.axes[0].get_ylim()[0] == 0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [MODEL]
    assert frequency(of_frequency()[1:], MACHINE) is None  # there is nothing to be relative to


def test_growth_has_slopes() -> None:
    figure = drawn("growth.png")
    named = {panel.get_xlabel() + " " + panel.get_ylabel(): panel for panel in figure.axes if panel.axison}
    slopes = {name: [text.get_text() for text in panel.get_legend().get_texts()] for name, panel in named.items()}
    assert slopes == {
        "edges time (seconds)": ["ours: slope 1.00 ± 0.00"],
        "edges memory (GiB)": ["ours: slope 0.50 ± 0.00"],
        "clusters in a batch time (seconds)": ["ours: slope 0.00 ± 0.00"],
    }
    for panel in named.values():
        assert panel.get_xscale() == panel.get_yscale() == "log"
    labels = [label.get_text() for label in named["edges time (seconds)"].get_xticklabels()]
    assert labels == ["1M", "4M", "16M", "64M"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert [picture([], MACHINE) for picture in (ops, alternatives, roofline, epochs, frequency, growth)] == [None] * 6


def test_plain_numbers_and_balanced_lines() -> None:
    assert [plain(v) for v in (0.05, 1, 512, 4000, 25e4, 2.5e6, 3e9)] == ["0.05", "1", "512", "4000", "250k", "2.5M", "3G"]
    assert balanced("one two three four five", 20) == ["one two three", "four five"]
    assert balanced("", 20) == [] and balanced("a" * 25, 20) == ["a" * 20, "a" * 5]


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    good = written(tmp_path / "some", of_frequency())
    for arguments, told in (
        ([str(tmp_path / "none.json")], "none.json is not there; pytest bench/ --benchmark-only"),
        ([str(blocked)], "does not hold results"),
        ([good, "--out", str(blocked / "out")], "cannot be written"),
    ):
        with pytest.raises(SystemExit) as left:
            plot.main(arguments)
        said = capsys.readouterr()
        assert left.value.code == 2 and told in said.err and said.err.count("\n") == 1 and not said.out
