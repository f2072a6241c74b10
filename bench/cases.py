"""What the ops are measured on: batches of clusters of graphs with published shapes, and one batch without locality.

The graphs are synthetic, of published size and degree, scaled down to fit a small machine; ``@0.1`` in a name is that
scale. ``--graph arxiv.npz`` puts a real one in arxiv's place. x is float32; the dtype of a case is that of its table.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from rest_triton.data.datasets import load
from rest_triton.data.partition import partition
from rest_triton.ops import Adjacency, halo
from rest_triton.sampling.batch import ClusterBatches, PositionMaps

DRAWN = 16_381  # rows with numbers of their own, a prime: torch draws on one thread, and a large table takes seconds
UNIFORM = "uniform"  # 60,000 rows of 50 neighbours, 70 % of them in-batch, of 600,000 nodes
TINY = "synthetic:nodes=1600,edges=16000,features=4"
#: graph: (scale, clusters, clusters in a batch, partitioner)
SOURCES: dict[str, tuple[float, int, int, str]] = {
    "arxiv": (1.0, 80, 40, "metis"),
    "products": (0.1, 40, 5, "kaminpar"),
    "reddit": (0.25, 40, 10, "metis"),
    "papers100m": (0.01, 40, 2, "kaminpar"),
}


@dataclass(frozen=True)
class Case:
    """A graph of ``SOURCES`` or ``UNIFORM``, the width of rows and the dtype of the table. ``thorough``: the slow
    alternatives are measured as well."""

    graph: str
    width: int
    dtype: str = "float32"
    thorough: bool = False

    def __str__(self) -> str:
        return f"{self.graph}-{self.width}-{self.dtype}"


#: Every graph at widths 47 (odd) and 128, and each of 256 and the half dtypes where it weighs most.
AGGREGATES = [
    Case(UNIFORM, 128, thorough=True),
    Case("arxiv", 47, thorough=True),
    Case("products", 47, thorough=True),
    Case("reddit", 47),
    Case("papers100m", 47),
    *(Case(graph, 128) for graph in SOURCES),
    Case("arxiv", 256),
    Case("arxiv", 128, "bfloat16"),
    Case("products", 256, "bfloat16"),
    Case("reddit", 256, "float16"),
    Case("papers100m", 128, "float16"),
]


@dataclass
class Batch:
    """Rows of a graph, with position map, in-batch activations and a table of histories."""

    adj: Adjacency
    rows: Tensor
    position: Tensor
    x: Tensor
    table: Tensor
    columns: Tensor  # the neighbours of all rows, one after the other

    @cached_property
    def halo(self) -> Tensor:
        return halo(self.adj, self.rows)

    def with_rows(self, width: int, dtype: torch.dtype) -> "Batch":
        """The same batch with random x in float32 and a random table in ``dtype``."""
        some = torch.randn(DRAWN, width, generator=torch.Generator().manual_seed(0)).to(self.rows.device)
        x, table = (some[torch.arange(count, device=some.device) % DRAWN] for count in (len(self.rows), self.adj.num_nodes))
        return replace(self, x=x, table=table.to(dtype))


def build(case: Case, *, tiny: bool, graph: str, root: str, device: torch.device) -> tuple[str, Batch]:
    """(name, batch) of a case. tiny: a small graph, to check that a benchmark runs. graph: what stands in arxiv's place."""
    width = min(case.width, 16) if tiny else case.width
    if case.graph == UNIFORM:
        rows, degree, nodes = (200, 10, 1_000) if tiny else (60_000, 50, 600_000)
        name, batch = f"{rows:,} x {degree} uniform of {nodes:,}", uniform(rows, degree, nodes, 0.7, device)
    else:
        scale, num_parts, batch_size, method = SOURCES[case.graph]
        # Features are not looked at: x and tables are drawn at the width of the case.
        dataset = f"synthetic:{case.graph}@{scale:g},features=1"
        if case.graph == "arxiv" and not graph.startswith("synthetic:"):
            dataset = graph
        if tiny:
            dataset, num_parts, batch_size, method = TINY, 8, 2, "kaminpar"
        name = f"{dataset.removeprefix('synthetic:').removesuffix(',features=1')}, {batch_size} of {num_parts} clusters"
        batch = clustered(dataset, root, num_parts, batch_size, method, device)
    return f"{name}, width {width}, {case.dtype}", batch.with_rows(width, getattr(torch, case.dtype))


def neighbours(adj: Adjacency, rows: Tensor) -> Tensor:
    """int64[E]: the columns of these rows, one row after the other."""
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    first = torch.repeat_interleave(adj.rowptr[rows] - (degree.cumsum(0) - degree), degree)
    return adj.col[torch.arange(first.numel(), device=rows.device) + first].long()


@cache
def uniform(rows: int, degree: int, nodes: int, in_batch: float, device: torch.device) -> Batch:
    """Rows of equal degree whose neighbours are in the batch with probability ``in_batch``, else anywhere: no locality
    at all, the worst case for a cache."""
    g = torch.Generator().manual_seed(0)
    batch = torch.randperm(nodes, generator=g)[:rows].sort().values
    rowptr = torch.zeros(nodes + 1, dtype=torch.int64)
    rowptr[batch + 1] = degree
    edges = rows * degree
    inside = torch.rand(edges, generator=g) < in_batch
    near = batch[torch.randint(0, rows, (edges,), generator=g)]
    columns = torch.where(inside, near, torch.randint(0, nodes, (edges,), generator=g))
    position = ~torch.arange(nodes, dtype=torch.int32)
    position[batch] = torch.arange(rows, dtype=torch.int32)
    scale = torch.rand(nodes, generator=g) + 0.5
    adj = Adjacency(rowptr.cumsum(0), columns.int(), row_scale=scale, col_scale=scale).with_reverse()
    return _without_rows(adj.to(device), batch.to(device), position.to(device), columns.to(device))


@cache
def clustered(dataset: str, root: str, num_parts: int, batch_size: int, method: str, device: torch.device) -> Batch:
    """The first batch of the first epoch. Graph and clusters are kept in ``root``, the batch for the session."""
    graph = load(dataset, root)
    clusters = partition(graph, num_parts, method=method, root=root)
    adj = clusters.apply(graph).adjacency("gcn").to(device)
    batch = ClusterBatches(clusters.ptr, batch_size, seed=0, device=device).epoch(0)[0]
    position = PositionMaps(graph.num_nodes, device).take()
    batch.write_positions(position)
    return _without_rows(adj, batch.rows, position, neighbours(adj, batch.rows))


def _without_rows(adj: Adjacency, rows: Tensor, position: Tensor, columns: Tensor) -> Batch:
    nothing = torch.empty(0, 0, device=rows.device)
    return Batch(adj, rows, position, nothing, nothing, columns)
