"""Tables that are only read: written once, whole or absent, and checked when they are opened."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rest_triton.history import constant
from rest_triton.history.constant import Storage
from rest_triton.history.table import Table
from rest_triton.utils.errors import UserError

CPU = torch.device("cpu")
ROWS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))


def made(storage: Storage, rows: Tensor = ROWS, calls: list[int] | None = None) -> Table:
    def pieces() -> Iterator[Tensor]:
        for piece in rows.split(4):
            if calls is not None:
                calls.append(len(piece))
            yield piece

    return storage.table("rows", (rows.shape[0], rows.shape[1]), pieces(), CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", ["device", "pinned", "disk"])
def test_the_same_rows_in_every_place(place: str, dtype: torch.dtype, tmp_path: Path) -> None:
    table = made(Storage(place, dtype, tmp_path))
    assert torch.equal(table.rows, ROWS.to(dtype)) and table.in_place == (place != "disk")
    out, nodes = torch.empty(4, 3), torch.tensor([7, 0, 9, 7])
    table.fetch(nodes, out)
    assert torch.equal(out, ROWS.to(dtype)[nodes].float())


def test_a_file_is_written_once_and_stays(tmp_path: Path) -> None:
    storage, calls = Storage("disk", folder=tmp_path / "features-1"), list[int]()
    made(storage, calls=calls).close()
    again = made(storage, calls=calls)
    assert calls == [4, 4, 2] and torch.equal(again.rows, ROWS)
    assert sorted(p.name for p in storage.folder.iterdir()) == ["rows-float32.json", "rows-float32.rows"]
    made(Storage("disk", torch.float16, storage.folder), calls=calls)
    assert len(calls) == 6 and len(list(storage.folder.iterdir())) == 4


def test_tables_without_rows_or_columns(tmp_path: Path) -> None:
    for shape in ((0, 3), (4, 0)):
        storage = Storage("disk", folder=tmp_path / str(shape[0]))
        assert made(storage, torch.empty(shape)).rows.shape == made(storage, torch.empty(shape)).rows.shape == shape


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "cut": lambda f: f.write_bytes(f.read_bytes()[:-8]),
    "flipped": flip,
    "lost": lambda f: f.unlink(),
    "other-shape": lambda f: f.with_suffix(".json").write_text(json.dumps(dict(shape=[3, 10], dtype="float32", crc=0))),
    "no-description": lambda f: f.with_suffix(".json").unlink(),
    "cut-description": lambda f: f.with_suffix(".json").write_text("{"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_written_again(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage, calls = Storage("disk", folder=tmp_path), list[int]()
    made(storage)
    DAMAGE[kind](tmp_path / "rows-float32.rows")
    assert torch.equal(made(storage, calls=calls).rows, ROWS) and calls == [4, 4, 2]
    assert ("rows-float32.rows" in capsys.readouterr().err) == (kind != "no-description")


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[Tensor]:
        yield ROWS[:4]
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Storage("disk", folder=tmp_path).table("rows", (10, 3), pieces(), CPU)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["device", "disk"])
@pytest.mark.parametrize("value", [65_505.0, -1e6, float("inf"), float("nan")])
def test_values_that_float16_cannot_hold(value: float, place: str, tmp_path: Path) -> None:
    rows = ROWS.clone()
    rows[6, 1] = rows[8, 0] = value
    with pytest.raises(
        UserError, match=r"^row 6 of rows .* has .*; float16 holds finite values up to 65,504; give --feature"
    ):
        made(Storage(place, torch.float16, tmp_path), rows)
    rows[rows.abs() > 3] = 65_504.0
    assert place == "disk" or made(Storage(place, torch.bfloat16), rows).rows.dtype == torch.bfloat16
    assert list(tmp_path.iterdir()) == []
    assert float(made(Storage(place, torch.float16, tmp_path), rows.nan_to_num(65_504.0)).rows[6, 1]) == 65_504


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = constant.require_room.__globals__["shutil"].disk_usage(tmp_path)
    monkeypatch.setattr("rest_triton.history.disk.shutil.disk_usage", lambda folder: usage._replace(free=100))
    with pytest.raises(
        UserError, match=r"needs .* for features, .*; free some, put --root on another disk, or give --feature-"
    ):
        made(Storage("disk", folder=tmp_path))
