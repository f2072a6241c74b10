"""Forming a batch, beside cutting its subgraph out of the graph, and as a share of the aggregate that it is for.

The graph has products' full shape, 40 clusters by the streaming partitioner (METIS would take minutes), 5 in a batch. It is
kept in ``data/`` after the first time."""

import pytest
import torch
from torch import Tensor

from rest_triton.data.datasets import load
from rest_triton.data.partition import partition
from rest_triton.ops import Adjacency, history_spmm
from rest_triton.sampling.batch import Batch, ClusterLoader, PositionMaps

from .measure import ROUNDS, Report, best


class Subgraph:
    """The usual way: the batch's rows of the CSR, its halo, and both relabelled to 0, 1, 2 ..."""

    def __init__(self, adj: Adjacency, rows: Tensor) -> None:
        begin, degree = adj.rowptr[rows], adj.rowptr[rows + 1] - adj.rowptr[rows]
        rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
        edge = torch.arange(int(rowptr[-1])) + torch.repeat_interleave(begin - rowptr[:-1], degree)
        col = adj.col.index_select(0, edge).long()
        local = torch.full((adj.num_nodes,), -1)
        local[rows] = torch.arange(len(rows))
        self.halo = torch.unique(col[local[col] < 0])
        local[self.halo] = len(rows) + torch.arange(len(self.halo))
        self.rowptr, self.col = rowptr, local[col]


def bench_forming_a_batch(benchmark: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: str) -> None:
    name, root = ("synthetic:nodes=4000,edges=40000", tmp_path) if tiny else ("synthetic:products", "data")
    graph = load(name, root)
    clusters = partition(graph, 40, method="stream", root=root)
    adj = clusters.apply(graph).adjacency("gcn")
    batches, maps = ClusterLoader(clusters.ptr, 5), PositionMaps(graph.num_nodes)
    chosen = batches.epoch(0)[0].clusters
    x_width = 128
    batch = batches.batch(chosen)
    x, table = torch.randn(len(batch), x_width), torch.randn(graph.num_nodes, x_width)

    def form() -> Batch:
        batch = batches.batch(chosen)
        with maps.enter(batch):
            _ = batch.rows
        return batch

    def aggregate() -> Tensor:
        return history_spmm(adj, batch.rows, position, x, table)

    cut_out = Subgraph(adj, batch.rows)
    assert torch.equal(cut_out.halo, batch.halo(adj))
    with maps.enter(batch) as position:
        variants = {
            "form, enter and leave": form,
            "… and its halo": lambda: form().halo(adj),
            "cut the subgraph out (relabel + index_select)": lambda: Subgraph(adj, batches.batch(chosen).rows),
            "one aggregate at width 128": aggregate,
        }
        times = best(variants, 1 if tiny else ROUNDS)
    whole = times["one aggregate at width 128"]
    report.table(
        f"a batch of 5 of 40 clusters of {name}: {len(batch):,} rows, {cut_out.col.numel():,} edges, "
        f"{len(cut_out.halo):,} halo rows",
        [(what, t, f"{100 * t / whole:.2f} % of the aggregate") for what, t in times.items()],
    )
    benchmark.extra_info["share_of_aggregate"] = times["form, enter and leave"] / whole
    benchmark.pedantic(form, rounds=1 if tiny else 20)
