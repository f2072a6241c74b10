"""Tables in files: what a killed run leaves is never taken for good, and a budget is kept."""

import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton import disk
from rest_triton.disk import DiskTables

NODES, WIDTHS = 50, (3, 5)
FILES = ["rows_1.bin", "rows_2.bin", "stamp_1.bin", "stamp_2.bin"]


def tables(folder: Path, **changes: Any) -> DiskTables:
    arguments: dict[str, Any] = dict(num_nodes=NODES, widths=WIDTHS, dtype=torch.float32, fingerprint="cafe") | changes
    return DiskTables(folder, **arguments)


def write(to: DiskTables, step: int) -> None:
    to.opened()
    for rows, stamp in zip(to.rows, to.stamps, strict=True):
        rows.fill_(step)
        stamp.fill_(step)


def holds(found: DiskTables, step: int) -> bool:
    return all(bool((t == step).all()) for t in (*found.rows, *found.stamps))


def committed(folder: Path, step: int = 5) -> Path:
    made = tables(folder)
    write(made, step)
    made.commit(step)
    made.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


class Child:
    """A process that does ``work`` and is killed. It may call ``say`` to let :meth:`wait` return."""

    def __init__(self, work: Callable[[Callable[[bytes], Any]], None]) -> None:
        self.out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:  # nothing of pytest's may run here, whatever happens
            try:
                torch.set_num_threads(1)  # the parent's other threads are not there
                work(lambda what: os.write(into, what))
            except BaseException as error:
                os.write(into, str(error).encode())
            finally:
                os._exit(1)
        os.close(into)

    def wait(self) -> bytes:
        return os.read(self.out, 1000)

    def end(self, kill: bool = True) -> int:
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.out)
        return status


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


def test_killed_while_writing(tmp_path: Path) -> None:
    """At whatever moment: what it wrote since its commit, also by another thread, is not taken for that commit."""
    draw = random.Random(1)
    for n in range(20):
        folder = tmp_path / str(n)

        def work(say: Callable[[bytes], Any], folder: Path = folder) -> None:
            mine = tables(committed(folder), budget=1)
            assert mine.committed_step == 5
            mine.opened()

            def fill(rows: torch.Tensor) -> None:
                for step in range(6, 10**9):
                    rows.fill_(step)
                    mine.touched(rows.nbytes)

            threading.Thread(target=fill, args=(mine.rows[1],), daemon=True).start()
            say(b"writing")
            fill(mine.rows[0])

        child = Child(work)
        assert child.wait() == b"writing"
        time.sleep(draw.random() * 0.03)
        child.end()
        assert tables(folder).committed_step is None


def test_killed_between_commits(tmp_path: Path) -> None:
    """Either nothing is committed, or exactly that."""

    def work(say: Callable[[bytes], Any]) -> None:
        mine = tables(tmp_path / "run")
        first = (mine.committed_step or 0) + 1
        for step in range(first, 10**9):
            thread = threading.Thread(target=write, args=(mine, step))
            thread.start()
            thread.join()
            mine.commit(step)
            say(b"committed")

    draw = random.Random(2)
    for n in range(20):
        child = Child(work)
        assert child.wait().startswith(b"committed")
        time.sleep(draw.random() * 0.02 * (n % 2))
        child.end()
        found = tables(tmp_path / "run")
        assert found.committed_step is None or holds(found, found.committed_step)
        found.close()


CALLS = ("fsync", "replace")


def dying(at: int, after: bool) -> None:
    """The ``at``-th call that makes something durable is this process's last, before it or after it."""
    calls = iter(range(10**9))

    def patch(name: str) -> None:
        call = getattr(os, name)

        def patched(*args: Any) -> None:
            last = next(calls) == at
            if not last or after:
                call(*args)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, patched)

    for name in CALLS:
        patch(name)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("during", ["make", "commit", "opened", "delete"])
def test_killed_at_every_step_of(during: str, after: bool, tmp_path: Path) -> None:
    outcomes = set()
    for at in range(100):
        folder = tmp_path / str(at)
        if during != "make":
            committed(folder)

        def work(say: Callable[[bytes], Any], folder: Path = folder, at: int = at) -> None:
            if during == "make":
                dying(at, after)
                tables(folder)
            else:
                mine = tables(folder)
                if during == "commit":
                    write(mine, 6)
                dying(at, after)
                {"commit": lambda: mine.commit(6), "opened": mine.opened, "delete": mine.delete}[during]()

        if os.WIFEXITED(Child(work).end(kill=False)):
            break
        found = tables(folder)  # never refused
        outcomes.add(found.committed_step)
        if found.committed_step is not None:
            assert holds(found, found.committed_step)
        else:
            write(found, 8)  # and of use
            found.commit(8)
        found.close()
    assert at >= {"make": 10, "commit": 7, "opened": 3, "delete": 3}[during]
    assert outcomes == {"make": {None}, "commit": {None, 6}, "opened": {None, 5}, "delete": {None, 5}}[during]


