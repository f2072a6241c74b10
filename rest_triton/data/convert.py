"""Graphs from and to what others use: PyG's Data, SciPy's CSR, .npz files.

PyG, SciPy and rest_triton agree that an edge goes from source to target; a :class:`Graph` lists them by target, for that is
who aggregates.
"""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .features import SparseRows
from .graph import MASKS, Graph

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from torch_geometric.data import Data

SPARSE_PIECES = ("x_indptr", "x_indices", "x_data", "x_shape")


def from_pyg(data: "Data", *, symmetrise: bool = False, name: str = "graph") -> Graph:
    """From PyG's ``Data`` with ``edge_index``: x, y and the masks come along where they are there.

    y of shape [N] or [N, 1] is one label per node, [N, C] with C > 1 several.
    """
    if getattr(data, "edge_index", None) is None:
        raise ValueError(
            "data has no edge_index; a SparseTensor adj_t is turned into one by torch.stack(adj_t.t().coo()[:2])"
        )
    masks = {key: data[key] for key in MASKS if key in data and data[key] is not None}
    for key, mask in masks.items():
        if mask.dim() != 1:
            raise ValueError(f"{key} has shape {list(mask.shape)}, several splits side by side; choose one: {key}[:, 0]")
    x = data.x if "x" in data else None
    if x is not None and x.layout != torch.strided:
        x = x.to_sparse_coo().coalesce()
        rows = torch.bincount(x.indices()[0], minlength=x.shape[0])
        rowptr = torch.nn.functional.pad(rows.cumsum(0), (1, 0))
        x = SparseRows(rowptr, x.indices()[1].int(), x.values().float(), x.shape[1])
    y = labels(data.y) if "y" in data and data.y is not None else None
    return Graph.from_edges(data.edge_index, data.num_nodes, symmetrise=symmetrise, x=x, y=y, name=name, **masks)


def to_pyg(graph: Graph) -> "Data":
    """As PyG's ``Data``: edge_index sorted by target, x dense or a sparse COO tensor, y, masks. Several labels become
    float32, as PyG's losses want them."""
    from torch_geometric.data import Data

    target = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    x: Any = graph.x
    if isinstance(x, SparseRows):
        row = torch.repeat_interleave(torch.arange(graph.num_nodes), x.rowptr.diff())
        x = torch.sparse_coo_tensor(torch.stack([row, x.index.long()]), x.value, tuple(x.shape), check_invariants=True)
    y = graph.y.float() if graph.y is not None and graph.multilabel else graph.y
    nodes = {key: value for key in MASKS if (value := getattr(graph, key)) is not None}
    return Data(x=x, y=y, edge_index=torch.stack([graph.col.long(), target]), num_nodes=graph.num_nodes, **nodes)


def from_scipy(matrix: "csr_matrix", *, symmetrise: bool = False, **nodes: Any) -> Graph:
    """From a square SciPy matrix, CSR or any other kind: a stored element [i, j] is an edge i -> j, whatever its value.

    ``nodes`` are the other arguments of :class:`Graph`: x (dense, or a SciPy matrix too), y, masks.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix has shape {list(matrix.shape)}; an adjacency matrix is square")
    coo = matrix.tocoo()
    if nodes.get("x") is not None and hasattr(nodes["x"], "tocsr"):
        x = nodes["x"].tocsr()
        nodes["x"] = _sparse_rows(x.indptr, x.indices, x.data, x.shape)
    edges = torch.from_numpy(np.stack([coo.row, coo.col]))
    return Graph.from_edges(edges, matrix.shape[0], symmetrise=symmetrise, **nodes)


def from_npz(path: Path | str, *, symmetrise: bool = True, name: str | None = None) -> Graph:
    """From an .npz with

    - ``edge_index`` integer [2, E], row 0 the sources, row 1 the targets;
    - features, if any: ``x`` [N, D], or the pieces of a CSR ``x_indptr, x_indices, x_data, x_shape``;
    - labels, if any: ``y`` integer [N], -1 = none, or [N, C] of 0 and 1 for several per node;
    - splits, if any: ``train_mask, val_mask, test_mask`` bool [N];
    - ``num_nodes``, only needed where neither features nor labels say it.

    Edges are made symmetric and unique unless ``symmetrise`` is False. Arrays of Python objects are never loaded.
    """
    path = Path(path)
    found = _read_npz(path)
    try:
        x: Tensor | SparseRows | None = None
        if "x" in found:
            x = torch.from_numpy(np.ascontiguousarray(found["x"], np.float32))
        elif any(piece in found for piece in SPARSE_PIECES):
            x = _sparse_rows(*(_field(found, piece) for piece in SPARSE_PIECES))
        y = labels(torch.from_numpy(found["y"])) if "y" in found else None
        masks: dict[str, Any] = {key: torch.from_numpy(found[key]) for key in MASKS if key in found}
        sized = x if x is not None else y
        if sized is None and "num_nodes" not in found:
            raise ValueError("it has neither x, y nor num_nodes: how many nodes there are cannot be known")
        nodes = int(sized.shape[0]) if sized is not None else int(found["num_nodes"])
        edge_index = torch.from_numpy(_field(found, "edge_index"))
        return Graph.from_edges(edge_index, nodes, symmetrise=symmetrise, x=x, y=y, name=name or path.stem, **masks)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None


def labels(y: Tensor) -> Tensor:
    """int64[N] of any integer or float labels with NaN for none; int8 [N, C] of several per node."""
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.is_floating_point():
        y = torch.where(y.isnan(), -1.0, y)
        broken = torch.nonzero(y != y.round())
        if broken.numel() > 0:
            raise ValueError(f"y has the label {float(y[tuple(broken[0])])}; labels are whole numbers")
    return y.to(torch.int8 if y.dim() == 2 else torch.int64)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of an .npz, or the name of a data set")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a whole .npz of plain arrays ({error}); write it again with numpy.savez, without Python objects"
        ) from None


def _field(found: dict[str, np.ndarray], key: str) -> np.ndarray:
    if key not in found:
        raise ValueError(f"it has no {key}; it has {', '.join(found) or 'nothing'}")
    return found[key]


def _sparse_rows(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: Any) -> SparseRows:
    rows, width = (int(size) for size in shape)
    if len(indptr) != rows + 1:
        raise ValueError(f"x_indptr has {len(indptr)} elements; for {rows} rows, by x_shape, it must have {rows + 1}")
    return SparseRows(
        torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices.astype(np.int32)),
        torch.from_numpy(data.astype(np.float32)), width,
    )  # fmt: skip
