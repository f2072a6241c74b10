"""Checkpoints are written atomically, and partial files are not read."""

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rest_triton.training import checkpoint
from rest_triton.training import run as session
from rest_triton.training.checkpoint import epoch_path, read

from .resuming import Data, content, newest, records, same, state_in

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture
def run(data: Data, tmp_path: Path) -> Path:
    """A run of six epochs."""
    return data.run(data.config(), tmp_path / "run").directory.path


def numbered(run: Path, epoch: int) -> Path:
    return epoch_path(run / "checkpoints", epoch)


@contextmanager
def failing(how: str, at: int = 0) -> Iterator[None]:
    """Make writes fail: the disk is full after 3000 bytes, or the ``at``-th call fails."""
    with pytest.MonkeyPatch.context() as patch:
        if how == "write":
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            return
        real, calls = getattr(os, how), iter(range(1000))

        def patched(*arguments: Any) -> Any:
            if next(calls) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        patch.setattr(os, how, patched)
        yield


@pytest.mark.parametrize("how", ["write", "fsync", "replace"])
def test_whole_or_not_there(how: str, run: Path, data: Data) -> None:
    """A disk that fails leaves the old file and no other; the error names the file."""
    path, before = numbered(run, 6), content(run)
    state = read(path)[0] | {"epoch": 7}
    for to in (path, numbered(run, 7)):
        with failing(how), pytest.raises(OSError) as failed:
            checkpoint.write(to, state, data.config(), data.loaded.fingerprint)
        assert str(to) in str(failed.value)
        assert content(run) == before
    checkpoint.write(path, state, data.config(), data.loaded.fingerprint)
    assert same(read(path)[0], state)


@pytest.mark.parametrize(
    ("how", "at"), [("write", 0), *(("replace", n) for n in (3, 4)), *(("fsync", n) for n in range(7, 13))]
)
def test_a_run_whose_disk_fails(how: str, at: int, run: Path, data: Data, tmp_path: Path) -> None:
    """A disk that fails while checkpoints are written stops the run. It can be resumed when the disk works again."""
    stopped = tmp_path / "stopped"
    data.run(data.config(epochs=3), stopped)
    with failing(how, at), pytest.raises(OSError):
        data.run(data.config(), stopped, newest(stopped))
    assert not list(stopped.rglob("*.partial-*"))
    for path in checkpoint.epochs(stopped / "checkpoints"):
        read(path, data.config(), data.loaded.fingerprint)
    data.run(data.config(), stopped, newest(stopped))
    assert records(stopped) == records(run) and same(state_in(stopped), state_in(run))


def test_a_part_is_no_checkpoint(run: Path, data: Data) -> None:
    """A whole file without the final name is not a checkpoint. A resume removes all such files."""
    good = numbered(run, 6).read_bytes()
    rubbish = ["epoch-000007.pt.partial-99", "epoch-000007.tables.partial-99", "best.pt.partial-99", "epoch-000009.tables"]
    for name in rubbish:
        (run / "checkpoints" / name).write_bytes(good)
    for name in ("config.yaml.partial-99", "metrics.jsonl.partial-99"):
        (run / name).write_bytes(b"")
    assert newest(run) == numbered(run, 6)
    session.Run(data.config(), data.loaded, run, resume=newest(run)).trainer.close()
    assert not [name for name in content(run) if ".partial-" in name or name == "checkpoints/epoch-000009.tables"]


def test_the_order_in_which_it_is_durable(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it is renamed, and its folder before the next file is written."""
    events: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(("sync", re.sub(r"-\d+$", "", str(path.relative_to(tmp_path)))))

    def replaced(a: Path, b: Path) -> None:
        replace(a, b)
        events.append(("name", str(b.relative_to(tmp_path))))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    data.run(data.config(epochs=1), tmp_path)
    at = events.index(("sync", "metrics.jsonl"))
    tables, state = "checkpoints/epoch-000001.tables", "checkpoints/epoch-000001.pt"
    assert events[at + 1 : at + 7] == [
        ("sync", f"{tables}.partial"), ("name", tables), ("sync", "checkpoints"),
        ("sync", f"{state}.partial"), ("name", state), ("sync", "checkpoints"),
    ]  # fmt: skip
    first = events.index(("sync", "checkpoints/best.pt.partial"))
    assert events[first - 2 : first] == [("sync", ".")] * 2  # the names of config.yaml and of the folder of checkpoints