class Power:
    """What would be on the disk if the power failed: of a file what fsync saw, of a folder the names that fsync saw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.moments: list[dict[str, bytes]] = []
        fsync = os.fsync

        def patched(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir():
                self.names = {p.name: p.stat().st_ino for p in path.iterdir()}
            else:
                self.files[path.stat().st_ino] = path.read_bytes()
            self.moments.append(self.now())

        monkeypatch.setattr(os, "fsync", patched)

    def now(self) -> dict[str, bytes]:
        return {name: self.files.get(inode, b"") for name, inode in self.names.items()}


def restored(folder: Path, what: dict[str, bytes]) -> DiskTables:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in what.items():
        (folder / name).write_bytes(data)
    return tables(folder)


def test_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is on the disk before rows change, the rows are before the commit is."""
    with monkeypatch.context() as patch:
        power = Power(patch)
        made = tables(tmp_path / "run")
        for step in (5, 6):
            write(made, step)
            marked = power.now()
            made.commit(step)
            assert json.loads(marked["state.json"])["clean"] is False
            assert json.loads(power.now()["state.json"])["clean"] is True
        made.close()
    outcomes = []
    for moment in power.moments:
        found = restored(tmp_path / "other", moment)
        outcomes.append(found.committed_step)
        assert found.committed_step is None or holds(found, found.committed_step)
        found.close()
    changes = [b for a, b in zip([0, *outcomes], outcomes, strict=False) if a != b]
    assert changes == [None, 5, None, 6]


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that it did not take are not committed by a second try, which the system would let succeed."""
    found = tables(committed(tmp_path))
    write(found, 6)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no"):
        patch.setattr(os, "fsync", fail)
        found.commit(6)
    with pytest.raises(OSError, match="lost rows when a commit failed; restart"):
        found.commit(6)
    found.close()
    assert tables(tmp_path).committed_step is None


@pytest.mark.parametrize("call", CALLS)
def test_a_commit_that_may_have_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Its last call fails, after state.json has its name: the next rows are marked again."""
    found = tables(committed(tmp_path))
    write(found, 6)
    real, calls = getattr(os, call), iter(range(100))

    def late(*args: Any) -> None:
        real(*args)
        if next(calls) == {"fsync": 5, "replace": 0}[call]:
            raise OSError(errno.EIO, "late")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="late"):
        patch.setattr(os, call, late)
        found.commit(6)
    assert json.loads((tmp_path / "state.json").read_text())["clean"] is True and found.committed_step is None
    found.opened()
    assert json.loads((tmp_path / "state.json").read_text())["clean"] is False
    found.commit(7)
    assert found.committed_step == 7


def edit(folder: Path, **changes: Any) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | changes))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (lambda f: (f / "state.json").write_text('{"format": 1, "nu'), "state.json cannot be read"),
    "binary": (lambda f: (f / "state.json").write_bytes(b"\xff\xfe"), "state.json cannot be read"),
    "empty": (lambda f: (f / "state.json").write_text(""), "state.json cannot be read"),
    "a-folder": (lambda f: (f / "state.json").rename(f / "s") and (f / "state.json").mkdir(), "state.json cannot be read"),
    "foreign": (lambda f: (f / "state.json").write_text("[1]"), "state.json has format None, this version .* writes 1"),
    "other-version": (lambda f: edit(f, format=9), "state.json has format 9, this version of rest_triton writes 1"),
    "no-widths": (lambda f: edit(f, widths=None), "state.json is not whole: widths is missing or wrong"),
    "clean-as-text": (lambda f: edit(f, clean="true"), "state.json is not whole: clean is missing or wrong"),
    "no-step": (lambda f: edit(f, step=None), "state.json is not whole: step is missing or wrong"),
    "lost": (lambda f: (f / "state.json").unlink(), "rows_1.bin is there, but no state.json that says what it is"),
    "lost-rows": (lambda f: (f / "rows_2.bin").unlink(), "rows_2.bin has 0 bytes instead of 1000"),
    "short-rows": (lambda f: os.truncate(f / "rows_1.bin", 599), "rows_1.bin has 599 bytes instead of 600"),
    "long-stamp": (lambda f: os.truncate(f / "stamp_2.bin", 204), "stamp_2.bin has 204 bytes instead of 200"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused(kind: str, tmp_path: Path) -> None:
    folder = committed(tmp_path / "run")
    damage, message = DAMAGE[kind]
    damage(folder)
    (folder / "lock").unlink()
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match=rf"{folder}/{message}.*; name another folder with --history-folder, or delete"):
        tables(folder)
    assert sorted(folder.iterdir()) == before  # nothing new, not even a lock


