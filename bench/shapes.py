"""Batches to measure on, with the statistics of real ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rest_triton.ops import Adjacency


@dataclass
class Batch:
    """Rows of a graph, with position map, in-batch activations and a table of histories."""

    adj: Adjacency
    rows: Tensor
    position: Tensor
    x: Tensor
    table: Tensor
    columns: Tensor  # the neighbours of all rows, one after the other
    edges: int


def uniform(rows: int, degree: int, nodes: int, width: int, in_batch: float) -> Batch:
    """Rows of equal degree whose neighbours are in the batch with probability ``in_batch``, else anywhere: no locality at
    all, the worst case for a cache."""
    g = torch.Generator().manual_seed(0)
    batch = torch.randperm(nodes, generator=g)[:rows].sort().values
    rowptr = torch.zeros(nodes + 1, dtype=torch.int64)
    rowptr[batch + 1] = degree
    rowptr = rowptr.cumsum(0)
    edges = rows * degree
    inside = torch.rand(edges, generator=g) < in_batch
    near = batch[torch.randint(0, rows, (edges,), generator=g)]
    columns = torch.where(inside, near, torch.randint(0, nodes, (edges,), generator=g))
    position = ~torch.arange(nodes, dtype=torch.int32)
    position[batch] = torch.arange(rows, dtype=torch.int32)
    scale = torch.rand(nodes, generator=g) + 0.5
    # Declared undirected so that backward can be timed on the same shape; the values of the gradient do not matter here.
    adj = Adjacency(rowptr, columns.int(), row_scale=scale, col_scale=scale).undirected()
    x, table = torch.randn(rows, width, generator=g), torch.randn(nodes, width, generator=g)
    return Batch(adj, batch, position, x, table, columns, edges)


def powerlaw(rows: int, edges: int, nodes: int, cluster: int) -> tuple[Adjacency, Tensor]:
    """A graph with arxiv's shape: degrees fall off like a power law, most neighbours lie in the same part of the graph, and
    the first ``rows`` nodes are the batch."""
    g = torch.Generator().manual_seed(0)
    degree = (torch.rand(nodes, generator=g) + 1e-3).pow(-0.6)
    degree = (degree * (edges * nodes / rows / degree.sum())).round().long().clamp(min=1)
    rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    source = torch.repeat_interleave(torch.arange(nodes), degree)
    local = (source // cluster) * cluster + torch.randint(0, cluster, source.shape, generator=g)
    anywhere = torch.randint(0, nodes, source.shape, generator=g)
    columns = torch.where(torch.rand(source.shape, generator=g) < 0.8, local.clamp(max=nodes - 1), anywhere)
    scale = degree.float().rsqrt()
    return Adjacency(rowptr, columns.int(), row_scale=scale, col_scale=scale), torch.arange(rows)
