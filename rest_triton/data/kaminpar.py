"""KaMinPar, in a child process. ``graph.parhip`` is its input: ParHIP's binary format."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

from ..utils.machine import readable
from . import child

TITLE = "KaMinPar"
# KaMinPar's peak memory: just above the largest measured value (VmHWM of the child) on synthetic, random and power-law
# graphs of 0.25M, 1M and 2M nodes, 2 to 120 edges per node, 10 and 1000 clusters. Random graphs take up to 23 bytes per edge
# beside 150 per node. Graphs with clusters take a third to three quarters of it. tests/data/test_kaminpar.py repeats two
# measurements.
BYTES_PER_NODE, BYTES_PER_EDGE = 150, 24
MOST_NODES = 2**32  # ids of nodes have 32 bits in the file
IMBALANCE = 0.03  # METIS's bound: a cluster's size is at most 1.03 times the mean
# The preset for compressed graphs, which save memory. With a graph that is not compressed its process dies.
PRESET = "terapart"

# ParHIP's header: flags, nodes, edges, as uint64. A flag that is set means "not": no weights of edges, no weights of nodes,
# ids of nodes of less than 64 bits. Row pointers have 64 bits and are positions in the file, in bytes.
NO_EDGE_WEIGHTS, NO_NODE_WEIGHTS, NARROW_NODES = 1, 2, 8
HEADER = 24


def installed() -> bool:
    return importlib.util.find_spec("kaminpar") is not None


def peak_bytes(nodes: int, edges: int) -> int:
    """KaMinPar's peak memory for an undirected graph. ``edges`` counts both directions."""
    return BYTES_PER_NODE * nodes + BYTES_PER_EDGE * edges


def why_not(nodes: int, edges: int, available: int) -> str | None:
    """Why KaMinPar cannot take a graph of this size in so many bytes of memory, or None if it can."""
    if not installed():
        return "its package is not installed (pip install kaminpar)"
    if nodes > MOST_NODES:
        return f"its input has at most {MOST_NODES:,} nodes; the graph has {nodes:,}"
    needed = peak_bytes(nodes, edges)
    if needed > available:
        return f"it needs about {readable(needed)} of memory; {readable(available)} are available"
    return None


def run(rowptr: np.ndarray, col: np.ndarray, num_parts: int, seed: int, folder: Path | None = None) -> child.Division:
    """Divide a graph by KaMinPar's deep multilevel partitioning, on one thread.

    Args:
        rowptr: int64[N+1]; col: int32 or int64 [E]: symmetric, without duplicates. Self-loops are left out.
        folder: where the temporary file goes; None: the system's temporary folder.

    Raises:
        PartitionerFailedError: KaMinPar or its process ended early, or the file could not be written.
    """
    return child.run("rest_triton.data.kaminpar", lambda shared: write(shared, rowptr, col), num_parts, seed, folder)


def write(shared: Path, rowptr: np.ndarray, col: np.ndarray) -> None:
    """Write a graph without its self-loops in ParHIP's binary format."""
    edges = child.Edges(rowptr, col)
    flags = NO_EDGE_WEIGHTS | NO_NODE_WEIGHTS | NARROW_NODES
    first = HEADER + 8 * (edges.num_nodes + 1)
    with open(shared / "graph.parhip", "wb") as file:
        file.write(np.array([flags, edges.num_nodes, edges.num_edges], dtype=np.uint64).data)
        for piece in edges.rowptr():
            file.write((first + 4 * piece).astype(np.uint64).data)
        for piece in edges.col():
            file.write(piece.astype(np.uint32).data)


def main() -> None:
    import kaminpar

    child.depend_on_parent()
    kaminpar.reseed(int(sys.argv[2]))
    # Made before the graph is read: it limits the threads of both. Results of two threads cannot be repeated.
    partitioner = kaminpar.KaMinPar(1, kaminpar.context_by_name(PRESET))
    graph = kaminpar.load_graph("graph.parhip", kaminpar.GraphFileFormat.PARHIP, compress=True)
    child.finish(np.array(partitioner.compute_partition(graph, int(sys.argv[1]), IMBALANCE), dtype=np.int32))


if __name__ == "__main__":
    main()
