"""Atomic writes of files: after a crash the old file or the new one exists."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into. It gets its name when the block ends; readers see the old file or the new one.

    A missing folder is made. Leftovers of killed writers are removed. An OSError names the file.
    """
    path = Path(path)
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent.parent)
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
        pid = leftover.name.rpartition("-")[2]
        if not pid.isdigit() or not is_alive(int(pid)):
            leftover.unlink(missing_ok=True)
    scratch = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # an error of a full disk has no name
        raise
    finally:
        scratch.unlink(missing_ok=True)


def write_whole(path: Path, *chunks: bytes | bytearray | memoryview) -> None:
    """Write a file with these bytes, atomically."""
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs, on any POSIX system."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True
