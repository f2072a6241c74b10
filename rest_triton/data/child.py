"""A partitioner in a child process.

Partitioners hold Python's global lock, and they can abort their process, for example when memory runs out. In a child
process neither affects the caller: the progress line is updated, Ctrl-C works, and a failure is an exception.

Caller and child share a folder. The caller writes the graph into it, the child ``cluster.npy`` and its peak memory. This
module imports neither torch nor Numba, so that the child starts in a tenth of a second.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..utils.machine import most_memory

CHUNK = 1 << 20  # edges or nodes that are converted and written at a time
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class PartitionerFailedError(RuntimeError):
    """A partitioner did not finish. The message has the reason."""


class Division(NamedTuple):
    """The cluster of each node, int32[N], and the peak memory of the child in bytes."""

    cluster: np.ndarray
    memory: int


class Edges:
    """The edges of a symmetric CSR graph without its self-loops, in pieces: a second copy is never in memory."""

    def __init__(self, rowptr: np.ndarray, col: np.ndarray) -> None:
        self._rowptr, self._col = rowptr, col
        self._loops = np.zeros(self.num_nodes, dtype=bool)
        for row, piece in self._pieces():
            self._loops[row[row == piece]] = True
        self.num_edges = col.size - int(np.count_nonzero(self._loops))

    @property
    def num_nodes(self) -> int:
        return self._rowptr.size - 1

    def rowptr(self) -> Iterator[np.ndarray]:
        """Row pointers, int64[N+1], in pieces."""
        removed = 0
        for begin in range(0, self._rowptr.size, CHUNK):
            loops = self._loops[begin : begin + CHUNK]
            after = removed + np.cumsum(loops)
            piece = self._rowptr[begin : begin + CHUNK].copy()
            piece[0] -= removed
            piece[1:] -= after[: piece.size - 1]
            removed = int(after[-1]) if after.size else removed
            yield piece

    def col(self) -> Iterator[np.ndarray]:
        """Columns in pieces."""
        if self.num_edges == self._col.size:
            yield from (self._col[begin : begin + CHUNK] for begin in range(0, self._col.size, CHUNK))
        else:
            yield from (piece[row != piece] for row, piece in self._pieces())

    def _pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, columns) of consecutive edges. A row's edges may be in several pieces."""
        for begin in range(0, self._col.size, CHUNK):
            end = min(begin + CHUNK, self._col.size)
            first = int(np.searchsorted(self._rowptr, begin, "right")) - 1
            last = int(np.searchsorted(self._rowptr, end, "left"))
            counts = np.diff(self._rowptr[first : last + 1].clip(begin, end))
            yield np.repeat(np.arange(first, last), counts), self._col[begin:end]


def run(module: str, write: Callable[[Path], None], num_parts: int, seed: int, folder: Path | None = None) -> Division:
    """Run a partitioner in a child process.

    Args:
        module: the child runs its ``main``. write: writes the input into the shared folder that it is given.
        folder: where the shared folder is made; None: the system's temporary folder.

    Raises:
        PartitionerFailedError: the child ended early, or the files could not be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"{module.rpartition('.')[2]}-", dir=folder) as shared:
            write(Path(shared))
            # The child gets this process's search path. Its working folder, which Python searches first, is the shared
            # one, which contains no modules.
            path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
            with subprocess.Popen(
                [sys.executable, "-m", module, str(num_parts), str(seed)],
                cwd=shared,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as child:
                try:
                    output, _ = child.communicate()
                finally:  # also after Ctrl-C, the child ends before its folder is deleted
                    child.kill()
                    child.wait()
            if child.returncode != 0:
                raise PartitionerFailedError(_reason(child.returncode, output.decode(errors="replace")))
            cluster = np.load(Path(shared, "cluster.npy"), allow_pickle=False)
            return Division(cluster, int(Path(shared, "memory").read_text()))
    except OSError as error:
        raise PartitionerFailedError(f"its files could not be written or read: {error}") from error


def finish(cluster: np.ndarray) -> None:
    """In the child: hand over the result."""
    np.save("cluster.npy", cluster)
    Path("memory").write_text(str(most_memory()))


def depend_on_parent() -> None:
    """In the child: end when the parent ends. When memory runs out, the system kills this process first."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def _reason(code: int, output: str) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, probably because memory ran out"
    lines = [line for line in output.splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    return (
        f"its process ended by {signal.Signals(-code).name}{last}"
        if code < 0
        else f"its process ended with code {code}{last}"
    )
