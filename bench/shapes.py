"""Batches to measure on: of clusters of a graph, or of made-up rows with no locality at all."""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from rest_triton.data.datasets import load
from rest_triton.data.partition import Method, partition
from rest_triton.ops import Adjacency, halo
from rest_triton.sampling.batch import ClusterLoader, PositionMaps

DRAWN = 16_381  # rows with numbers of their own, a prime: torch draws on one thread, and a large table would take seconds


@dataclass
class Batch:
    """Rows of a graph, with position map, in-batch activations and a table of histories."""

    adj: Adjacency
    rows: Tensor
    position: Tensor
    x: Tensor
    table: Tensor
    columns: Tensor  # the neighbours of all rows, one after the other

    @property
    def edges(self) -> int:
        return self.columns.numel()

    @cached_property
    def halo(self) -> Tensor:
        return halo(self.adj, self.rows)

    @cached_property
    def in_batch(self) -> float:
        """The share of edges whose neighbour is of the batch."""
        return float((self.position[self.columns] >= 0).float().mean())

    def with_rows(self, width: int, dtype: torch.dtype) -> "Batch":
        """The same batch with other rows: x in float32, as a model computes it, the table in ``dtype``."""
        some = torch.randn(DRAWN, width, generator=torch.Generator().manual_seed(0)).to(self.rows.device)
        x, table = (some[torch.arange(count, device=some.device) % DRAWN] for count in (len(self.rows), self.adj.num_nodes))
        return replace(self, x=x, table=table.to(dtype))

    def to(self, device: torch.device) -> "Batch":
        moved = (t.to(device) for t in (self.rows, self.position, self.x, self.table, self.columns))
        return Batch(self.adj.to(device), *moved)

    def describe(self) -> str:
        return (
            f"{len(self.rows):,} rows, {self.edges:,} edges, {100 * self.in_batch:.0f} % in-batch, {len(self.halo):,} halo "
            f"rows, table {self.table.shape[0]:,} x {self.table.shape[1]} {str(self.table.dtype)[6:]}"
        )


def neighbours(adj: Adjacency, rows: Tensor) -> Tensor:
    """int64[E]: the columns of these rows, one row after the other."""
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    first = torch.repeat_interleave(adj.rowptr[rows] - (degree.cumsum(0) - degree), degree)
    return adj.col[torch.arange(first.numel(), device=rows.device) + first].long()


@cache
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
    adj = Adjacency(rowptr, columns.int(), row_scale=scale, col_scale=scale).with_reverse()
    x, table = torch.randn(rows, width, generator=g), torch.randn(nodes, width, generator=g)
    return Batch(adj, batch, position, x, table, columns)


@cache
def clustered(dataset: str, root: str, num_parts: int, batch_size: int, method: Method, device: torch.device) -> Batch:
    """The first batch of ``batch_size`` of ``num_parts`` clusters, as the first epoch of a training has it; its rows are of
    width 0. Graph and clusters are kept in ``root``, the batch for the session: all widths are measured on it."""
    graph = load(dataset, root)
    clusters = partition(graph, num_parts, method=method, root=root)
    adj = clusters.apply(graph).adjacency("gcn").to(device)
    batch = ClusterLoader(clusters.ptr, batch_size, seed=0, device=device).epoch(0)[0]
    position = PositionMaps(graph.num_nodes, device).take()
    batch.write_positions(position)
    nothing = torch.empty(0, 0, device=device)
    return Batch(adj, batch.rows, position, nothing, nothing, neighbours(adj, batch.rows))
