"""Making a graph out of edges against torch and SciPy, and forming a batch against cutting its subgraph out."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from rest_triton.data import csr
from rest_triton.data.datasets import load, synthetic
from rest_triton.data.partition import partition
from rest_triton.ops import Adjacency, history_spmm
from rest_triton.ops.adjacency import reverse_with_names
from rest_triton.sampling.batch import Batch, ClusterBatches, PositionMaps

from .harness import OURS, Bench, Limit


def random_edges(bench: Bench) -> tuple[Tensor, Tensor, int]:
    nodes, edges = (2_000, 20_000) if bench.tiny else (500_000, 20_000_000)
    g = torch.Generator().manual_seed(0)
    source, target = (torch.randint(0, nodes, (edges,), generator=g, dtype=torch.int32) for _ in range(2))
    return source, target, nodes


def copying(count: int) -> Limit:
    """The edges once, from and to memory."""
    a, b = (torch.ones(2, count, dtype=torch.int32) for _ in range(2))
    return Limit("copying the edges", 2 * a.nbytes, partial(a.copy_, b))


def by_torch(source: Tensor, target: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    key = torch.unique(target.long() * nodes + source)
    return torch.nn.functional.pad(torch.bincount(key // nodes, minlength=nodes).cumsum(0), (1, 0)), (key % nodes).int()


def by_scipy(source: Tensor, target: Tensor, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    ones = np.ones(source.numel(), np.int8)
    matrix = scipy.sparse.coo_matrix((ones, (target.numpy(), source.numpy())), (nodes, nodes)).tocsr()
    matrix.sort_indices()
    return matrix.indptr, matrix.indices


def bench_from_edges(bench: Bench) -> None:
    """Edges in any order, each once."""
    edges = random_edges(bench)
    ours = partial(csr.from_edges, *edges, deduplicate=True)
    rowptr, col = ours()
    others = {"torch: unique of target * N + source": by_torch, "SciPy: coo.tocsr, sort_indices": by_scipy}
    for other in others.values():
        their_rowptr, their_col = other(*edges)
        assert torch.equal(rowptr, torch.as_tensor(their_rowptr).long()) and torch.equal(col, torch.as_tensor(their_col))
    runs = {OURS: ours} | {name: partial(other, *edges) for name, other in others.items()}
    case = f"{edges[2]:,} nodes, {len(edges[0]):,} edges"
    bench.in_turn("from_edges", case, runs, [copying(len(edges[0]))], rounds=5)


@pytest.mark.parametrize(
    "name", ["symmetrise", "reverse", "reverse_with_names", "permute", "with_self_loops", "fingerprint"]
)
def bench_csr(bench: Bench, name: str) -> None:
    source, target, nodes = random_edges(bench)
    graph = csr.from_edges(source, target, nodes, deduplicate=True)
    order = (torch.randperm(nodes),) if name == "permute" else ()
    case = f"{nodes:,} nodes, {len(graph[1]):,} edges"
    runs = {OURS: partial(reverse_with_names if name == "reverse_with_names" else getattr(csr, name), *graph, *order)}
    bench.in_turn(name, case, runs, [copying(len(graph[1]))], rounds=5)


def bench_synthetic(bench: Bench) -> None:
    """The full shape of products."""
    shape = synthetic.parse("synthetic:nodes=1000,edges=8000" if bench.tiny else "synthetic:products")
    case = f"{shape.nodes:,} nodes, {shape.edges:,} edges, {shape.features} features"
    bench.in_turn("synthetic.generate", case, {OURS: partial(synthetic.generate, shape)}, rounds=2)


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


def bench_forming_a_batch(bench: Bench) -> None:
    """5 of 40 clusters of products' full shape, by KaMinPar. The graph is kept in ``data/``."""
    graph = load("synthetic:nodes=4000,edges=40000" if bench.tiny else "synthetic:products", bench.root)
    clusters = partition(graph, 40, method="kaminpar", root=bench.root)
    adj = clusters.apply(graph).adjacency("gcn")
    batches, maps = ClusterBatches(clusters.ptr, 5), PositionMaps(graph.num_nodes)
    chosen = batches.epoch(0)[0].clusters
    batch = batches.batch(chosen)
    x, table = torch.randn(len(batch), 128), torch.randn(graph.num_nodes, 128)

    def form() -> Batch:
        batch = batches.batch(chosen)
        with maps.enter(batch):
            _ = batch.rows
        return batch

    subgraph = Subgraph(adj, batch.rows)
    assert torch.equal(subgraph.halo, batch.halo(adj))
    with maps.enter(batch) as position:
        runs = {
            OURS: form,
            "ours, and its halo": lambda: form().halo(adj),
            "cutting the subgraph out (relabel + index_select)": lambda: Subgraph(adj, batches.batch(chosen).rows),
            "one aggregate at width 128": partial(history_spmm, adj, batch.rows, position, x, table),
        }
        case = f"{len(batch):,} rows, {subgraph.col.numel():,} edges, {len(subgraph.halo):,} halo rows"
        bench.in_turn("forming a batch", case, runs)
