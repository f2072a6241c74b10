"""Sampling: the neighbours that rows read, their places among the rows of a batch, and the reverse for backward."""

import torch
from torch import Tensor

from ..kernels._hash import GOLDEN64, MASK64
from . import backend, check
from .adjacency import Adjacency
from .hashing import _counter_words, _mix, _shift_right, _signed
from .library import define, dense


def sample_neighbours_definition(adj: Adjacency, rows: Tensor, fanout: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The definition of :func:`sample_neighbours` in plain torch.

    It is Floyd's algorithm: draw i is a number t of ``0 .. j`` with ``j = degree - fanout + i``. The sample takes t, or j
    if it has t already. The word of draw i of a row is a hash of (seed, row, i); its upper half times ``j + 1`` gives t.
    """
    device = rows.device
    start, degree = adj.rowptr[rows], adj.rowptr[rows + 1] - adj.rowptr[rows]
    of_row = _counter_words(seed, rows)
    draws = torch.arange(fanout, device=device).expand(len(rows), fanout)
    chosen = draws.clone()  # rows with no more neighbours than that keep all
    many = torch.nonzero(degree > fanout).squeeze(1)
    for i in range(fanout if many.numel() else 0):
        last = degree[many] - fanout + i
        word = _mix(of_row[many] + _signed((i + 1) * GOLDEN64 & MASK64))
        drawn = (_shift_right(word, 32) * (last + 1)) >> 32
        taken = (chosen[many, :i] == drawn[:, None]).any(1)
        chosen[many, i] = torch.where(taken, last, drawn)
    chosen = torch.where(draws < degree[:, None], chosen, torch.iinfo(torch.int64).max).sort(1).values
    kept = draws < degree[:, None]
    rowptr = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
    return rowptr, (start[:, None] + chosen)[kept]


def place_nodes_definition(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The definition of :func:`place_nodes` in plain torch."""
    fresh = torch.unique(nodes[position[nodes.long()] < 0]).long()
    position[fresh] = torch.arange(first, first + len(fresh), dtype=position.dtype, device=position.device)
    return fresh, position[nodes.long()]


def transpose_definition(rowptr: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The definition of :func:`transpose` in plain torch."""
    row = torch.repeat_interleave(torch.arange(len(rowptr) - 1, device=col.device), rowptr.diff())
    counts = torch.bincount(col, minlength=columns)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), row[col.argsort(stable=True)].int()


def sample_neighbours(adj: Adjacency, rows: Tensor, fanout: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A uniform sample of at most ``fanout`` neighbours of each row, without replacement.

    It depends on (seed, row) alone: not on the device, the number of threads or the other rows.

    Args:
        adj: the graph. rows: int64[R]; a row may occur twice.
        fanout: the most neighbours of a row, at least 1. A row with no more than that keeps all of them.
        seed: a new one gives new samples.

    Returns: (rowptr int64[R+1], edge int64[K]). The sample of row i are the edges ``edge[rowptr[i] .. rowptr[i+1]]`` of
        ``adj``, ascending: positions in ``adj.col``.

    Example::

        rowptr, edge = sample_neighbours(adj, targets, 10, seed=step)
        neighbours = adj.col[edge]
    """
    check.tensor("rows", rows, (torch.int64,), 1)
    check.device("adj.rowptr", adj.rowptr, rows.device)
    if fanout < 1:
        raise ValueError(f"fanout is {fanout}; it must be at least 1")
    if backend.debugging():
        check.in_range("rows", rows, 0, adj.num_nodes, "the node ids")
    if backend.runs_definition():
        return sample_neighbours_definition(adj, rows, fanout, seed=seed)
    return _sample(adj.rowptr, rows, fanout, seed)


def place_nodes(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Give every node without a place the next one: the rows of a batch grow by the neighbours that it reads.

    Args:
        position: int32[N], the place of each node, negative for none. It is written.
        nodes: int32 or int64 [K], with repetitions. first: the first new place, at least 0.

    Returns: (fresh int64[F], places int32[K]): the nodes that had no place, distinct and ascending, with places from
        ``first`` on, and the places of ``nodes``.

    Example::

        fresh, col = place_nodes(position, adj.col[edge], len(rows))
    """
    check.tensor("position", position, (torch.int32,), 1)
    check.tensor("nodes", nodes, check.INDEX_DTYPES, 1)
    check.device("nodes", nodes, position.device)
    most = min(position.numel(), nodes.numel())
    if not 0 <= first <= 2**31 - most:
        raise ValueError(
            f"first is {first}; up to {most} nodes get places from there on, which are int32: give 0 to {2**31 - most}"
        )
    if backend.debugging():
        check.in_range("nodes", nodes, 0, position.numel(), "the node ids")
    if backend.runs_definition():
        return place_nodes_definition(position, nodes, first)
    return _place(position, nodes, first)


def transpose(rowptr: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The edges of a CSR listed by column, for the gradient of what they read.

    Args:
        rowptr: int64[R+1]. col: int32[K]. columns: their number.

    Returns: (rowptr int64[columns+1], row int32[K]); the rows of a column are ascending.
    """
    check.tensor("rowptr", rowptr, (torch.int64,), 1)
    check.tensor("col", col, (torch.int32,), 1)
    check.device("col", col, rowptr.device)
    if columns < 0:
        raise ValueError(f"columns is {columns}; it must be at least 0")
    if rowptr.numel() == 0:
        check.row_pointers("rowptr", rowptr, col.numel(), "edges")
    if backend.debugging():
        check.row_pointers("rowptr", rowptr, col.numel(), "edges")
        check.in_range("col", col, 0, columns, "the columns")
    if backend.runs_definition():
        return transpose_definition(rowptr, col, columns)
    return _transpose(rowptr, col, columns)


def _sample_kernel(rowptr: Tensor, rows: Tensor, fanout: int, seed: int) -> tuple[Tensor, Tensor]:
    return backend.kernels(rows.device).sample_neighbours(dense(rowptr), dense(rows), fanout, seed)


def _sample_fake(rowptr: Tensor, rows: Tensor, fanout: int, seed: int) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return rows.new_empty(rows.shape[0] + 1), rows.new_empty(size)


def _place_kernel(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
    return backend.kernels(position.device).place_nodes(position, dense(nodes), first)


def _place_fake(position: Tensor, nodes: Tensor, first: int) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(size, dtype=torch.int64, device=position.device), position.new_empty(nodes.shape[0])


def _transpose_kernel(rowptr: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    return backend.kernels(col.device).transpose(dense(rowptr), dense(col), columns)


def _transpose_fake(rowptr: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    return rowptr.new_empty(columns + 1), torch.empty_like(col)


_sample = define(
    "sample_neighbours(Tensor rowptr, Tensor rows, SymInt fanout, SymInt seed) -> (Tensor, Tensor)",
    _sample_kernel,
    _sample_fake,
)
_place = define(
    "place_nodes(Tensor(a!) position, Tensor nodes, SymInt first) -> (Tensor, Tensor)", _place_kernel, _place_fake
)
_transpose = define(
    "transpose(Tensor rowptr, Tensor col, SymInt columns) -> (Tensor, Tensor)", _transpose_kernel, _transpose_fake
)
