"""Graph: what it accepts, and what its methods do with edges and node arrays."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rest_triton.data.features import SparseRows
from rest_triton.data.graph import Graph
from rest_triton.ops import history_spmm

from ..ops import graphs

N = 40
EDGES = torch.randint(0, 30, (2, 120), generator=torch.Generator().manual_seed(0))  # the last ten nodes are isolated
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % 4
TRAIN, VAL, TEST = (torch.arange(N) % 3 == k for k in range(3))


def dense(graph: Graph) -> Tensor:
    """A[target, source] = how many edges."""
    out = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.int64)
    target = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    return out.index_put_((target, graph.col.long()), torch.tensor(1), accumulate=True)


def full_graph(**changes: object) -> Graph:
    nodes = dict(x=X, y=Y, train_mask=TRAIN, val_mask=VAL, test_mask=TEST, name="test") | changes
    return Graph.from_edges(EDGES, N, **nodes)


def test_from_edges() -> None:
    graph, expected = full_graph(), torch.zeros(N, N, dtype=torch.int64)
    expected.index_put_((EDGES[1], EDGES[0]), torch.tensor(1), accumulate=True)
    assert torch.equal(dense(graph), expected)
    assert graph.directed and graph.num_edges == 120 and graph.num_classes == 4 and not graph.multilabel
    assert torch.equal(dense(graph.deduplicate()), expected.clamp(max=1))
    both = (expected + expected.T).clamp(max=1)
    for symmetric in (graph.symmetrise(), Graph.from_edges(EDGES, N, symmetrise=True)):
        assert torch.equal(dense(symmetric), both) and not symmetric.directed
    assert torch.equal(dense(Graph.from_edges(EDGES, N, deduplicate=True)), expected.clamp(max=1))
    assert torch.equal(dense(graph.reverse()), expected.T)
    off_diagonal = expected - expected.diag().diag()
    assert torch.equal(dense(graph.without_self_loops()), off_diagonal)
    assert torch.equal(dense(graph.with_self_loops()), off_diagonal + torch.eye(N, dtype=torch.int64))
    assert graph.symmetrise().reverse().col is not None and graph.symmetrise().symmetrise().directed is False


def test_wide_columns_become_narrow() -> None:
    graph = Graph(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1]))
    assert graph.col.dtype == torch.int32
    assert graph.symmetrise().col.tolist() == [1, 0, 2, 1]


def test_directed_is_inferred() -> None:
    rowptr, col = graphs.undirected()
    ascending = torch.cat([row.sort().values for row in col.split(rowptr.diff().tolist())])
    assert Graph(rowptr, ascending).directed is False
    assert full_graph().directed is True
    with pytest.raises(ValueError, match=r"test has directed=False.*no reverse.*symmetrise"):
        full_graph(directed=False)


def test_permute_moves_everything() -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    graph = full_graph()
    moved = graph.permute(order)
    assert torch.equal(dense(moved), dense(graph)[order][:, order])
    assert torch.equal(moved.x, X[order]) and torch.equal(moved.y, Y[order])
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(moved, name), getattr(graph, name)[order])
    assert moved.name == "test" and moved.num_classes == 4
    assert moved.fingerprint != graph.fingerprint
    sparse = full_graph(x=SparseRows.from_dense(X)).permute(order)
    assert torch.equal(sparse.x.dense(), X[order])


@pytest.mark.parametrize("directed", [True, False])
def test_adjacency(directed: bool) -> None:
    graph = full_graph() if directed else full_graph(symmetrise=True)
    nodes, position = torch.arange(N), torch.arange(N, dtype=torch.int32)
    plain = dense(graph).double()
    loops = (plain - plain.diag().diag() + torch.eye(N)).double()
    scale = loops.sum(1) ** -0.5
    mean = plain / plain.sum(1, keepdim=True).clamp(min=1)
    for kind, matrix in (("sum", plain), ("mean", mean), ("gcn", scale[:, None] * loops * scale)):
        adj = graph.adjacency(kind)
        x = X.clone().requires_grad_()
        out = history_spmm(adj, nodes, position, x)
        torch.testing.assert_close(out, (matrix @ X.double()).float())
        out.backward(X)
        torch.testing.assert_close(x.grad, (matrix.T @ X.double()).float())
    with pytest.raises(ValueError, match="normalise is 'max'; it must be 'gcn', 'mean', 'sum' or 'loops'"):
        graph.adjacency("max")


def test_sparse_features() -> None:
    x = X * (X > 0.5)
    sparse = SparseRows.from_dense(x)
    assert sparse.shape == x.shape and sparse.index.numel() == int((x != 0).sum())
    assert torch.equal(sparse.dense(), x)
    ids = torch.tensor([5, 0, 5, 39])
    assert torch.equal(sparse.dense(ids), x[ids])
    assert torch.equal(sparse.rows(ids).dense(), x[ids])
    twice = SparseRows(torch.tensor([0, 2]), torch.tensor([1, 1], dtype=torch.int32), torch.tensor([1.0, 2.0]), 3)
    assert twice.dense().tolist() == [[0, 3, 0]]
    empty = SparseRows(torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int32), torch.zeros(0), 3)
    assert empty.dense().tolist() == [[0, 0, 0]]


def test_labels_of_several_kinds() -> None:
    several = torch.tensor([[0, 1], [1, 1], [-1, -1]], dtype=torch.int8)
    graph = Graph.from_edges(torch.tensor([[0], [1]]), 3, y=several, train_mask=torch.tensor([True, True, False]))
    assert graph.multilabel and graph.num_classes == 2
    unlabelled = Graph.from_edges(torch.tensor([[0], [1]]), 2, y=torch.tensor([-1, -1]))
    assert unlabelled.num_classes == 0 and not unlabelled.multilabel
    assert Graph.from_edges(torch.tensor([[0], [1]]), 2).num_classes == 0


def test_graph_without_nodes() -> None:
    graph = Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 0)
    assert graph.num_nodes == 0 and graph.directed is False
    assert graph.with_self_loops().num_edges == 0


NAN = X.clone()
NAN[7, 2] = float("nan")
LAST = X.repeat(5000, 1)  # more rows than are checked at a time
LAST[-1, -1] = float("inf")
BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "edge-beyond": (
        lambda: Graph.from_edges(EDGES + 20, N),
        ValueError,
        r"edge_index has values from 20 to 49; they must lie in \[0, 40\)",
    ),
    "edge-negative": (lambda: Graph.from_edges(EDGES - 1, N), ValueError, "edge_index has values from -1"),
    "edge-float": (
        lambda: Graph.from_edges(EDGES.float(), N),
        TypeError,
        r"edge_index is float32; it must be int32 or int64",
    ),
    "edge-transposed": (
        lambda: Graph.from_edges(EDGES.T, N),
        ValueError,
        r"edge_index has shape \[120, 2\]; dimension 0 must be 2",
    ),
    "negative-nodes": (lambda: Graph.from_edges(EDGES, -1), ValueError, "num_nodes is -1"),
    "x-nan": (lambda: full_graph(x=NAN), ValueError, r"x\[7, 2\] is nan; features must be finite"),
    "x-inf": (
        lambda: Graph.from_edges(EDGES, len(LAST), x=LAST),
        ValueError,
        r"x\[199999, 4\] is inf; features must be finite",
    ),
    "x-rows": (lambda: full_graph(x=X[:-1]), ValueError, "x has 39 rows, the graph 40 nodes"),
    "x-rows-sparse": (lambda: full_graph(x=SparseRows.from_dense(X[1:])), ValueError, "x has 39 rows, the graph 40 nodes"),
    "x-float64": (lambda: full_graph(x=X.double()), TypeError, r"x is float64.*x.float\(\)"),
    "mask-overlap": (
        lambda: full_graph(val_mask=TRAIN),
        ValueError,
        "14 nodes, the first of them 0, are in train_mask and in val_mask",
    ),
    "mask-short": (lambda: full_graph(val_mask=VAL[:5]), ValueError, r"val_mask has shape \[5\]; dimension 0 must be 40"),
    "mask-index": (lambda: full_graph(train_mask=torch.arange(5)), TypeError, "train_mask is int64; it must be bool"),
    "label-beyond": (lambda: full_graph(num_classes=3), ValueError, r"y has values from 0 to 3; .*\[-1, 3\), 3 classes"),
    "label-below": (lambda: full_graph(y=Y - 2), ValueError, "y has values from -2"),
    "label-missing": (
        lambda: full_graph(y=Y - 1),
        ValueError,
        r"nodes of train_mask, the first of them 0, have no label \(-1\)",
    ),
    "label-float": (lambda: full_graph(y=Y.float()), TypeError, "y is float32; it must be int64"),
    "label-count": (lambda: full_graph(y=Y[1:]), ValueError, r"y has shape \[39\]; dimension 0 must be 40, one per node"),
    "labels-twos": (lambda: full_graph(y=torch.full((N, 3), 2, dtype=torch.int8)), ValueError, "y has values from 2 to 2"),
    "falling": (
        lambda: Graph(torch.tensor([0, 2, 2]), torch.tensor([1, 0])),
        ValueError,
        "col does not ascend in every row",
    ),
    "col-beyond": (lambda: Graph(torch.tensor([0, 1]), torch.tensor([1])), ValueError, "col has values from 1 to 1"),
    "order-twice": (
        lambda: full_graph().permute(torch.zeros(N, dtype=torch.int64)),
        ValueError,
        "order has some of the 40 nodes twice",
    ),
    "order-short": (lambda: full_graph().permute(torch.arange(3)), ValueError, r"order has shape \[3\]"),
    "sparse-index": (
        lambda: SparseRows(torch.tensor([0, 1]), torch.tensor([3], dtype=torch.int32), torch.ones(1), 3),
        ValueError,
        "index has values from 3",
    ),
    "sparse-end": (
        lambda: SparseRows(torch.tensor([0, 2]), torch.tensor([1], dtype=torch.int32), torch.ones(1), 3),
        ValueError,
        "rowptr runs from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    make, error, message = BAD[case]
    with pytest.raises(error, match=message):
        make()
