"""Graphs as (rowptr int64[N+1], col int32 or int64 [E]): the in-neighbours of node g are col[rowptr[g] .. rowptr[g+1]].

Everything here takes and returns such pairs with ascending columns, in time linear in nodes and edges, on all of torch's
threads, and needs at most half as much memory again as it returns (symmetrise: and 8 bytes per node). The result does not
depend on the number of threads.
"""

import hashlib

import torch
from torch import Tensor

from ..kernels._hash import seed_key
from ..kernels.cpu import buckets
from ..kernels.cpu import csr as kernels

Csr = tuple[Tensor, Tensor]
dense = torch.Tensor.contiguous  # kernels want elements side by side; nearly always they are, and nothing is copied

_FINGERPRINT_KEY = seed_key(0x6E65696768626F75)  # never changes: fingerprints are written into files


def from_edges(source: Tensor, target: Tensor, num_nodes: int, *, mirror: bool = False, deduplicate: bool = False) -> Csr:
    """The edges ``source[k] -> target[k]``, in any order. ``mirror`` adds each the other way round and implies
    ``deduplicate``. Needs (index size + 2) bytes per listed edge and direction."""
    rowptr, col, _ = buckets.edges_to_csr(
        dense(source), dense(target), num_nodes, mirror=mirror, unique=mirror or deduplicate
    )
    return rowptr, col


def reverse(rowptr: Tensor, col: Tensor) -> Csr:
    """Every edge turned round."""
    rowptr, col = dense(rowptr), dense(col)
    return buckets.edges_to_csr(None, col, rowptr.numel() - 1, rowptr=rowptr, sort=False)[:2]


def reverse_with_names(rowptr: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every edge turned round, and for each the place it had: (rowptr, col, int32 or int64 [E])."""
    rowptr, col = dense(rowptr), dense(col)
    rowptr, col, names = buckets.edges_to_csr(None, col, rowptr.numel() - 1, rowptr=rowptr, sort=False, names=True)
    assert names is not None
    return rowptr, col, names


def symmetrise(rowptr: Tensor, col: Tensor) -> Csr:
    """Every edge both ways, each once."""
    rowptr, col = dense(rowptr), dense(col)
    backwards = reverse(rowptr, col)
    # Only the edges whose mirror is missing are kept beside the graph while the union is made.
    missing = kernels.rewrite(rowptr, col, kernels.MISSING, backwards)
    del backwards
    return kernels.rewrite(rowptr, col, kernels.UNION, missing)


def union(first: Csr, second: Csr) -> Csr:
    """The edges of both, each once."""
    return kernels.rewrite(*first, kernels.UNION, kernels.rewrite(*first, kernels.MISSING, second))


def deduplicate(rowptr: Tensor, col: Tensor) -> Csr:
    """Each edge once; the same arrays where that is so already."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.UNIQUE)


def with_self_loops(rowptr: Tensor, col: Tensor) -> Csr:
    """An edge from every node to itself, once."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.LOOPS)


def without_self_loops(rowptr: Tensor, col: Tensor) -> Csr:
    """No edge from a node to itself; the same arrays where that is so already."""
    return kernels.rewrite(dense(rowptr), dense(col), kernels.NO_LOOPS)


def permute(rowptr: Tensor, col: Tensor, order: Tensor) -> Csr:
    """Node i is what node ``order[i]`` was; ``order`` int64[N] holds every node once."""
    return kernels.permute(dense(rowptr), dense(col), dense(order))


def degree_scale(rowptr: Tensor, *, root: bool) -> Tensor:
    """float32[N]: ``degree ** -0.5`` (root) or ``degree ** -1``; 0 for nodes without neighbours."""
    return kernels.degree_scale(dense(rowptr), root=root)


def fingerprint(rowptr: Tensor, col: Tensor) -> tuple[str, bool, bool]:
    """(32 hexadecimal digits for the edges, whether each is there both ways, whether columns ascend)."""
    there, second, back, ascending = kernels.fingerprint(dense(rowptr), dense(col), _FINGERPRINT_KEY)
    text = f"{rowptr.numel() - 1} {col.numel()} {there:016x} {second:016x}"
    return hashlib.sha256(text.encode()).hexdigest()[:32], there == back, ascending
