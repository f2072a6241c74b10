"""Graphs to partition, and checks that hold for every partition."""

import pytest
import torch

from rest_triton.data.graph import Graph
from rest_triton.data.partition import Partition

from .ops import graphs


def from_kind(kind: str, n: int = 40) -> Graph:
    rowptr, col = graphs.KINDS[kind](n)
    row = torch.repeat_interleave(torch.arange(n), rowptr.diff())
    return Graph.from_edges(torch.stack([col, row]), n, name=kind)


def planted(nodes: int = 3000, groups: int = 10, edges: int = 30_000, mixed: float = 0.1, seed: int = 0) -> Graph:
    """An undirected graph. All but a share of the edges stay inside groups. Ids of a group's nodes are far apart."""
    g = torch.Generator().manual_seed(seed)
    source = torch.randint(0, nodes, (edges,), generator=g)
    inside = (source + groups * torch.randint(0, nodes // groups, (edges,), generator=g)) % nodes
    anywhere = torch.randint(0, nodes, (edges,), generator=g)
    target = torch.where(torch.rand(edges, generator=g) < mixed, anywhere, inside)
    return Graph.from_edges(torch.stack([source, target]), nodes, symmetrise=True, name="planted")


def cluster_of(made: Partition) -> torch.Tensor:
    """The cluster of each node of the original graph."""
    return torch.repeat_interleave(torch.arange(made.num_clusters), made.ptr.diff())[made.inverse]


def cut_of(graph: Graph, cluster: torch.Tensor) -> float:
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    return float((cluster[row] != cluster[graph.col.long()]).double().sum()) / max(1, graph.num_edges)


def assert_good(made: Partition, graph: Graph, parts: int) -> None:
    sizes = made.ptr.diff()
    assert made.ptr.dtype == made.order.dtype == torch.int64
    assert made.num_clusters == parts and int(made.ptr[0]) == 0 and int(made.ptr[-1]) == graph.num_nodes and sizes.min() >= 1
    assert torch.equal(made.order.sort().values, torch.arange(graph.num_nodes))
    assert torch.equal(made.inverse[made.order], torch.arange(graph.num_nodes))
    assert made.cut == pytest.approx(cut_of(graph, cluster_of(made)), abs=1e-12)
    assert made.balance == pytest.approx(int(sizes.max()) / float(sizes.double().mean()))


def same(a: Partition, b: Partition) -> bool:
    return torch.equal(a.ptr, b.ptr) and torch.equal(a.order, b.order)
