"""Small graphs with the cases that break kernels."""

import torch
from torch import Tensor


def csr(source: Tensor, target: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(rowptr, col) of the in-neighbours of each node, in the order of the edges."""
    order = torch.argsort(target, stable=True)
    rowptr = torch.zeros(n + 1, dtype=torch.int64)
    rowptr[1:] = torch.bincount(target, minlength=n).cumsum(0)
    return rowptr, source[order]


def random(n: int = 40, edges: int = 150, seed: int = 0, hub: int = 0) -> tuple[Tensor, Tensor]:
    """A directed graph with duplicate edges, self-loops, isolated nodes and empty rows (asserted). Node 0 gets
    ``hub`` more."""
    g = torch.Generator().manual_seed(seed)
    busy = n * 3 // 4  # the last quarter has no edges at all
    source, target = (torch.randint(0, busy, (edges,), generator=g) for _ in range(2))
    source = torch.cat([source, source[:5], torch.arange(3)])
    target = torch.cat([target, target[:5], torch.arange(3)])
    source = torch.cat([source, torch.randint(0, busy, (hub,), generator=g)])
    target = torch.cat([target, torch.zeros(hub, dtype=torch.int64)])
    rowptr, col = csr(source, target, n)
    assert (rowptr.diff() == 0).any() and (source == target).any()
    return rowptr, col


def undirected(n: int = 40, edges: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(0, n, (edges,), generator=g) for _ in range(2))
    return csr(torch.cat([a, b]), torch.cat([b, a]), n)


def star(n: int = 40) -> tuple[Tensor, Tensor]:
    """Node 0 aggregates from all nodes, and all nodes from node 0."""
    others = torch.arange(1, n)
    zeros = torch.zeros(n - 1, dtype=torch.int64)
    return csr(torch.cat([others, zeros]), torch.cat([zeros, others]), n)


def chain(n: int = 40) -> tuple[Tensor, Tensor]:
    return csr(torch.arange(n - 1), torch.arange(1, n), n)


def edgeless(n: int = 40) -> tuple[Tensor, Tensor]:
    return torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)


KINDS = {"random": random, "undirected": undirected, "star": star, "chain": chain, "edgeless": edgeless}
