"""METIS, in a child process. ``rowptr.npy`` and ``col.npy`` are its input."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..utils.machine import readable
from . import child

TITLE = "METIS"
# METIS's peak memory with 64-bit indices, its input included: just above the largest measured value (VmHWM of the child) on
# random and clustered graphs with power-law degrees, 0.5M to 8M edges, 2 to 240 per node, 10 to 1000 clusters. Clustered
# graphs take down to half of it. tests/data/test_metis.py repeats one measurement.
BYTES_PER_NODE, BYTES_PER_EDGE = 150, 115


def index_dtype() -> np.dtype:
    """The integer type that METIS was built with, int32 or int64. Arrays of it are passed without a copy."""
    import pymetis  # not installed everywhere

    return pymetis.zero_copy_dtype()


def installed() -> bool:
    return importlib.util.find_spec("pymetis") is not None


def peak_bytes(nodes: int, edges: int) -> int:
    """METIS's peak memory for an undirected graph. ``edges`` counts both directions."""
    return (BYTES_PER_NODE * nodes + BYTES_PER_EDGE * edges) * index_dtype().itemsize // 8


def why_not(nodes: int, edges: int, available: int) -> str | None:
    """Why METIS cannot take a graph of this size in so many bytes of memory, or None if it can."""
    if not installed():
        return "its package is not installed (pip install pymetis)"
    index = index_dtype()
    largest = int(np.iinfo(index).max)
    if max(nodes, edges) > largest:
        return (
            f"its integers have {8 * index.itemsize} bits, up to {largest:,}; the graph has "
            f"{nodes:,} nodes and {edges:,} edges (both directions)"
        )
    needed = peak_bytes(nodes, edges)
    if needed > available:
        return f"it needs about {readable(needed)} of memory; {readable(available)} are available"
    return None


def run(rowptr: np.ndarray, col: np.ndarray, num_parts: int, seed: int, folder: Path | None = None) -> child.Division:
    """Divide a graph by METIS's k-way partitioning.

    Args:
        rowptr: int64[N+1]; col: int32 or int64 [E]: symmetric, without duplicates. Self-loops are left out.
        folder: where the temporary files go; None: the system's temporary folder.

    Raises:
        PartitionerFailedError: METIS or its process ended early, or the files could not be written.
    """
    return child.run("rest_triton.data.metis", lambda shared: write(shared, rowptr, col), num_parts, seed, folder)


def write(shared: Path, rowptr: np.ndarray, col: np.ndarray) -> None:
    """Write a graph without its self-loops."""
    edges = child.Edges(rowptr, col)
    _write(shared / "rowptr.npy", edges.num_nodes + 1, edges.rowptr())
    _write(shared / "col.npy", edges.num_edges, edges.col())


def _write(path: Path, size: int, pieces: Iterator[np.ndarray]) -> None:
    """Write an array with METIS's integer type.

    A memory map is not used: on a full disk, writing to one kills the process.
    """
    dtype = index_dtype()
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece.astype(dtype).data)


def main() -> None:
    import pymetis

    child.depend_on_parent()
    rowptr, col = (np.load(name, mmap_mode="r") for name in ("rowptr.npy", "col.npy"))
    _, cluster = pymetis.part_graph(
        int(sys.argv[1]),
        pymetis.CSRAdjacency(rowptr, col),
        recursive=False,
        options=pymetis.Options(seed=int(sys.argv[2])),
    )
    child.finish(np.asarray(cluster, dtype=np.int32))


if __name__ == "__main__":
    main()
