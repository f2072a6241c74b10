"""History tables in memory-mapped files, in a folder that a later run can go on with.

    rows_1.bin, rows_2.bin, ...    raw [N, width] each         stamp_1.bin, ...    raw int32[N] each
    state.json                     whose tables these are, and whether they are as a step left them
    lock                           held by the run that uses them

The tables are believed only where state.json says clean. It stops saying so, durably, before the first row changes, and says
so again only after every row has reached the disk. Whoever is killed in between leaves tables that say they are not whole.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..ops import check
from ..utils.machine import readable
from .age import NEVER

FORMAT = 1  # raise it when the layout of the folder or the meaning of a file changes
STATE, LOCK = "state.json", "lock"
WAY_OUT = "name another folder with --history-folder, or delete this one"
_libc = ctypes.CDLL(None)
KINDS = {"num_nodes": int, "widths": list, "dtype": str, "fingerprint": str, "made": bool, "clean": bool}


class DiskTables:
    """The tables of one run in a folder: made if it has none, else taken up as they are.

    Args:
        folder: where the files are; it and its parents are made.
        num_nodes: N, rows of each table. widths: columns, table by table. dtype: float32, bfloat16 or float16.
        fingerprint: of the graph that the tables are for.
        budget: how many bytes of the files may be mapped at a time; None: as many as the system likes.

    ``rows[t]`` is [N, widths[t]], zero at birth; ``stamps[t]`` is int32[N], -1 at birth. Both are maps: writing to them
    writes to the files. Any thread calls :meth:`opened` before it writes, and :meth:`touched` after it has read or written.

    Raises ValueError where the folder holds other tables or damaged ones, or another run uses it, OSError where the disk has
    no room for them. Nothing in the folder has changed then.

    Example::

        tables = DiskTables(Path("history"), graph.num_nodes, [256], torch.bfloat16, graph.fingerprint, budget=1 << 30)
        refill = tables.committed_step != checkpoint_step
        tables.opened()
        tables.rows[0][:100] = h
        tables.touched(h.nbytes)
        tables.commit(step=1)
    """

    def __init__(
        self, folder: Path, num_nodes: int, widths: Sequence[int], dtype: torch.dtype, fingerprint: str,
        *, budget: int | None = None,
    ) -> None:  # fmt: skip
        if dtype not in check.ROW_DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be {check.names(check.ROW_DTYPES)}")
        for name, value in (("num_nodes", num_nodes), ("budget", budget), *(("a width", width) for width in widths)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        self.folder = Path(folder).absolute()  # the working directory may change
        self.num_nodes, self.widths, self.dtype, self.budget = num_nodes, tuple(widths), dtype, budget
        self.rows: list[Tensor] = []
        self.stamps: list[Tensor] = []
        self._about = dict(num_nodes=num_nodes, widths=list(widths), dtype=str(dtype)[6:], fingerprint=fingerprint)
        sizes = (size for width in widths for size in (num_nodes * width * dtype.itemsize, num_nodes * 4))
        self._files = dict(zip(_names(widths), sizes, strict=True))
        self._maps: list[tuple[int, mmap.mmap]] = []  # each with its file's descriptor
        self._held = ExitStack()  # all descriptors, the lock's among them
        self._release = weakref.finalize(self, self._held.close)
        self._changing, self._counting = threading.Lock(), threading.Lock()  # state.json; what was touched
        self._step: int | None = None
        self._marked = False  # state.json says, durably, that rows may have changed
        self._lost = False  # rows that the disk did not take: no later commit can vouch for them
        self._inspect()  # what is refused leaves no trace
        absent = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        making = False
        try:
            self._folder = self._hold(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY))
            self._hold(_lock(self.folder))
            found = self._inspect()  # once more: another run may have left just now
            making = found is None or not found["made"]
            if found is None or making:
                self._make(found)
            else:
                self._map(os.O_RDWR)
                self._step, self._marked = (found["step"], False) if found["clean"] else (None, True)
        except BaseException:
            if making:  # then this run has the lock, and there was nothing to lose
                self._remove()
            self._release()
            for path in absent:
                with suppress(OSError):  # not empty
                    path.rmdir()
            raise
        self._count, self._resident = 0, _resident()

    @property
    def committed_step(self) -> int | None:
        """The step of the last commit, if no row was written since; None if one may have been, or nothing was committed."""
        return self._step

    def opened(self) -> None:
        """Call it before writing rows: from here on, also after a crash, the tables are not those of the last commit."""
        if self._marked:
            return
        with self._changing:
            self._require_open()
            if not self._marked:
                self._write_state(made=True)
                self._step, self._marked = None, True

    def commit(self, step: int) -> None:
        """All rows reach the disk, and then state.json says that they are those of ``step``. Nobody may be writing rows.

        Raises OSError where the disk fails. Rows that it did not take are lost: no later commit will do.
        """
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more")
        with self._changing:
            self._require_open()
            if self._lost:
                raise OSError(errno.EIO, f"{self.folder} lost rows when a commit failed; restart, and they are filled anew")
            self._lost = True  # a second fsync after a failed one succeeds, though pages were dropped
            for descriptor, mapped in self._maps:
                os.fsync(descriptor)  # on Linux it writes what was changed through the map too, and lets other threads run
                mapped.flush()  # elsewhere this is what does; here it finds nothing left
            self._lost = False
            self._step, self._marked = None, False  # not known, until state.json is written
            self._write_state(made=True, step=int(step))
            self._step = int(step)

    def touched(self, nbytes: int) -> None:
        """Say that so many bytes were read or written through the maps. Beyond the budget, pages are given back.

        A row that is read alone brings in the pages around it. So what is resident is looked at, too: call this every few
        megabytes.
        """
        if self.budget is None:
            return
        with self._counting:
            self._count += nbytes
            due = self._count > self.budget or _resident() - self._resident > self.budget
        if due:
            self.trim()

    def trim(self) -> None:
        """Give the mapped pages back to the system, which writes the changed ones to disk in its own time.

        Others may read and write meanwhile: what they touch is mapped again, as it was last written.
        """
        with self._counting:
            self._require_open()
            for descriptor, mapped in self._maps:
                _start_writing(descriptor)
                mapped.madvise(mmap.MADV_DONTNEED)  # of a shared map: the pages stay in the system's cache
            self._count, self._resident = 0, _resident()

    def close(self) -> None:
        """Leave the folder to other runs. The tensors must not be used any more.

        A file is unmapped when its last tensor is gone, not here: who uses one that he kept does wrong, but does not crash.
        """
        with self._changing, self._counting:
            self._marked = False
            self.rows, self.stamps, self._maps = [], [], []
            self._release()

    def delete(self) -> None:
        """Remove the files, and the folder if nothing else is in it. Closes the tables, which must be open."""
        with self._changing:
            self._require_open()
            self._write_state(made=False)  # killed half-way, what is left is in nobody's way
            self._remove()
        self.close()

    def _require_open(self) -> None:
        if not self._release.alive:
            raise ValueError(f"the tables in {self.folder} are closed; open them again with DiskTables(...)")

    def _hold(self, descriptor: int) -> int:
        self._held.callback(os.close, descriptor)
        return descriptor

    def _inspect(self) -> dict[str, Any] | None:
        """What state.json says, None if there is none. Refuses all that cannot end in tables."""
        found = _read_state(self.folder / STATE)
        stray = [self.folder / name for name in self._files if found is None and (self.folder / name).exists()]
        if stray:
            raise ValueError(f"{stray[0]} is there, but no {STATE} that says what it is; {WAY_OUT}")
        if found is not None and found["made"]:
            differs = [f"{k} is {found[k]}, asked for is {asked}" for k, asked in self._about.items() if found[k] != asked]
            if differs:
                raise ValueError(f"{self.folder} holds history tables of another run: {', '.join(differs)}; {WAY_OUT}")
            for name, size in self._files.items():
                path = self.folder / name
                there = path.stat().st_size if path.is_file() else 0
                if there != size:
                    raise ValueError(f"{path} has {there} bytes instead of {size}; {WAY_OUT}")
        paths = [self.folder / name for name in (_names(found["widths"]) if found is not None else ())]
        need = sum(self._files.values()) - sum(path.stat().st_blocks * 512 for path in paths if path.is_file())
        free = shutil.disk_usage(next(path for path in (self.folder, *self.folder.parents) if path.exists())).free
        if need > free:
            raise _no_room(self.folder, need, free)
        return found

    def _make(self, remains: dict[str, Any] | None) -> None:
        for name in _names(remains["widths"]) if remains is not None else ():
            (self.folder / name).unlink(missing_ok=True)
        self._write_state(made=False)  # killed half-way, what is left is in nobody's way
        self._map(os.O_RDWR | os.O_CREAT | os.O_EXCL)
        piece = torch.full((1 << 18,), NEVER, dtype=torch.int32).numpy().tobytes()
        for (descriptor, _), (name, size) in zip(self._maps, self._files.items(), strict=True):
            if name.startswith("stamp"):  # not through the map: nothing is to be resident yet
                with open(descriptor, "wb", closefd=False) as file:
                    file.writelines(piece[: size - at] for at in range(0, size, len(piece)))
            os.fsync(descriptor)
        self._write_state(made=True)
        self._marked = True

    def _map(self, flags: int) -> None:
        for name, size in self._files.items():
            descriptor = self._hold(os.open(self.folder / name, flags, 0o666))
            _reserve(descriptor, self.folder / name, size)
            self._maps.append((descriptor, mmap.mmap(descriptor, size)))
        # A tensor keeps its map alive, but cannot keep it from being closed: so nobody ever closes one.
        for (_, rows), (_, stamp), width in zip(self._maps[::2], self._maps[1::2], self.widths, strict=True):
            self.rows.append(torch.frombuffer(rows, dtype=self.dtype).view(self.num_nodes, width))
            self.stamps.append(torch.frombuffer(stamp, dtype=torch.int32))

    def _write_state(self, *, made: bool, step: int | None = None) -> None:
        """Replace state.json as a whole; clean if there is a step. When this returns, it is on the disk."""
        new = self.folder / f"{STATE}.new"
        with open(new, "w") as file:
            clean = step is not None
            json.dump({"format": FORMAT, **self._about, "made": made, "clean": clean, "step": step}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.folder / STATE)
        os.fsync(self._folder)

    def _remove(self) -> None:
        for name in (*self._files, f"{STATE}.new", STATE, LOCK):  # the lock last: until then this is the only run here
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            self.folder.rmdir()


def _names(widths: Sequence[object]) -> list[str]:
    return [f"{kind}_{t + 1}.bin" for t in range(len(widths)) for kind in ("rows", "stamp")]


def _read_state(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {WAY_OUT}") from None
    form = found.get("format") if isinstance(found, dict) else None
    if form != FORMAT:
        raise ValueError(f"{path} has format {form}, this version of rest_triton writes {FORMAT}; {WAY_OUT}")
    bad = [key for key, kind in KINDS.items() if type(found.get(key)) is not kind]
    if bad or (found["clean"] and type(found.get("step")) is not int):
        raise ValueError(f"{path} is not whole: {bad[0] if bad else 'step'} is missing or wrong; {WAY_OUT}")
    return found


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:  # its folder was deleted just now, and may be another one already
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode(errors="replace")
        os.close(descriptor)
        raise ValueError(
            f"{folder} is in use by another run, process {owner}; wait for it, or name another --history-folder"
        ) from None
    return descriptor


def _reserve(descriptor: int, path: Path, size: int) -> None:
    """Room on the disk for all of a file: without it, writing to a map would end the process."""
    try:
        if os.fstat(descriptor).st_blocks * 512 < size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(path, size, shutil.disk_usage(path).free) from None
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # of file systems that do not reserve
            raise
        os.ftruncate(descriptor, size)


def _no_room(path: Path, need: int, free: int) -> OSError:
    way_out = "free some, or name a folder on another disk with --history-folder"
    return OSError(errno.ENOSPC, f"{path} needs {readable(need)} of disk, {readable(free)} are free; {way_out}")


def _resident() -> int:
    """Bytes of mapped files that this process has in memory, its libraries among them."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[2]) * mmap.PAGESIZE


def _start_writing(descriptor: int) -> None:
    """Let the system begin to write what was changed. Only a hint: what fails is told by commit's fsync."""
    if hasattr(_libc, "sync_file_range"):
        _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), 2)  # SYNC_FILE_RANGE_WRITE, to the end
