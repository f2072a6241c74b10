"""Tables in mapped files."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rest_triton.history import disk
from rest_triton.history.disk import DiskTables

from .tables import FILES, committed, content, edit, holds, tables


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.chdir(tmp_path)
    made = tables(Path("new/folder"), dtype=dtype)
    monkeypatch.chdir("/")
    assert [list(t.shape) for t in made.rows] == [[50, 3], [50, 5]] and {t.dtype for t in made.rows} == {dtype}
    assert {t.dtype for t in made.stamps} == {torch.int32} and [t.numel() for t in made.stamps] == [50, 50]
    assert all((t == 0).all() for t in made.rows) and all((t == -1).all() for t in made.stamps)
    assert made.committed_step is None
    made.opened()
    values = [torch.randn(t.shape).to(dtype) for t in made.rows]
    for rows, value in zip(made.rows, values, strict=True):
        rows.copy_(value)
    made.stamps[1][7] = 4
    made.commit(0)
    assert made.committed_step == 0
    made.close()
    folder = tmp_path / "new" / "folder"
    assert sorted(p.name for p in folder.iterdir()) == ["lock", *FILES[:2], *FILES[2:], "state.json"]
    raw = torch.frombuffer(bytearray((folder / "rows_2.bin").read_bytes()), dtype=dtype).view(50, 5)
    assert torch.equal(raw, values[1])
    back = tables(folder, dtype=dtype)
    assert back.committed_step == 0 and all(map(torch.equal, back.rows, values))
    assert back.stamps[1][7] == 4 and back.stamps[1].sum() == 4 - 49


def test_written_since_the_commit(tmp_path: Path) -> None:
    folder = committed(tmp_path)
    found = tables(folder)
    assert found.committed_step == 5 and holds(found, 5)
    found.opened()
    assert found.committed_step is None
    found.close()
    found = tables(folder)
    assert found.committed_step is None
    found.opened()
    found.commit(6)
    found.commit(7)
    assert found.committed_step == 7
    found.close()
    assert tables(folder).committed_step == 7
    edit(folder, clean=False)
    assert tables(folder).committed_step is None


def test_marking_costs_nothing_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tables(committed(tmp_path))
    found.opened()
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("a second mark"))
    found.opened()


def test_no_tables(tmp_path: Path) -> None:
    """A model of one layer has none."""
    found = tables(tmp_path, widths=())
    found.opened()
    found.commit(3)
    found.close()
    assert tables(tmp_path, widths=[]).committed_step == 3


def resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status[status.index("RssFile:") :].split()[1]) * 1024


@pytest.mark.parametrize("rows", ["ranges", "scattered"])
def test_budget(tmp_path: Path, rows: str, threads: Callable[[int], None]) -> None:
    """Beside a row that is read alone, the pages around it come in: those count too."""
    threads(1)  # thousands of small steps
    budget, slack, chunk = 32 << 20, 8 << 20, 1000
    found = tables(tmp_path, num_nodes=200_000, widths=[128, 128], budget=budget)
    found.opened()
    for table, ids in ((torch.zeros(10_000, 128), torch.arange(chunk)), (found.rows[0], torch.arange(chunk))):
        table[ids] = ids[:, None].float()  # brings in pages of the libraries
        (table[ids] != ids[:, None]).sum().item()
        found.trim()
    before, most = resident(), 0
    order = (
        torch.arange(200_000) if rows == "ranges" else torch.randperm(200_000, generator=torch.Generator().manual_seed(1))
    )
    for table in found.rows:
        for ids in order.split(chunk):
            table[ids] = ids[:, None].float()
            most = max(most, resident() - before)
            found.touched(chunk * 512)
    wrong = 0
    for table in found.rows:
        for ids in order.flip(0).split(64)[:: 1 if rows == "ranges" else 4]:  # few, as each may bring in 16 pages
            wrong += int((table[ids] != ids[:, None]).sum())
            most = max(most, resident() - before)
            found.touched(ids.numel() * 512)
    assert wrong == 0 and budget / 2 < most < budget + slack, most
    found.trim()
    assert resident() - before < slack
    found.commit(1)
    found.close()
    assert (
        torch.from_file(str(tmp_path / "rows_2.bin"), size=200_000 * 128).view(-1, 128)[:, 77] == torch.arange(200_000)
    ).all()


def test_no_budget_no_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[str] = []
    monkeypatch.setattr(DiskTables, "trim", lambda self: trims.append(self.folder.name))
    tables(tmp_path / "free").touched(10**15)
    tables(tmp_path / "bound", budget=10**12).touched(10**12)
    assert trims == []
    tables(tmp_path / "tight", budget=10**12).touched(10**12 + 1)
    assert trims == ["tight"]


def test_trimmed_while_others_write(tmp_path: Path, threads: Callable[[int], None]) -> None:
    threads(1)
    found, stop = tables(tmp_path, num_nodes=20_000, widths=[64]), threading.Event()
    found.opened()
    expected = torch.zeros(20_000, 64)

    def trim() -> None:
        while not stop.is_set():
            found.trim()

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        for n in range(50):
            ids = torch.arange(n, 20_000, 7)
            found.rows[0][ids] += n
            expected[ids] += n
    finally:
        stop.set()
        thread.join()
    assert torch.equal(found.rows[0], expected)


def test_closed(tmp_path: Path) -> None:
    folder = committed(tmp_path)
    found = tables(folder, budget=1)
    kept = found.rows[0]
    found.close()
    found.close()
    assert found.rows == [] and kept.sum() == 5 * 150  # wrong to use, but not the end of the process
    for call in (found.opened, lambda: found.commit(6), lambda: found.touched(2), found.trim, found.delete):
        with pytest.raises(ValueError, match=f"the tables in {folder} are closed; open them again"):
            call()
    assert tables(folder).committed_step == 5


def test_unmapped_with_the_last_tensor(tmp_path: Path) -> None:
    def mapped() -> bool:
        return str(tmp_path / "rows_1.bin") in Path("/proc/self/maps").read_text()

    found = tables(tmp_path)
    kept = found.rows[0][3:4]
    found.close()
    assert mapped()
    del kept
    assert not mapped()


def test_deleted(tmp_path: Path) -> None:
    tables(tmp_path / "empty").delete()
    assert not (tmp_path / "empty").exists()
    folder = committed(tmp_path / "shared")
    for name in ("notes.txt", "rows_3.bin"):
        (folder / name).write_text("mine")
    tables(folder).delete()
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"notes.txt": "mine", "rows_3.bin": "mine"}
    found = tables(folder)
    assert found.committed_step is None and holds(found, -1) is False and (found.rows[0] == 0).all()


def test_made_anew_after_an_unfinished_one_of_another_size(tmp_path: Path) -> None:
    committed(tmp_path)
    edit(tmp_path, made=False, clean=False)
    found = tables(tmp_path, num_nodes=7, widths=[2])
    assert sorted(content(tmp_path)) == ["rows_1.bin", "stamp_1.bin", "state.json"]
    assert found.rows[0].tolist() == [[0, 0]] * 7 and found.stamps[0].tolist() == [-1] * 7
    assert json.loads((tmp_path / "state.json").read_text())["format"] == disk.FORMAT
