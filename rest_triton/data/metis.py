"""METIS in a child process.

METIS holds Python's global lock, and it can abort its process, for example when memory runs out. In a child process neither
affects the caller: the progress line is updated, Ctrl-C works, and a failure is an exception.

Caller and child share a folder: ``rowptr.npy`` and ``col.npy`` are the input, ``cluster.npy`` is the output. This module
imports neither torch nor Numba, so that the child starts in a tenth of a second.
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

# METIS's peak memory with 64-bit indices, its input included: just above the largest measured value (VmHWM of the child) on
# random and clustered graphs with power-law degrees, 0.5M to 8M edges, 2 to 240 per node, 10 to 1000 clusters. Clustered
# graphs take down to half of it. tests/data/test_metis.py repeats one measurement.
BYTES_PER_NODE, BYTES_PER_EDGE = 150, 115

CHUNK_ROWS = 1 << 20  # elements that are converted at a time
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class MetisFailedError(RuntimeError):
    """METIS did not finish. The message has the reason."""


def index_dtype() -> np.dtype:
    """The integer type that METIS was built with, int32 or int64. Arrays of it are passed without a copy."""
    return pymetis.zero_copy_dtype()


def peak_bytes(nodes: int, edges: int, index_bytes: int) -> int:
    """METIS's peak memory for an undirected graph. ``edges`` counts both directions."""
    return (BYTES_PER_NODE * nodes + BYTES_PER_EDGE * edges) * index_bytes // 8


def why_not(nodes: int, edges: int, index: np.dtype, available: int) -> str | None:
    """Why METIS cannot take a graph of this size, or None if it can."""
    largest = int(np.iinfo(index).max)
    if max(nodes, edges) > largest:
        return (
            f"its integers have {8 * index.itemsize} bits, up to {largest:,}; the graph has "
            f"{nodes:,} nodes and {edges:,} edges (both directions)"
        )
    needed = peak_bytes(nodes, edges, index.itemsize)
    if needed > available:
        return f"it needs about {readable(needed)} of memory; {readable(available)} are available"
    return None


def run(rowptr: np.ndarray, col: np.ndarray, num_parts: int, seed: int, folder: Path | None = None) -> np.ndarray:
    """The cluster of each node, int32[N], by METIS's k-way partitioning.

    Args:
        rowptr: int64[N+1]; col: int32 or int64 [E]: symmetric, without duplicates and self-loops.
        folder: where the shared temporary files go; None: the system's temporary folder.

    Raises:
        MetisFailedError: METIS or its process ended early, or the files could not be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="metis-", dir=folder) as shared:
            _write(Path(shared, "rowptr.npy"), rowptr)
            _write(Path(shared, "col.npy"), col)
            # The child gets this process's search path. Its working folder, which Python searches first, is the shared
            # one, which contains no modules.
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
                finally:  # also after Ctrl-C, the child ends before its folder is deleted
                    child.kill()
                    child.wait()
            if child.returncode != 0:
                raise MetisFailedError(_reason(child.returncode, output.decode(errors="replace")))
            return np.load(Path(shared, "cluster.npy"), allow_pickle=False)
    except OSError as error:
        raise MetisFailedError(f"its files could not be written or read: {error}") from error


def _write(path: Path, values: np.ndarray) -> None:
    """Write an array with METIS's integer type, in chunks, so that it is never in memory twice.

    A memory map is not used: on a full disk, writing to one kills the process.
    """
    dtype = index_dtype()
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": values.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, values.size, CHUNK_ROWS):
            file.write(values[begin : begin + CHUNK_ROWS].astype(dtype).data)


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


def _depend_on_parent() -> None:
    """End this process when its parent ends. When memory runs out, the system kills this one first."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    _depend_on_parent()
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