@pytest.mark.parametrize(
    "asked,message",
    [(dict(num_nodes=51), "num_nodes is 50, asked for is 51"),
     (dict(widths=[3, 4]), r"widths is \[3, 5\], asked for is \[3, 4\]"),
     (dict(widths=[3]), r"widths is \[3, 5\], asked for is \[3\]"),
     (dict(dtype=torch.float16), "dtype is float32, asked for is float16"),
     (dict(fingerprint="beef", num_nodes=9), "num_nodes is 50, asked for is 9, fingerprint is cafe, asked for is beef")],
)  # fmt: skip
def test_tables_of_another_run(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    folder = committed(tmp_path)
    before = content(folder)
    with pytest.raises(ValueError, match=f"{folder} holds history tables of another run: {message}; name another folder"):
        tables(folder, **asked)
    assert content(folder) == before and tables(folder).committed_step == 5


@pytest.mark.parametrize(
    "asked,message",
    [(dict(num_nodes=0), "num_nodes is 0; it must be 1 or more"), (dict(widths=[3, -1]), "a width is -1; it must be 1"),
     (dict(budget=0), "budget is 0; it must be 1"),
     (dict(dtype=torch.float64), "dtype is torch.float64; it must be float32")],
)  # fmt: skip
def test_bad_arguments(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tables(tmp_path / "run", **asked)
    with pytest.raises(ValueError, match="step is -1; it must be 0 or more"):
        tables(tmp_path / "other").commit(-1)
    assert not (tmp_path / "run").exists()


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("notes")
    with pytest.raises(ValueError, match=r"run/state.json cannot be read"):
        tables(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "notes"


def test_one_run_at_a_time(tmp_path: Path) -> None:
    def work(say: Callable[[bytes], Any]) -> None:
        mine = tables(tmp_path)
        say(b"ready")
        time.sleep(60)
        mine.close()

    child = Child(work)
    assert child.wait() == b"ready"
    with pytest.raises(ValueError, match=rf"{tmp_path} is in use by another run, process {child.pid}; wait for it, or name"):
        tables(tmp_path)
    child.end()
    mine = tables(tmp_path)  # what was killed holds no lock
    with pytest.raises(ValueError, match=f"in use by another run, process {os.getpid()};"):
        tables(tmp_path)
    del mine
    tables(tmp_path).close()  # nor what was forgotten


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        OSError, match=r"run needs 37297\.6 GiB of disk, \d+\.\d \w+ are free; .* --history-folder"
    ) as failure:
        tables(tmp_path / "new" / "run", num_nodes=10**9, widths=[10**4, 10])
    assert failure.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []
    reserve, sizes = os.posix_fallocate, []

    def full(descriptor: int, begin: int, size: int) -> None:
        sizes.append(size)
        if len(sizes) == 3:  # another process was faster
            raise OSError(errno.ENOSPC, "full")
        reserve(descriptor, begin, size)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"rows_2.bin needs 1000 bytes of disk") as failure:
        patch.setattr(os, "posix_fallocate", full)
        tables(tmp_path / "new" / "run")
    assert failure.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == [] and sizes == [600, 200, 1000]


def test_room_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the holes of tables that were copied; where a file system does not reserve, files are there all the same."""

    def blocks() -> int:
        return sum((tmp_path / name).stat().st_blocks for name in FILES) * 512

    made = tables(tmp_path, num_nodes=10_000)
    assert blocks() >= 10_000 * 4 * (3 + 5 + 2)
    made.commit(1)
    made.close()
    for name in FILES[:2]:
        size = (tmp_path / name).stat().st_size
        os.truncate(tmp_path / name, 0)
        os.truncate(tmp_path / name, size)
    assert blocks() < 10_000 * 4 * (3 + 5)
    found = tables(tmp_path, num_nodes=10_000)
    assert found.committed_step == 1 and blocks() >= 10_000 * 4 * (3 + 5 + 2)

    def refuse(*args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert committed(tmp_path / "sparse") and holds(tables(tmp_path / "sparse"), 5)


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
