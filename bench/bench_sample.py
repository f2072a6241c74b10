"""sample_neighbours, place_nodes and transpose against plain torch, and against a copy of the bytes that they touch.

The rows are those of a batch: clusters of a graph, or nodes in no order. Last, a sampled field of three layers as the
methods make it, per sampled edge.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import place_nodes, place_nodes_definition, sample_neighbours, transpose, transpose_definition
from rest_triton.sampling.batch import PositionMaps
from rest_triton.sampling.sample import fields

from .cases import SOURCES, UNIFORM, Batch, Case, neighbours
from .harness import OURS, Bench, Limit, Variant
from .limits import copy, place_bytes, sample_bytes, transpose_bytes

GRAPHS = [UNIFORM, *SOURCES]
FANOUTS = [2, 10]


@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("graph", GRAPHS)
def bench_sample_neighbours(bench: Bench, graph: str, fanout: int) -> None:
    """The alternatives are uniform samples without replacement, too. They differ from ours, so their sizes are checked."""
    name, b = bench.build(Case(graph, 1))

    def ours() -> Tensor:
        return sample_neighbours(b.adj, b.rows, fanout, seed=1)[1]

    variants = [
        Variant(OURS, ours),
        Variant("a random key per edge, sorted by row and key", partial(by_sort, b, fanout)),
        Variant("random keys in a padded matrix + topk", partial(by_topk, b, fanout)),
    ]
    rowptr, edge = sample_neighbours(b.adj, b.rows, fanout)

    def check(got: Sequence[Tensor]) -> float:
        distinct = len(torch.unique(got[0])) == len(got[0])
        return 0.0 if distinct and len(got[0]) == len(edge) else float("inf")

    limit = copy(sample_bytes(b, rowptr, edge), b.rows.device)
    bench.op("sample_neighbours", f"{name.split(', width')[0]}, fan-out {fanout}", variants, check, [limit])


def by_sort(b: Batch, fanout: int) -> Tensor:
    """Torch has no sort per row of a CSR: all edges are sorted by key, then stably by row."""
    start, degree = b.adj.rowptr[b.rows], b.adj.rowptr[b.rows + 1] - b.adj.rowptr[b.rows]
    first = degree.cumsum(0) - degree
    row = torch.repeat_interleave(torch.arange(len(degree), device=start.device), degree)
    order = torch.rand(len(row), device=row.device).argsort()
    order = order[row[order].argsort(stable=True)]
    kept = torch.arange(len(row), device=row.device) - first[row] < fanout
    return order[kept] + (start - first)[row[kept]]


def by_topk(b: Batch, fanout: int) -> Tensor:
    start, degree = b.adj.rowptr[b.rows], b.adj.rowptr[b.rows + 1] - b.adj.rowptr[b.rows]
    width = int(degree.max())
    if len(degree) * width > 1 << 28:
        raise ValueError(f"a matrix of {len(degree)} x {width} keys is too large")
    key = torch.rand(len(degree), width, device=start.device)
    key[torch.arange(width, device=start.device) >= degree[:, None]] = -1.0
    best, chosen = key.topk(min(fanout, width), dim=1)
    return (chosen + start[:, None])[best >= 0]


@pytest.mark.parametrize("graph", GRAPHS)
def bench_place_nodes(bench: Bench, graph: str) -> None:
    """The sampled neighbours of a batch. Each round ends by taking the new places back, in ours and in the alternative."""
    name, b = bench.build(Case(graph, 1))
    nodes = b.adj.col[sample_neighbours(b.adj, b.rows, 10)[1]]
    fresh, places = place_nodes_definition(b.position.clone(), nodes, len(b.rows))

    def restored(place: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[], Tensor]:
        position = b.position.clone()

        def run() -> Tensor:
            new, places = place(position, nodes, len(b.rows))
            position[new] = ~new.int()
            return places

        return run

    def by_unique(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
        nodes = nodes.long()
        new = torch.unique(nodes[position[nodes] < 0])
        position[new] = torch.arange(first, first + len(new), dtype=torch.int32, device=new.device)
        return new, position[nodes]

    variants = [Variant(OURS, restored(place_nodes)), Variant("torch.unique + a map", restored(by_unique))]
    limit = copy(place_bytes(nodes, fresh), nodes.device)
    bench.op("place_nodes", name.split(", width")[0], variants, equals(places), [limit], tolerance=0.0)


@pytest.mark.parametrize("graph", GRAPHS)
def bench_transpose(bench: Bench, graph: str) -> None:
    """The sample of a batch by column."""
    name, b = bench.build(Case(graph, 1))
    rowptr, edge = sample_neighbours(b.adj, b.rows, 10)
    fresh, col = place_nodes(b.position.clone(), b.adj.col[edge], len(b.rows))
    columns = len(b.rows) + len(fresh)

    def by_sort() -> Tensor:
        row = torch.repeat_interleave(torch.arange(len(b.rows), dtype=torch.int32, device=col.device), rowptr.diff())
        ordered, order = torch.sort(col, stable=True)
        torch.searchsorted(ordered, torch.arange(columns + 1, dtype=torch.int32, device=col.device))
        return row[order]

    variants = [
        Variant(OURS, lambda: transpose(rowptr, col, columns)[1]),
        Variant("torch.sort, stable, + searchsorted", by_sort),
    ]
    limit = copy(transpose_bytes(rowptr, col, columns), col.device)
    check = equals(transpose_definition(rowptr, col, columns)[1])
    bench.op("transpose", name.split(", width")[0], variants, check, [limit], tolerance=0.0)


@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("graph", GRAPHS)
def bench_fields(bench: Bench, graph: str, fanout: int) -> None:
    """A sixteenth of the batch's rows and what three layers read of them: samples, places, weights, transposes.

    The limit is a copy of what the three ops touch. The case names the sampled edges.
    """
    name, b = bench.build(Case(graph, 1))
    targets = b.rows[:: max(1, len(b.rows) // (b.adj.num_nodes // 16 + 1))]
    maps = PositionMaps(b.adj.num_nodes, b.rows.device)
    make: Callable[[], Any] = partial(fields, b.adj, targets, [fanout] * 3, maps, 1)
    batch = make()
    samples = [sample.adj for sample in batch.samples]
    edges, nbytes = sum(adj.num_edges for adj in samples), 0
    for layer, adj in enumerate(samples):
        rows = batch.rows[: batch.counts[layer + 1]]
        fresh = batch.rows[batch.counts[layer + 1] : batch.counts[layer]]
        nodes = neighbours(adj, torch.arange(adj.num_nodes, device=rows.device)).int()
        sampled = Batch(b.adj, rows, b.position, b.x, b.table, b.columns)
        nbytes += sample_bytes(sampled, adj.rowptr, nodes.long()) + place_bytes(nodes, fresh)
        nbytes += transpose_bytes(adj.rowptr, adj.col, adj.num_columns)
    title = f"{name.split(', width')[0]}, {len(targets):,} targets, fan-out {fanout}, {edges:,} edges"
    limits: list[Limit] = [copy(nbytes, b.rows.device)]
    best = bench.in_turn("a field of three layers", title, {OURS: make}, limits)
    bench.lines.append(f"  {1e9 * best[OURS] / max(1, edges):9.1f} ns per sampled edge")


def equals(wanted: Tensor) -> Callable[[Sequence[Tensor]], float]:
    """Infinite if the result differs."""
    return lambda got: 0.0 if torch.equal(got[0], wanted) else float("inf")
