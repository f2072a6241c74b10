"""What changed between two sessions."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.compare import Change, compare, lines, main, warnings
from bench.loading import is_ours
from bench.results import Record

from .records import MACHINE, MODEL, all_records, written

OURS = Record("spmm", "a case", "ours", "forward", 1.0, 0.0)


def kind(a: Record, b: Record) -> str:
    return Change(a, b).kind


@pytest.mark.parametrize(
    "seconds, noise_a, noise_b, found",
    [
        (1.04, 0.0, 0.0, "unchanged"),
        (1.06, 0.0, 0.0, "worse"),  # beyond 5 %
        (0.96, 0.0, 0.0, "unchanged"),
        (0.94, 0.0, 0.0, "better"),
        (1.19, 0.1, 0.0, "unchanged"),  # within twice the noise of A
        (1.19, 0.0, 0.1, "unchanged"),  # and of B
        (1.21, 0.1, 0.02, "worse"),
        (1 / 1.19, 0.1, 0.1, "unchanged"),
        (1 / 1.21, 0.1, 0.1, "better"),
        (1.06, None, None, "worse"),  # noise that was not measured is none
        (None, 0.0, 0.0, "became wrong"),
    ],
)
def test_a_change_is_one_beyond_noise(
    seconds: float | None, noise_a: float | None, noise_b: float | None, found: str
) -> None:
    assert kind(replace(OURS, noise=noise_a), replace(OURS, seconds=seconds, noise=noise_b)) == found


def test_wrong_results_are_no_times() -> None:
    wrong = replace(OURS, seconds=None, note="it is off")
    assert kind(wrong, OURS) == "became right"
    assert kind(wrong, wrong) == "wrong in both"
    assert "it is off" in str(Change(OURS, wrong))
    assert compare([OURS], [wrong]).regressed and not compare([wrong], [OURS]).regressed
    theirs = replace(OURS, what="theirs")
    assert not compare([theirs], [replace(theirs, seconds=None)]).regressed


def test_nothing_at_all_is_compared_too() -> None:
    nothing = replace(OURS, seconds=0.0)
    assert kind(nothing, nothing) == "unchanged"
    assert kind(nothing, OURS) == "worse"
    assert kind(OURS, nothing) == "better"
    both = compare([OURS], [nothing])
    assert both.of("better", True) and not both.regressed


def test_memory_is_compared_by_bytes() -> None:
    point = Record("growth", "edges", "ours", "memory", 1.0, memory=1 << 30, x=1e6)
    assert kind(point, replace(point, seconds=2.0)) == "unchanged"
    larger = replace(point, memory=2 << 30)
    assert kind(point, larger) == "worse"
    assert "1.00 GiB -> 2.00 GiB" in str(Change(point, larger))


def test_points_of_a_curve_are_compared_each_with_its_own() -> None:
    before = [Record("growth", "edges", "ours", "time", 0.5 * x, x=x) for x in (1, 2, 3)]
    after = [replace(r, seconds=2 * r.seconds) if r.x == 2 else r for r in before]
    assert [change.b.x for change in compare(before, after).of("worse", True)] == [2]


def test_largest_changes_come_first_and_the_others_are_counted() -> None:
    before = [replace(OURS, case=str(n)) for n in range(5)]
    after = [replace(r, seconds=s) for r, s in zip(before, (1.5, 3.0, 0.2, 0.5, 1.0), strict=True)]
    found = compare(before, after)
    assert [change.ratio for change in found.of("worse", True)] == [3.0, 1.5]
    assert [change.ratio for change in found.of("better", True)] == [0.2, 0.5]
    assert "1 unchanged" in lines(found)


def test_records_of_one_side_are_listed() -> None:
    found = compare([OURS, replace(OURS, case="old")], [OURS, replace(OURS, case="new")])
    assert [r.case for r in found.only_a] == ["old"] and [r.case for r in found.only_b] == ["new"]
    assert not found.regressed


def test_of_a_thing_measured_twice_the_better_one_counts() -> None:
    found = compare([OURS], [replace(OURS, seconds=3.0), OURS, replace(OURS, seconds=None)])
    assert [change.kind for change in found.changes] == ["unchanged"]


def test_alternatives_decide_nothing_but_show_the_machine() -> None:
    theirs, limit = replace(OURS, what="CSR @ dense"), replace(OURS, what="limit: reading", mode="any")
    found = compare([OURS, theirs, limit], [OURS, replace(theirs, seconds=2.0), replace(limit, seconds=1.5)])
    assert not found.regressed and found.drift == pytest.approx(1.75)
    assert "not ours: 1.75 x in the median, which no commit of ours can cause" in lines(found)


def test_of_many_changes_of_others_the_largest_are_shown() -> None:
    before = [replace(OURS, what="theirs", case=str(n)) for n in range(9)]
    said = lines(compare(before, [replace(r, seconds=2.0 + n) for n, r in enumerate(before)]))
    assert "9 not ours: worse" in said and "  and 4 more" in said
    assert [line[:9] for line in said if " x  1.00 s" in line] == [f"  {n:5.2f} x" for n in (10, 9, 8, 7, 6)]


def test_whose_code_decides() -> None:
    def epoch(what: str, mode: str = "epoch", of: str = "") -> bool:
        return is_ours(Record("epoch", MODEL + of, what, mode, 1.0))

    assert epoch("ours") and epoch("ours + REST, F = 1") and epoch("full batch, ours") and not epoch("PyGAS's pipeline")
    assert epoch("dense", "part") and epoch("refresh", "part", " (ours + REST, F = 1)")
    assert epoch("Python and dispatch", "overhead") and not epoch("dense", "part", " (PyGAS's pipeline)")


def test_other_machines_are_warned_of() -> None:
    assert warnings(MACHINE, MACHINE) == []
    for name, value in (("processor", "another"), ("threads", 4), ("malloc", "freed memory kept"), ("gpu", "one")):
        (warning,) = warnings(MACHINE, MACHINE | {name: value})
        assert warning.startswith("NOT COMPARABLE") and name in warning and repr(value) in warning
    (note,) = warnings(MACHINE, MACHINE | {"versions": {"torch": "3.0"}})
    assert note == "note: torch is 2.13.0 in A and 3.0 in B"
    assert warnings(MACHINE, MACHINE | {"commit": "def5678", "time": "later"}) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a", all_records())
    slower = [replace(r, seconds=2 * r.seconds) if r.what == "ours" and r.bench == "activate" else r for r in all_records()]
    b = written(tmp_path / "b", slower, threads=4)
    assert main([a, a]) == 0
    assert "NOT COMPARABLE" not in capsys.readouterr().out
    assert main([a, b]) == 1
    said = capsys.readouterr().out
    assert "NOT COMPARABLE: threads is 2 in A and 4 in B" in said
    assert "2.00 x  20.0 ms -> 40.0 ms  activate, 84,000 x 256: ours, both  (beyond 1.20)" in said
    assert "twice the larger noise" in said and "beyond 5 %" in said
    assert main([b, a]) == 0


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a", [OURS])
    other = written(tmp_path / "b", [replace(OURS, case="another")])
    for arguments, told in (
        ([a, str(tmp_path / "none.json")], "none.json is not there"),
        ([a, str(tmp_path)], "cannot be read"),
        ([a, str(tmp_path / "a.csv")], "name the .json beside it"),
        ([a, other], "have no record in common"),
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = capsys.readouterr()
        assert left.value.code == 2 and told in said.err and said.err.count("\n") == 1 and not said.out


def test_it_runs_as_a_program_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.compare", "no.json", "none.json"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert run.returncode == 2 and run.stderr.startswith("no.json is not there") and "Traceback" not in run.stderr
