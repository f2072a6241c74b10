"""halo: the neighbours of a batch outside of it."""

import torch
from torch import Tensor

from . import backend, check
from .adjacency import Adjacency
from .library import define, dense


def halo_definition(adj: Adjacency, rows: Tensor) -> Tensor:
    """The definition of :func:`halo` in plain torch."""
    near = torch.zeros(adj.num_nodes, dtype=torch.bool, device=rows.device)
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    first = torch.repeat_interleave(adj.rowptr[rows] - (degree.cumsum(0) - degree), degree)
    near[adj.col[torch.arange(first.numel(), device=rows.device) + first].long()] = True
    near[rows] = False
    return torch.nonzero(near).squeeze(1)


def halo(adj: Adjacency, rows: Tensor) -> Tensor:
    """The neighbours of ``rows`` that are not in ``rows``. A batch reads their rows from history.

    Args:
        adj: the graph.
        rows: int64[R].

    Returns: int64[H], distinct, ascending. Its size depends on the data. For torch.compile(fullgraph=True) set
    ``torch._dynamo.config.capture_dynamic_output_shape_ops``.

    Example::

        staging = gather_rows(table, halo(adj, rows))
    """
    check.same_nodes("halo", adj.num_nodes, adj.num_columns)
    check.tensor("rows", rows, (torch.int64,), 1)
    check.device("adj.rowptr", adj.rowptr, rows.device)
    if backend.debugging():
        check.in_range("rows", rows, 0, adj.num_nodes, "the node ids")
    if backend.runs_definition():
        return halo_definition(adj, rows)
    return _halo(adj.rowptr, adj.col, rows)


def _halo_kernel(rowptr: Tensor, col: Tensor, rows: Tensor) -> Tensor:
    return backend.kernels(rows.device).halo(dense(rowptr), dense(col), dense(rows))


def _halo_fake(rowptr: Tensor, col: Tensor, rows: Tensor) -> Tensor:
    size = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(size, dtype=torch.int64, device=rows.device)


_halo = define("halo(Tensor rowptr, Tensor col, Tensor rows) -> Tensor", _halo_kernel, _halo_fake)
