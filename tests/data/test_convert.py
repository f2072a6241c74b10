"""Conversion from and to PyG, SciPy and .npz."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data.convert import from_npz, from_pyg, from_scipy, to_pyg
from rest_triton.data.features import SparseRows
from rest_triton.data.graph import Graph
from rest_triton.utils.errors import UserError

from .test_graph import EDGES, TEST, TRAIN, VAL, X, Y, dense, full_graph

N = 40


def same(a: Graph, b: Graph) -> bool:
    tensors = ("rowptr", "col", "y", "train_mask", "val_mask", "test_mask")
    equal = all(torch.equal(getattr(a, name), getattr(b, name)) for name in tensors if getattr(a, name) is not None)
    xs = [g.x.dense() if isinstance(g.x, SparseRows) else g.x for g in (a, b)]
    return equal and (xs[0] is xs[1] or torch.equal(*xs)) and a.directed == b.directed and a.num_classes == b.num_classes


def test_pyg_there_and_back() -> None:
    graph = full_graph()
    data = to_pyg(graph)
    assert data.num_nodes == N and data.edge_index.shape == (2, 120) and data.validate()
    assert same(from_pyg(data), graph)
    assert same(from_pyg(data, symmetrise=True), graph.symmetrise())


def test_pyg_agrees_about_direction() -> None:
    """PyG sends along source -> target and aggregates at the target: so does the adjacency."""
    from torch_geometric.nn import GCNConv

    from rest_triton.ops import history_spmm

    graph = full_graph(x=torch.eye(N))
    conv = GCNConv(N, N, bias=False)
    conv.lin.weight.data = torch.eye(N)
    ours = history_spmm(graph.adjacency("gcn"), torch.arange(N), torch.arange(N, dtype=torch.int32), torch.eye(N))
    torch.testing.assert_close(ours, conv(torch.eye(N), to_pyg(graph).edge_index))


def test_pyg_sparse_and_multilabel() -> None:
    y = (torch.arange(2 * N).view(N, 2) % 2).to(torch.int8)
    graph = full_graph(x=SparseRows.from_dense(X * (X > 0)), y=y)
    data = to_pyg(graph)
    assert data.y.dtype == torch.float32 and data.x.layout == torch.sparse_coo
    assert same(from_pyg(data), graph)


def test_pyg_refusals() -> None:
    from torch_geometric.data import Data

    with pytest.raises(ValueError, match="data has no edge_index"):
        from_pyg(Data(x=X))
    with pytest.raises(ValueError, match=r"train_mask has shape \[40, 3\], one column per split.*train_mask\[:, 0\]"):
        from_pyg(Data(x=X, edge_index=EDGES, train_mask=torch.ones(N, 3, dtype=torch.bool)))


def test_scipy() -> None:
    import scipy.sparse

    matrix = scipy.sparse.coo_matrix((np.ones(120), EDGES.numpy()), (N, N)).tocsr()
    graph = from_scipy(matrix, x=scipy.sparse.csr_matrix(X.numpy()), y=Y)
    assert torch.equal(dense(graph), torch.from_numpy((matrix.toarray() > 0).T.astype(np.int64)))
    assert isinstance(graph.x, SparseRows) and torch.equal(graph.x.dense(), X)
    assert from_scipy(matrix, symmetrise=True).directed is False
    with pytest.raises(ValueError, match=r"matrix has shape \[39, 40\]; an adjacency matrix must be square"):
        from_scipy(matrix[1:])


def fields(**changes: Any) -> dict[str, Any]:
    arrays = dict(edge_index=EDGES.int(), x=X, y=Y, train_mask=TRAIN, val_mask=VAL, test_mask=TEST)
    return {key: np.asarray(value) for key, value in (arrays | changes).items() if value is not None}


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **fields())
    assert same(from_npz(path, symmetrise=False), full_graph())
    graph = from_npz(path)
    assert same(graph, full_graph().symmetrise()) and graph.name == "mine"
    sparse = SparseRows.from_dense(X * (X > 0))
    pieces = dict(x_indptr=sparse.rowptr.int(), x_indices=sparse.index, x_data=sparse.value, x_shape=[N, 5])
    np.savez(path, **fields(x=None, **pieces))
    assert same(from_npz(path), full_graph(x=sparse).symmetrise())
    np.savez_compressed(path, edge_index=EDGES.numpy(), num_nodes=N)
    assert from_npz(path).num_nodes == N
    with_nan = Y.double()
    with_nan[3] = float("nan")
    np.savez(path, **fields(y=with_nan[:, None], train_mask=None))
    y = from_npz(path).y
    assert y is not None and y.dtype == torch.int64 and int(y[3]) == -1 and torch.equal(y[4:], Y[4:])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no-edges": (fields(edge_index=None), "it has no edge_index; it has x, y, train_mask"),
    "float-edges": (fields(edge_index=EDGES.double()), "edge_index is float64; it must be int32 or int64"),
    "edges-beyond": (fields(edge_index=EDGES + 11), r"edge_index has values from 11 to 40; they must lie in \[0, 40\)"),
    "nan": (fields(x=torch.full((N, 2), float("nan"))), r"x\[0, 0\] is nan"),
    "objects": (fields(y=np.array([{}] * N)), "is not a complete .npz of plain arrays"),
    "broken-label": (fields(y=Y + 0.5), "y has the label 0.5; labels must be whole numbers"),
    "piece": (fields(x=None, x_indptr=np.zeros(N + 1)), "it has no x_indices"),
    "pieces": (
        fields(x=None, x_indptr=np.zeros(N), x_indices=np.zeros(0), x_data=np.zeros(0), x_shape=[N, 5]),
        "x_indptr has 40 elements; for 40 rows, by x_shape, it must have 41",
    ),
    "unsized": (dict(edge_index=EDGES.numpy()), "so the number of nodes is unknown"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_npz(case: str, tmp_path: Path) -> None:
    arrays, message = BAD[case]
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=message) as caught:
        from_npz(path)
    assert str(path) in str(caught.value)


def test_truncated_foreign_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez(path, **fields())
    whole = path.read_bytes()
    for part in (whole[: len(whole) // 2], b"", b"node,label\n1,2\n", whole[:300] + b"\0" * 50 + whole[350:]):
        path.write_bytes(part)
        with pytest.raises(
            UserError, match=r"cut.npz is not a complete .npz of plain arrays .*write it again with numpy.savez"
        ):
            from_npz(path)
    with pytest.raises(UserError, match=r"there\.npz does not exist"):
        from_npz(tmp_path / "there.npz")
