"""One writer per folder, with flock and without."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rest_triton.utils import lock
from rest_triton.utils.lock import LOCK, InUse, locked

HOLD = """
import sys, time, pathlib
from rest_triton.utils import lock
def refused(*_):
    raise OSError
if sys.argv[2] == "file":
    lock.fcntl.flock = refused
with lock.locked(pathlib.Path(sys.argv[1]), "wait"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held(folder: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the folder, until it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder), how], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            yield other
        finally:
            other.kill()


@pytest.fixture(params=["flock", "file"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``file``: the file system refuses flock, as NFS does for a folder."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    if request.param == "file":
        monkeypatch.setattr(lock.fcntl, "flock", refused)
    return request.param


def test_one_writer(how: str, tmp_path: Path) -> None:
    run = tmp_path / "a" / "run"
    for _ in range(2):  # it is free again after the block, and after an error in it
        with pytest.raises(RuntimeError), locked(run, "wait"):
            assert list(run.iterdir()) == ([run / LOCK] if how == "file" else [])
            with pytest.raises(InUse, match=rf"{run} is being written by .*process.*; wait"), locked(run, "wait"):
                raise AssertionError
            raise RuntimeError
        assert list(run.iterdir()) == []


def test_a_killed_process_holds_nothing(how: str, tmp_path: Path) -> None:
    with held(tmp_path, how), pytest.raises(InUse), locked(tmp_path, "wait"):
        raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ([LOCK] if how == "file" else [])
    with locked(tmp_path, "wait"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["file"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda mine: mine | {"host": "another"},
            r"written by process \d+ on another; wait\. If that process has ended, delete",
        ),
        (lambda mine: {}, "cannot be read; delete it if no process writes into"),
    ],
)
def test_locks_that_this_host_cannot_judge(
    how: str, change: Callable[[dict[str, Any]], dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """Locks of other hosts, and damaged ones, stay."""
    with locked(tmp_path, "wait"):
        mine = json.loads((tmp_path / LOCK).read_text())
    assert mine["pid"] == os.getpid() and mine["host"]
    (tmp_path / LOCK).write_text(json.dumps(change(mine | {"pid": 2**22 + 1})))  # larger than any id
    before = (tmp_path / LOCK).read_bytes()
    with pytest.raises(InUse, match=message), locked(tmp_path, "wait"):
        raise AssertionError
    assert (tmp_path / LOCK).read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("how", ["file"], indirect=True)
def test_a_lock_from_before_the_last_boot_is_stale(how: str, tmp_path: Path) -> None:
    """The process that has this id now is another one."""
    with locked(tmp_path, "wait"):
        mine = json.loads((tmp_path / LOCK).read_text())
    (tmp_path / LOCK).write_text(json.dumps(mine))
    with pytest.raises(InUse), locked(tmp_path, "wait"):
        raise AssertionError
    (tmp_path / LOCK).write_text(json.dumps(mine | {"boot": "another"}))
    with locked(tmp_path, "wait"):
        assert json.loads((tmp_path / LOCK).read_text()) == mine


@pytest.mark.parametrize("how", ["file"], indirect=True)
def test_two_processes_do_not_remove_one_stale_lock(how: str, tmp_path: Path) -> None:
    """Two processes do not remove a stale lock at the same time: the second would remove the new lock of the first."""
    (tmp_path / LOCK).write_text(json.dumps({"host": lock.platform.node(), "pid": 2**22 + 1, "boot": "another"}))
    guard = tmp_path / "lock.guard"
    guard.touch()  # the other process has begun
    with (
        pytest.raises(InUse, match=r"about to write into .*; wait\. If .*lock\.guard stays, delete it"),
        locked(tmp_path, "wait"),
    ):
        raise AssertionError
    guard.unlink()
    with locked(tmp_path, "wait"):
        pass
