"""Results as files."""

import csv
import json
from pathlib import Path

import pytest

from bench.loading import duration, load, size
from bench.results import COLUMNS, Record, about, read, write

from .records import MACHINE, all_records


def test_json_gives_back_what_was_written(tmp_path: Path) -> None:
    as_json, as_csv = write(tmp_path / "new" / "some.json", MACHINE, all_records())
    assert (as_json.name, as_csv.name) == ("some.json", "some.csv")
    assert read(as_json) == (MACHINE, all_records())


def test_csv_has_a_line_for_each_record_with_what_follows_from_it(tmp_path: Path) -> None:
    right = Record("spmm", 'a "case", with commas', "ours", "both", 0.1, 0.05, 2_000_000_000, 40.0, "reading", 7, 1e-7, 3.0)
    wrong = Record("spmm", "a case", "theirs", "both", None, note="it is off")
    _, as_csv = write(tmp_path / "some", MACHINE, [right, wrong])
    with open(as_csv, newline="") as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == COLUMNS
    assert first["case"] == right.case and float(first["seconds"]) == 0.1
    assert float(first["gbps"]) == pytest.approx(20) and float(first["of_ceiling"]) == pytest.approx(0.5)
    assert (second["seconds"], second["gbps"], second["note"]) == ("", "", "it is off")


def test_points_of_a_curve_have_keys_of_their_own() -> None:
    points = [record.key for record in all_records()]
    assert len(set(points)) == len(points)


def test_the_machine_is_described() -> None:
    found = about(malloc="as it comes", tiny=False)
    assert found["threads"] >= 1 and found["processor"] and found["commit"] and found["versions"]["torch"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "does not hold results"),
        ("[]", "does not hold results"),
        ("{}", "does not hold results"),
        ('{"machine": {}, "records": [{"bench": "spmm"}]}', "does not hold results"),
        ('{"machine": {}, "records": [{"nobody": "knows it"}]}', "does not hold results"),
        ('{"machine": 7, "records": []}', "names no machine but 7"),
        ('{"machine": {}, "records": []}', "holds no records"),
        (
            '{"machine": {}, "records": [{"bench": "b", "case": "c", "what": "w", "mode": "m", "seconds": "fast"}]}',
            "holds 'fast' where a number belongs",
        ),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=told) as refused:
        load(path)
    assert str(path) in str(refused.value) and "; " in str(refused.value)


def test_times_and_sizes_have_three_digits() -> None:
    assert [duration(s) for s in (0.75e-3, 0.0544, 0.99999, 1.3, 123.4, 1234.5)] == [
        "750 µs", "54.4 ms", "1.00 s", "1.30 s", "123 s", "1234 s",
    ]  # fmt: skip
    assert [size(b) for b in (12, 2048, 3 << 20, 1 << 30)] == ["12 B", "2.00 KiB", "3.00 MiB", "1.00 GiB"]


def test_tiny_shapes_are_neither_drawn_nor_compared(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "some.json", MACHINE | {"tiny": True}, all_records())
    with pytest.raises(ValueError, match=r"some.json is of tiny shapes.*--benchmark-only"):
        load(path)
