"""Functions on CSR graphs (rowptr int64[N+1], col int32 or int64 [E]).

The in-neighbours of node g are col[rowptr[g] .. rowptr[g+1]].

All of them take and return pairs with ascending columns. They run in time linear in nodes and edges, on torch's threads.
Scratch memory is at most half of the result's (``symmetrise``: and 8 bytes per node). The number of threads does not
change the result.
"""

import hashlib

import torch
from torch import Tensor

from ..kernels._hash import seed_key
from ..kernels.cpu import buckets
from ..kernels.cpu import csr as kernels

Csr = tuple[Tensor, Tensor]
dense = torch.Tensor.contiguous  # kernels take contiguous arrays; nearly always nothing is copied

_FINGERPRINT_KEY = seed_key(0x6E65696768626F75)  # must not change: fingerprints are written into files


def from_edges(source: Tensor, target: Tensor, num_nodes: int, *, mirror: bool = False, deduplicate: bool = False) -> Csr:
    """The CSR of the edges ``source[k] -> target[k]``, in any order. Takes (index size + 2) bytes per edge and direction.

    ``deduplicate`` keeps each edge once. ``mirror`` also adds the reverse of every edge.
    """
    rowptr, col, _ = buckets.edges_to_csr(
        dense(source), dense(target), num_nodes, mirror=mirror, unique=mirror or deduplicate
    )
    return rowptr, col


def reverse(rowptr: Tensor, col: Tensor) -> Csr:
    """Reverse every edge."""
    rowptr, col = dense(rowptr), dense(col)
    return buckets.edges_to_csr(None, col, rowptr.numel() - 1, rowptr=rowptr, sort=False)[:2]


def symmetrise(rowptr: Tensor, col: Tensor) -> Csr:
    """Add the reverse of every edge and keep each edge once."""
    rowptr, col = dense(rowptr), dense(col)
    backwards = reverse(rowptr, col)
    # Only the missing reverse edges are stored beside the graph during the union.
    missing = kernels.rewrite(rowptr, col, kernels.MISSING, backwards)
    del backwards
    return kernels.rewrite(rowptr, col, kernels.UNION, missing)


def union(first: Csr, second: Csr) -> Csr:
    """The union of two sets of edges."""
    return kernels.rewrite(*first, kernels.UNION, kernels.rewrite(*first, kernels.MISSING, second))


def deduplicate(rowptr: Tensor, col: Tensor) -> Csr:
    """Keep each edge once. Returns the given arrays if nothing changes."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.UNIQUE)


def with_self_loops(rowptr: Tensor, col: Tensor) -> Csr:
    """Give every node exactly one self-loop."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.LOOPS)


def without_self_loops(rowptr: Tensor, col: Tensor) -> Csr:
    """Remove all self-loops. Returns the given arrays if nothing changes."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.NO_LOOPS)


def permute(rowptr: Tensor, col: Tensor, order: Tensor) -> Csr:
    """Permute the nodes: node i is node ``order[i]`` of the given graph. ``order`` is int64[N]."""
    return kernels.permute(dense(rowptr), dense(col), dense(order))


def degree_scale(rowptr: Tensor, *, root: bool) -> Tensor:
    """``degree ** -0.5`` (root) or ``degree ** -1``, float32[N]; 0 for isolated nodes."""
    return kernels.degree_scale(dense(rowptr), root=root)


def fingerprint(rowptr: Tensor, col: Tensor) -> tuple[str, bool, bool]:
    """(a hash of the edges in 32 hexadecimal digits, whether every edge has its reverse, whether columns ascend)."""
    forward, second, backward, ascending = kernels.fingerprint(dense(rowptr), dense(col), _FINGERPRINT_KEY)
    text = f"{rowptr.numel() - 1} {col.numel()} {forward:016x} {second:016x}"
    return hashlib.sha256(text.encode()).hexdigest()[:32], forward == backward, ascending
