"""Tables in mapped files: room for them is reserved, and they are removed with their history."""

import errno
import os
from pathlib import Path

import pytest
import torch

from rest_triton.history import disk
from rest_triton.history.history import History
from rest_triton.history.table import Rows
from rest_triton.sampling.batch import ClusterBatches
from rest_triton.utils.errors import UserError

NODES = 50
FILES = ["input-0.rows", "input-0.stamps", "input-1.rows", "input-1.stamps"]
ALL = ClusterBatches(torch.tensor([0, NODES]), 1).batch([0])


def tables(folder: Path, num_nodes: int = NODES, dtype: torch.dtype = torch.float32) -> History:
    return History(num_nodes, (3, 5), place="disk", folder=folder, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_in_the_files_while_they_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.chdir(tmp_path)
    history = tables(Path("new/folder"), dtype=dtype)
    monkeypatch.chdir("/")  # the folder is the one that was meant
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    values = torch.randn(NODES, 5)
    history.push(1, ALL, values, 4)
    history.streams.finish()
    raw = torch.frombuffer(bytearray((folder / "input-1.rows").read_bytes()), dtype=dtype).view(NODES, 5)
    stamps = torch.frombuffer(bytearray((folder / "input-1.stamps").read_bytes()), dtype=torch.int32)
    assert torch.equal(raw, values.to(dtype)) and stamps.tolist() == [4] * NODES
    history.close()
    assert not folder.exists()


def test_files_of_an_earlier_run_are_replaced(tmp_path: Path) -> None:
    """One that was killed leaves them."""
    left = tables(tmp_path)
    left.push(0, ALL, torch.ones(NODES, 3), 1)
    left.streams.finish()
    again = tables(tmp_path, num_nodes=7)
    assert (tmp_path / "input-0.rows").stat().st_size == 7 * 3 * 4
    assert again.tables[0].rows.count_nonzero() == 0 and again.stamp(0).tolist() == [-1] * 7
    again.close()


def test_closing_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    history = tables(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    history.close()
    history.close()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_closed_table_that_is_still_held(tmp_path: Path) -> None:
    """The memory is that of the file, which has no name any more, until the last tensor is gone."""
    history = tables(tmp_path)
    history.push(0, ALL, torch.full((NODES, 3), 2.0), 1)
    history.streams.finish()
    kept = history.tables[0].rows[3:5]
    history.close()
    assert kept.tolist() == [[2.0] * 3] * 2

    def mapped() -> bool:
        return str(tmp_path / "input-0.rows") in Path("/proc/self/maps").read_text()

    assert mapped()
    del kept, history
    assert not mapped()


def test_rows_are_fetched_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "CHUNK_BYTES", 100)  # five rows of 20 bytes
    history = tables(tmp_path)
    values, nodes = torch.randn(NODES, 5), torch.randperm(NODES)[:23]
    history.push(1, ALL, values, 1)
    found: Rows = history.pull(1, nodes)
    assert not found.in_place and torch.equal(found.rows, values[nodes])
    assert torch.equal(history.read(1, nodes), values[nodes])
    history.close()


def test_a_failed_write_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write of the thread is raised by the next wait for it, and nothing more is written."""
    history = tables(tmp_path)

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(history.tables[0], "write", fail)
    history.push(0, ALL, torch.ones(NODES, 3), 1)
    with pytest.raises(RuntimeError, match=r"writing to disk failed: .*the disk is broken; what is on disk is not"):
        history.pull(0, torch.arange(3))
    with pytest.raises(RuntimeError, match="writing to disk failed"):
        history.close()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is made; or, where another process was faster, with nothing left."""
    said = r"run needs 37\d{3}\.\d GiB for history tables, \d+\.\d \w+ are free; free some, put --run-dir on another disk"
    with pytest.raises(UserError, match=said):
        tables(tmp_path / "new" / "run", num_nodes=10**12)
    assert not list(tmp_path.rglob("input*"))
    reserve, sizes = os.posix_fallocate, []

    def full(descriptor: int, begin: int, size: int) -> None:
        sizes.append(size)
        if len(sizes) == 2:
            raise OSError(errno.ENOSPC, "full")
        reserve(descriptor, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"run needs .* for history tables"):
        tables(tmp_path / "new" / "run")
    assert not list(tmp_path.rglob("input*")) and sizes == [600, 200]


def test_room_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system does not reserve, files are there all the same."""
    history = tables(tmp_path, num_nodes=10_000)
    assert sum((tmp_path / name).stat().st_blocks for name in FILES) * 512 >= 10_000 * 4 * (3 + 5 + 2)
    history.close()

    def refuse(*args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    history = tables(tmp_path / "sparse")
    history.push(0, ALL, torch.ones(NODES, 3), 1)
    assert torch.equal(history.read(0, ALL.rows), torch.ones(NODES, 3))
    history.close()
