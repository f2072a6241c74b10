"""edges_inside: the edges of rows whose other end has a place, such as the edges of a subgraph."""

import torch
from torch import Tensor

from . import backend, check
from .adjacency import Adjacency
from .library import define, dense


def edges_inside_definition(adj: Adjacency, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of :func:`edges_inside` in plain torch."""
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    first = torch.repeat_interleave(adj.rowptr[rows] - (degree.cumsum(0) - degree), degree)
    edge = torch.arange(first.numel(), device=rows.device) + first
    row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), degree)
    kept = position[adj.col[edge].long()] >= 0
    counts = torch.bincount(row[kept], minlength=len(rows))
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), edge[kept]


def edges_inside(adj: Adjacency, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of ``rows`` whose other end has a place.

    Args:
        adj: the graph. rows: int64[R]. position: int32[C], the place of each node, negative for none.

    Returns: (rowptr int64[R+1], edge int64[K]). The edges of row i are ``edge[rowptr[i] .. rowptr[i+1]]``, ascending:
        positions in ``adj.col``.

    Example::

        with maps.enter(batch) as position:
            rowptr, edge = edges_inside(adj, batch.rows, position)
        degree = rowptr.diff()  # inside of the batch
    """
    check.tensor("rows", rows, (torch.int64,), 1)
    check.tensor("position", position, (torch.int32,), 1)
    check.size("position", position, 0, adj.num_columns, "one per node")
    check.device("adj.rowptr", adj.rowptr, rows.device)
    check.device("position", position, rows.device)
    if backend.debugging():
        check.in_range("rows", rows, 0, adj.num_nodes, "the node ids")
    if backend.runs_definition():
        return edges_inside_definition(adj, rows, position)
    return _inside(adj.rowptr, adj.col, rows, position)


def _inside_kernel(rowptr: Tensor, col: Tensor, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    return backend.kernels(rows.device).edges_inside(dense(rowptr), dense(col), dense(rows), dense(position))


def _inside_fake(rowptr: Tensor, col: Tensor, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return rows.new_empty(rows.shape[0] + 1), rows.new_empty(size)


_inside = define(
    "edges_inside(Tensor rowptr, Tensor col, Tensor rows, Tensor position) -> (Tensor, Tensor)", _inside_kernel, _inside_fake
)
