"""What is not taken for tables: files that were damaged, of another run, in use, without room."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .tables import FILES, Child, committed, content, edit, holds, tables

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
