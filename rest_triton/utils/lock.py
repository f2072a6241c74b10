"""A folder that one process at a time writes into.

The folder is locked by flock. The system releases that lock when the process ends, and no file is left.

Some file systems (NFS, some Lustre mounts) have no flock for folders. There a file named ``lock`` is made, which only
one process can make. It holds the host, the process and the boot of the machine, so that the lock of a killed process is
removed by the next one on the same host. Other hosts cannot see whether the process has ended: they refuse.
"""

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from .errors import UserError
from .files import is_alive

LOCK = "lock"


class InUse(UserError):
    """Another process is writing into the folder."""


@contextmanager
def locked(folder: Path, way_out: str) -> Iterator[None]:
    """Lock ``folder``, which is made if missing, until the block ends. InUse at once if another process holds it.

    Args:
        way_out: what the user can do instead; the end of the error's message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, by_file = os.open(folder, os.O_RDONLY), False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{folder} is being written by another process; {way_out}") from None
        except OSError:  # this file system has no flock for folders
            by_file = True
        with _locked_by_file(folder, way_out) if by_file else nullcontext():
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked_by_file(folder: Path, way_out: str) -> Iterator[None]:
    path, guard = folder / LOCK, folder / f"{LOCK}.guard"
    # Locks are checked, removed and made under the guard: else a stale lock could be replaced before it is removed.
    if not _made(guard):
        raise InUse(f"another process is about to write into {folder}; {way_out}. If {guard} stays, delete it")
    try:
        _remove_stale(path, way_out)
        _made(path)
    finally:
        guard.unlink()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _made(path: Path) -> bool:
    """Whether this call made the lock file. O_EXCL is atomic, also on NFS."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with open(descriptor, "w") as file:
        json.dump({"host": platform.node(), "pid": os.getpid(), "boot": _boot()}, file)
        file.flush()
        os.fsync(file.fileno())
    return True


def _remove_stale(path: Path, way_out: str) -> None:
    """Remove the lock file if its process has ended. InUse if it runs, or if this host cannot tell."""
    try:
        owner = json.loads(path.read_text())
        host, pid, boot = str(owner["host"]), int(owner["pid"]), str(owner["boot"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise InUse(f"{path} cannot be read; delete it if no process writes into {path.parent}, or {way_out}") from None
    if host != platform.node():
        raise InUse(
            f"{path.parent} is being written by process {pid} on {host}; {way_out}. If that process has ended, delete {path}"
        )
    if boot == _boot() and is_alive(pid):
        raise InUse(f"{path.parent} is being written by process {pid}; {way_out}")
    path.unlink(missing_ok=True)


def _boot() -> str:
    """The identifier of this boot, or an empty text where the system has none: ids of processes repeat after a boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
