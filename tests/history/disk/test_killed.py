"""Processes that are killed, power that fails, disks that do: tables are good, or known not to be."""

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

from rest_triton.history.disk import DiskTables

from .tables import Child, committed, holds, tables, write


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
