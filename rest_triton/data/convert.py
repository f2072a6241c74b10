"""Convert graphs from and to PyG's Data, SciPy matrices and .npz files.

In all of them an edge goes from source to target. A :class:`Graph` sorts edges by target, the node that aggregates.
"""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..utils.errors import UserError
from .features import SparseRows
from .graph import MASKS, Graph

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from torch_geometric.data import Data

SPARSE_ARRAYS = ("x_indptr", "x_indices", "x_data", "x_shape")


def from_pyg(data: "Data", *, symmetrise: bool = False, name: str = "graph") -> Graph:
    """A graph from PyG's ``Data`` with ``edge_index``, and x, y and masks where present.

    y of shape [N] or [N, 1] is single-label, [N, C] with C > 1 is multi-label.
    """
    if getattr(data, "edge_index", None) is None:
        raise ValueError("data has no edge_index; for a SparseTensor adj_t, set it to torch.stack(adj_t.t().coo()[:2])")
    masks = {key: data[key] for key in MASKS if key in data and data[key] is not None}
    for key, mask in masks.items():
        if mask.dim() != 1:
            raise ValueError(f"{key} has shape {list(mask.shape)}, one column per split; choose one: {key}[:, 0]")
    x = data.x if "x" in data else None
    if x is not None and x.layout != torch.strided:
        x = x.to_sparse_coo().coalesce()
        rows = torch.bincount(x.indices()[0], minlength=x.shape[0])
        rowptr = torch.nn.functional.pad(rows.cumsum(0), (1, 0))
        x = SparseRows(rowptr, x.indices()[1].int(), x.values().float(), x.shape[1])
    y = labels(data.y) if "y" in data and data.y is not None else None
    return Graph.from_edges(data.edge_index, data.num_nodes, symmetrise=symmetrise, x=x, y=y, name=name, **masks)


def to_pyg(graph: Graph) -> "Data":
    """PyG's ``Data`` with edge_index sorted by target, x (dense or sparse COO), y and masks.

    Multi-label y becomes float32, as PyG's losses require.
    """
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
    """A graph from a square SciPy matrix of any format: a stored element [i, j] is an edge i -> j, whatever its value.

    ``nodes`` are the other arguments of :class:`Graph`: x (a tensor or a SciPy matrix), y, masks.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix has shape {list(matrix.shape)}; an adjacency matrix must be square")
    coo = matrix.tocoo()
    if nodes.get("x") is not None and hasattr(nodes["x"], "tocsr"):
        x = nodes["x"].tocsr()
        nodes["x"] = _sparse_rows(x.indptr, x.indices, x.data, x.shape)
    edges = torch.from_numpy(np.stack([coo.row, coo.col]))
    return Graph.from_edges(edges, matrix.shape[0], symmetrise=symmetrise, **nodes)


def from_npz(path: Path | str, *, symmetrise: bool = True, name: str | None = None) -> Graph:
    """A graph from an .npz with

    - ``edge_index`` integer [2, E], row 0 the sources, row 1 the targets;
    - features, optional: ``x`` [N, D], or a CSR matrix in ``x_indptr, x_indices, x_data, x_shape``;
    - labels, optional: ``y`` integer [N], -1 = unknown, or multi-label [N, C] of 0 and 1;
    - splits, optional: ``train_mask, val_mask, test_mask`` bool [N];
    - ``num_nodes``, needed only without features and labels.

    Edges are symmetrised and deduplicated unless ``symmetrise`` is False. Pickled objects are never loaded. UserError if
    the file is damaged or does not describe a graph.
    """
    path = Path(path)
    arrays = _read_npz(path)
    try:
        x: Tensor | SparseRows | None = None
        if "x" in arrays:
            x = torch.from_numpy(np.ascontiguousarray(arrays["x"], np.float32))
        elif any(name in arrays for name in SPARSE_ARRAYS):
            x = _sparse_rows(*(_field(arrays, name) for name in SPARSE_ARRAYS))
        y = labels(torch.from_numpy(arrays["y"])) if "y" in arrays else None
        masks: dict[str, Any] = {key: torch.from_numpy(arrays[key]) for key in MASKS if key in arrays}
        per_node = x if x is not None else y
        if per_node is None and "num_nodes" not in arrays:
            raise ValueError("it has neither x, y nor num_nodes, so the number of nodes is unknown")
        nodes = int(per_node.shape[0]) if per_node is not None else int(arrays["num_nodes"])
        edge_index = torch.from_numpy(_field(arrays, "edge_index"))
        return Graph.from_edges(edge_index, nodes, symmetrise=symmetrise, x=x, y=y, name=name or path.stem, **masks)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {error}") from error


def labels(y: Tensor) -> Tensor:
    """Labels as int64[N], or int8 [N, C] if multi-label. Float labels may have NaN, which becomes -1."""
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.is_floating_point():
        y = torch.where(y.isnan(), -1.0, y)
        fractions = torch.nonzero(y != y.round())
        if fractions.numel() > 0:
            raise ValueError(f"y has the label {float(y[tuple(fractions[0])])}; labels must be whole numbers")
    return y.to(torch.int8 if y.dim() == 2 else torch.int64)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise UserError(f"{path} does not exist; give the path of an .npz, or the name of a data set")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} is not a complete .npz of plain arrays ({error}); write it again with numpy.savez"
        ) from error


def _field(arrays: dict[str, np.ndarray], key: str) -> np.ndarray:
    if key not in arrays:
        raise ValueError(f"it has no {key}; it has {', '.join(arrays) or 'nothing'}")
    return arrays[key]


def _sparse_rows(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: Any) -> SparseRows:
    rows, width = (int(size) for size in shape)
    if len(indptr) != rows + 1:
        raise ValueError(f"x_indptr has {len(indptr)} elements; for {rows} rows, by x_shape, it must have {rows + 1}")
    return SparseRows(
        torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices.astype(np.int32)),
        torch.from_numpy(data.astype(np.float32)), width,
    )  # fmt: skip
