"""Batches that GPU kernels are estimated and measured on: counts from which every byte follows, and a graph that has them.

arxiv is counted on the graph itself, by

    python -m bench.gpu_shapes arxiv.npz --num-parts 80 --batch-size 40        any data set that rest_triton.train takes

The others have the published numbers of nodes and edges and their recipes' share of
clusters; how large a halo is, how many edges stay inside and how many rows are hubs are assumptions there.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rest_triton.kernels._hubs import HUB_DEGREE, HUB_SEGMENT


@dataclass(frozen=True)
class Shape:
    """A batch: ``rows`` with ``edges`` in all, to ``inside`` distinct nodes of the batch and ``halo`` outside of it.

    ``hubs`` rows have ``hub_edges`` edges in equal shares, one row has ``longest``, the others have what is left in
    equal shares. A single segment of a graph's hubs costs a program in every batch, hence ``graph_hubs``.
    """

    name: str
    source: str
    rows: int
    edges: int
    halo: int
    inside: int
    share: float  # of the edges that end inside
    longest: int  # edges of the longest row that is no hub
    hubs: int = 0
    hub_edges: int = 0
    graph_hubs: int = 0

    def __post_init__(self) -> None:
        within = round(self.edges * self.share)
        if within < self.inside or self.edges - within < self.halo:
            raise ValueError(
                f"{self.name}: {within} edges inside cannot reach {self.inside} rows, or {self.edges - within} outside"
                f" {self.halo}; fewer distinct nodes or more edges would do"
            )
        short = [n for n, _ in self.degrees() if n <= HUB_DEGREE]
        if sum(n * rows for n, rows in self.degrees()) != self.edges or max(short, default=0) > max(self.longest, 1):
            raise ValueError(
                f"{self.name}: {self.edges} edges do not divide into {self.degrees()}; longest is {self.longest}"
            )

    def degrees(self) -> list[tuple[int, int]]:
        """(edges of a row, rows with as many): hubs first, then the longest row, then all others."""
        rest = _shares(self.edges - self.hub_edges - self.longest, self.rows - self.hubs - 1)
        return [*_shares(self.hub_edges, self.hubs), (self.longest, 1), *rest]

    def total(self, count: Callable[[int], int], hubs: bool = False) -> int:
        """The sum of ``count(degree)`` over all rows that are hubs, or over those that are not."""
        return sum(count(n) * rows for n, rows in self.degrees() if (n > HUB_DEGREE) == hubs)

    @property
    def distinct(self) -> int:
        return self.inside + self.halo

    @property
    def segments(self) -> int:
        """Of the hubs in the batch."""
        return self.total(segments_of, hubs=True)

    @property
    def graph_segments(self) -> int:
        """Of all hubs of the graph: those that are not in the batch are as long as these on average."""
        return self.segments * self.graph_hubs // self.hubs if self.hubs else 0


def segments_of(degree: int) -> int:
    return -(-degree // HUB_SEGMENT)


def _shares(edges: int, rows: int) -> list[tuple[int, int]]:
    """``edges`` dealt to ``rows`` as evenly as whole numbers allow."""
    if rows <= 0:
        return []
    low, more = divmod(edges, rows)
    return [pair for pair in ((low + 1, more), (low, rows - more)) if pair[1]]


def _assumed(name: str, source: str, rows: int, edges: int, halo: int, share: float, clusters: float) -> Shape:
    """A shape with 2 % of its edges at hubs of 4,096 edges (arxiv: 5 % at 7,000), and as many hubs in every other batch."""
    hubs = round(0.02 * edges / 4096)
    return Shape(name, source, rows, edges, halo, rows, share, HUB_DEGREE, hubs, 4096 * hubs, round(hubs / clusters))


SHAPES = (
    Shape(
        "arxiv", "40 of 80 METIS clusters of ogbn-arxiv, counted", 84_618, 1_059_971, 41_532, 84_603, 0.794, 1849,
        hubs=7, hub_edges=49_167, graph_hubs=18,
    ),
    _assumed(
        "products", "5 of 40 clusters; rows, edges and halo as in synthetic:products",
        307_404, 15_700_000, 1_590_000, share=0.65, clusters=5 / 40,
    ),
    _assumed(
        "reddit", "100 of 200 clusters of Reddit2; a halo of nearly all other nodes",
        116_482, 11_606_919, 110_000, share=0.7, clusters=100 / 200,
    ),
    _assumed(
        "papers100m", "5 of 1,000 clusters; a halo of seven times the batch",
        555_300, 16_140_000, 4_000_000, share=0.5, clusters=5 / 1000,
    ),
)  # fmt: skip


@dataclass
class Graph:
    """The tensors of a shape: a CSR in which only the batch's rows have edges, and where the batch's nodes are read from."""

    rowptr: Tensor  # int64 [N + 1]
    col: Tensor  # int32
    rows: Tensor  # int64, sorted
    halo: Tensor  # int64, sorted
    position: Tensor  # int32 [N]
    hub_node: Tensor | None  # int64, sorted
    hub_first: Tensor | None  # int64
    hub_segments: int

    @property
    def nodes(self) -> int:
        return self.position.numel()


def make(shape: Shape, device: torch.device | str = "cpu") -> Graph:
    """A graph with exactly the counts of ``shape``. Rows and halo lie scattered among twice as many nodes, as they do in a
    table; hubs that are not in the batch are there as well, and their programs find so."""
    random = torch.Generator().manual_seed(0)
    away = shape.graph_hubs - shape.hubs
    nodes = 2 * (shape.rows + shape.halo) + away
    order = torch.randperm(nodes, generator=random)
    rows = order[: shape.rows].sort().values
    halo = order[shape.rows : shape.rows + shape.halo].sort().values
    degree = torch.cat([torch.full((count,), n) for n, count in shape.degrees()])
    degree = degree[torch.randperm(shape.rows, generator=random)]
    counts = torch.zeros(nodes + 1, dtype=torch.int64)
    counts[rows + 1] = degree

    within = round(shape.edges * shape.share)
    inside = rows[torch.randperm(shape.rows, generator=random)[: shape.inside]]
    col = torch.cat([_cover(inside, within, random), _cover(halo, shape.edges - within, random)])
    col = col[torch.randperm(shape.edges, generator=random)].int()
    position = ~torch.arange(nodes, dtype=torch.int32)
    position[rows] = torch.arange(shape.rows, dtype=torch.int32)

    hub_node = hub_first = None
    if shape.graph_hubs:
        here = degree > HUB_DEGREE
        lengths = {g: segments_of(n) for g, n in zip(rows[here].tolist(), degree[here].tolist(), strict=True)}
        others = order[shape.rows + shape.halo :][:away]
        spare = shape.graph_segments - shape.segments
        lengths |= {g: spare // away + (i < spare % away) for i, g in enumerate(others.tolist())}
        hub_node = torch.tensor(sorted(lengths))
        hub_first = torch.tensor([0] + [lengths[g] for g in hub_node.tolist()]).cumsum(0).to(device)
        hub_node = hub_node.to(device)
    return Graph(
        counts.cumsum(0).to(device), col.to(device), rows.to(device), halo.to(device), position.to(device),
        hub_node, hub_first, shape.graph_segments,
    )  # fmt: skip


def _cover(nodes: Tensor, edges: int, random: torch.Generator) -> Tensor:
    """``edges`` nodes of ``nodes``, each at least once."""
    return torch.cat([nodes, nodes[torch.randint(0, max(len(nodes), 1), (edges - len(nodes),), generator=random)]])


def counted(name: str, source: str, rowptr: Tensor, col: Tensor, rows: Tensor) -> Shape:
    """The shape of a real batch."""
    degree, inside = rowptr.diff(), torch.zeros(rowptr.numel() - 1, dtype=torch.bool)
    inside[rows] = True
    owner = torch.repeat_interleave(torch.arange(len(degree)), degree)
    neighbours = col[inside[owner]].long()
    distinct = neighbours.unique()
    within = inside[distinct]
    own = degree[rows]
    hubs = own > HUB_DEGREE
    return Shape(
        name, source, len(rows), len(neighbours), int((~within).sum()), int(within.sum()),
        round(float(inside[neighbours].double().mean()), 3), int(own[~hubs].max()), int(hubs.sum()), int(own[hubs].sum()),
        int((degree > HUB_DEGREE).sum()),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    from rest_triton.data.datasets import load
    from rest_triton.data.partition import partition
    from rest_triton.sampling.batch import ClusterLoader

    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_shapes", description="Count the shape of a graph's first batch."
    )
    parser.add_argument("dataset", help="a data set's name, or the path of an .npz")
    parser.add_argument("--num-parts", type=int, required=True, help="clusters of the graph")
    parser.add_argument("--batch-size", type=int, required=True, help="clusters of a batch")
    options = parser.parse_args(arguments)
    graph = load(options.dataset)
    clusters = partition(graph, options.num_parts)
    graph = clusters.apply(graph)
    batch = next(iter(ClusterLoader(clusters.ptr, options.batch_size, 0).epoch(0)))
    source = f"{options.batch_size} of {options.num_parts} clusters, counted"
    print(counted(options.dataset, source, graph.rowptr, graph.col, batch.rows))


if __name__ == "__main__":
    main()
