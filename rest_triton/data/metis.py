"""METIS in a process of its own.

METIS keeps Python's lock while it works, and may end its process: by an abort, or when memory runs out. In a child process
neither stops the caller: the progress line goes on, Ctrl-C works, and what happened to METIS is an exception.

Caller and child share a folder: ``rowptr.npy`` and ``col.npy`` go in, ``cluster.npy`` comes out. This module imports neither
torch nor Numba, so the child starts in a tenth of a second.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pymetis

from ..utils.machine import readable

# What METIS takes at its peak, its input included, with 64-bit indices: just above the most that was seen (VmHWM of the
# child) on random and clustered graphs with power-law degrees, of 0.5M to 8M edges, 2 to 240 per node, in 10 to 1000 num_parts.
# Clustered graphs take less, down to half of it. tests/test_metis_worker.py repeats one of the measurements.
BYTES_PER_NODE, BYTES_PER_EDGE = 150, 115

PIECE = 1 << 20  # elements
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class MetisFailedError(RuntimeError):
    """METIS did not finish; says why."""


def index_dtype() -> np.dtype:
    """The integers that METIS was built with: int32 or int64. Arrays of them are passed without a copy."""
    return pymetis.zero_copy_dtype()


def peak_bytes(nodes: int, edges: int, index_bytes: int) -> int:
    """How much memory METIS takes for an undirected graph whose edges are counted both ways."""
    return (BYTES_PER_NODE * nodes + BYTES_PER_EDGE * edges) * index_bytes // 8


def why_not(nodes: int, edges: int, index: np.dtype, available: int) -> str | None:
    """Why METIS cannot take a graph of this size, or None if it can."""
    largest = int(np.iinfo(index).max)
    if max(nodes, edges) > largest:
        return (
            f"it counts with {8 * index.itemsize} bits, to {largest:,}, and the graph has "
            f"{nodes:,} nodes and {edges:,} edges (each counted both ways)"
        )
    needed = peak_bytes(nodes, edges, index.itemsize)
    if needed > available:
        return f"it would take about {readable(needed)} of memory, and {readable(available)} are available"
    return None


def run(rowptr: np.ndarray, col: np.ndarray, num_parts: int, seed: int, folder: Path | None = None) -> np.ndarray:
    """The cluster of each node, int32[N], by METIS's k-way partitioning.

    Args:
        rowptr: int64[N+1]; col: int32 or int64 [E]: every edge both ways, none twice, no self-loops.
        folder: where the files that the two processes share are kept meanwhile; None: where the system keeps such files.

    Raises:
        MetisFailedError: METIS or its process ended early, or there was no room for the files.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="metis-", dir=folder) as shared:
            _write(Path(shared, "rowptr.npy"), rowptr)
            _write(Path(shared, "col.npy"), col)
            # The child finds its packages where this process did. Its working folder, which Python searches first, is the
            # shared one: nothing there has the name of a module.
            path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
            with subprocess.Popen(
                [sys.executable, "-m", "rest_triton.data.metis", str(num_parts), str(seed)],
                cwd=shared,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as child:
                try:
                    output, _ = child.communicate()
                finally:  # after Ctrl-C as well the child is gone before its folder is
                    child.kill()
                    child.wait()
            if child.returncode != 0:
                raise MetisFailedError(_reason(child.returncode, output.decode(errors="replace")))
            return np.load(Path(shared, "cluster.npy"), allow_pickle=False)
    except OSError as error:
        raise MetisFailedError(f"its files could not be shared: {error}") from error


def _write(path: Path, values: np.ndarray) -> None:
    """As METIS wants it, converted piece by piece: the array is never in memory twice.

    Not through a memory map: on a full disk, writing to one ends the process; a write to a file is an error.
    """
    dtype = index_dtype()
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": values.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, values.size, PIECE):
            file.write(values[begin : begin + PIECE].astype(dtype).data)


def _reason(code: int, output: str) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, as the system does when memory runs out"
    lines = [line for line in output.splitlines() if line.strip()]
    said = f": {lines[-1].strip()}" if lines else ""
    return (
        f"its process ended by {signal.Signals(-code).name}{said}"
        if code < 0
        else f"its process ended with code {code}{said}"
    )


def _yield_to_parent() -> None:
    """The caller's life before this one's: end when it ends, and go first when memory runs out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    _yield_to_parent()
    rowptr, col = (np.load(name, mmap_mode="r") for name in ("rowptr.npy", "col.npy"))
    _, cluster = pymetis.part_graph(
        int(sys.argv[1]),
        pymetis.CSRAdjacency(rowptr, col),
        recursive=False,
        options=pymetis.Options(seed=int(sys.argv[2])),
    )
    np.save("cluster.npy", np.asarray(cluster, dtype=np.int32))


if __name__ == "__main__":
    main()
