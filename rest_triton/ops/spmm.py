"""history_spmm: aggregates in-batch and historical rows with the normalised adjacency, without gathering either."""

from typing import Any

import torch
from torch import Tensor

from . import backend, check
from .adjacency import Adjacency
from .hashing import edge_kept
from .library import define, dense, differentiate, row_major
from .memory import new_rows


def history_spmm_definition(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None = None,
    history: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 0.0,
    edge_dropout: float = 0.0,
    seed: int = 0,
    grad_history: Tensor | None = None,
    x_rows: Tensor | None = None,
    row_position: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The definition of :func:`history_spmm` in plain torch. It also takes float64."""
    device = rows.device
    given = [t for t in (x, history, residual) if t is not None]
    precision = torch.promote_types(torch.float32, given[0].dtype)
    width = next(t for t in (x, history) if t is not None).shape[1]
    if grad_history is not None and x is not None and adj.reverse is not None:
        outside = history_spmm_definition(
            adj.reverse, rows if x_rows is None else x_rows, position if row_position is None else row_position, None,
            grad_history, edge_dropout=edge_dropout, seed=seed, dtype=precision,
        )  # fmt: skip
        # grad_history holds gradients of the result, which contains the aggregate times (1 - alpha).
        x = _AddToGradient.apply(x, outside if residual is None else (1 - alpha) * outside)

    # All edges of the rows: edge k of row i leads to node c.
    start, degree = adj.rowptr[rows], adj.rowptr[rows + 1] - adj.rowptr[rows]
    i = torch.repeat_interleave(torch.arange(len(rows), device=device), degree)
    k = torch.arange(len(i), device=device) + torch.repeat_interleave(start - (degree.cumsum(0) - degree), degree)
    if edge_dropout > 0:
        kept = edge_kept(seed, k if adj.edge_id is None else adj.edge_id[k], edge_dropout)
        i, k = i[kept], k[kept]
    c = adj.col[k].long()
    weight = torch.ones(len(k), dtype=precision, device=device)
    if adj.col_scale is not None:
        weight = weight * adj.col_scale[c]
    if adj.edge_weight is not None:
        weight = weight * adj.edge_weight[k if adj.edge_id is None else adj.edge_id[k].long()]
    if 0 < edge_dropout < 1:
        weight = weight / (1 - edge_dropout)

    p = position[c].long()
    out = torch.zeros(len(rows), width, dtype=precision, device=device)
    if x is not None:
        inside = p >= 0
        out = out.index_add(0, i[inside], weight[inside, None] * x[p[inside]].to(precision))
    if history is not None:
        outside = p < 0
        stale = history.detach()[(~p[outside]).to(history.device)].to(device, precision)
        out = out.index_add(0, i[outside], weight[outside, None] * stale)
    if adj.row_scale is not None:
        out = adj.row_scale[rows, None] * out
    if residual is not None:
        out = (1 - alpha) * out + alpha * residual
    return out.to(_result_dtype(x, precision, dtype))


class _AddToGradient(torch.autograd.Function):
    """Identity of x. Its backward adds the historical part to the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, extra: Tensor) -> Tensor:
        ctx.save_for_backward(extra)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (extra,) = ctx.saved_tensors
        return grad + extra.to(grad.dtype), None


def _result_dtype(x: Tensor | None, otherwise: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    if asked is not None:
        return asked
    return otherwise if x is None else x.dtype


def history_spmm(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None = None,
    history: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    alpha: float = 0.0,
    edge_dropout: float = 0.0,
    seed: int = 0,
    grad_history: Tensor | None = None,
    x_rows: Tensor | None = None,
    row_position: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Aggregate over all neighbours of ``rows``: rows in the batch come from ``x``, the others from ``history``.

    .. math::
        out_i = (1-\alpha) \, r_g \sum_{k=rowptr_g}^{rowptr_{g+1}-1} c_{col_k} \, e_k \, src(col_k) + \alpha \, residual_i,
        \qquad g = rows_i

    with ``src(c) = x[position[c]]`` where ``position[c] >= 0``, else ``history[~position[c]]``. A source that is None
    counts as zero. Sums are accumulated in float32. The result is bitwise the same for any number of threads.

    Args:
        adj: the graph. The gradient of x needs its reverse.
        rows: int64[R], the nodes to compute, distinct.
        position: int32[N], the place of each node's row: ``i`` for row i of x, ``~j`` for row j of history (``~node`` in a
            table of all nodes). It must not change until backward has run.
        x: [X, D] in-batch rows, differentiable. Its gradient needs ``position[x_rows[i]] == i``.
        history: [H, D], any number of rows, never differentiated. The GPU reads it directly from pinned host memory.
        residual: [R, D], differentiable, mixed in with ``alpha``.
        edge_dropout: the probability that an edge is left out, by a hash of (seed, edge). The others are scaled up.
        grad_history: [H, D] historical gradients of the result for nodes outside of the batch. Backward reads them through
            ``position``.
        x_rows: int64[X], the nodes whose rows x holds. Default: ``rows``.
        row_position: int32[N], the position map of ``rows``. Backward reads gradients through it. Default: ``position``.
            Give both where a layer computes fewer rows than it reads.
        dtype: of the result. Default: that of x, or float32 without x.

    x, history and residual may differ in dtype: float32, bfloat16 or float16. Returns: [R, D].

    Example::

        position = ~torch.arange(N, dtype=torch.int32)
        position[rows] = torch.arange(len(rows), dtype=torch.int32)  # enter the batch
        z = history_spmm(adj, rows, position, h, table)
    """
    _check_arguments(adj, rows, position, x, history, residual, edge_dropout, grad_history, x_rows, row_position, dtype)
    if backend.runs_definition():
        return history_spmm_definition(
            adj, rows, position, x, history, residual=residual, alpha=alpha, edge_dropout=edge_dropout, seed=seed,
            grad_history=grad_history, x_rows=x_rows, row_position=row_position, dtype=dtype,
        )  # fmt: skip
    reverse = adj.reverse
    return _spmm(
        adj.rowptr, adj.col, adj.edge_id, *adj.hubs,
        None if reverse is None else reverse.rowptr, None if reverse is None else reverse.col,
        None if reverse is None else reverse.edge_id, *((None, None, 0) if reverse is None else reverse.hubs),
        adj.row_scale, adj.col_scale, adj.edge_weight, rows, position, x, history, residual, grad_history,
        x_rows, row_position, 1.0 if residual is None else 1.0 - alpha, alpha, edge_dropout, seed,
        _result_dtype(x, torch.float32, dtype),
    )  # fmt: skip


def _check_arguments(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    history: Tensor | None,
    residual: Tensor | None,
    edge_dropout: float,
    grad_history: Tensor | None,
    x_rows: Tensor | None,
    row_position: Tensor | None,
    dtype: torch.dtype | None,
) -> None:
    floats = (*check.ROW_DTYPES, torch.float64) if backend.runs_definition() else check.ROW_DTYPES
    check.tensor("rows", rows, (torch.int64,), 1)
    check.tensor("position", position, (torch.int32,), 1)
    check.size("position", position, 0, adj.num_columns, "the number of nodes")
    check_x_rows(adj, rows, x_rows, row_position)
    if x is None and history is None:
        raise ValueError("x and history are both None; there is nothing to aggregate, pass one of them")
    if dtype is not None and dtype not in floats:
        raise TypeError(f"dtype is {dtype}; it must be {check.names(floats)}")
    if not backend.runs_definition():
        for name in ("row_scale", "col_scale", "edge_weight"):
            if getattr(adj, name) is not None:
                check.tensor(f"adj.{name}", getattr(adj, name), (torch.float32,), 1)
    check.probability("edge_dropout", edge_dropout)
    where, width = rows.device, -1
    check.device("adj.rowptr", adj.rowptr, where)
    check.device("position", position, where)
    for name, value in (("x", x), ("history", history), ("residual", residual), ("grad_history", grad_history)):
        if value is None:
            continue
        check.tensor(name, value, floats, 2)
        check.device(name, value, where, may_be_pinned=name in ("history", "grad_history"))
        width = value.shape[1] if width < 0 else width
        check.size(name, value, 1, width, "the width of the other rows")
    if residual is not None:
        check.size("residual", residual, 0, rows.shape[0], "one per row")
    check.no_gradient("history", history, "history rows are constants: gradients do not flow into the past")
    if x is not None and x.requires_grad and torch.is_grad_enabled() and not backend.runs_definition():
        inputs = rows if x_rows is None else x_rows
        check.size("x", x, 0, inputs.shape[0], "one per node that it holds; give their ids as x_rows if they are not rows")
        if adj.reverse is None:
            raise ValueError(
                "x requires a gradient but adj has no reverse; use adj.undirected() if every edge is there both ways, "
                "else adj.with_reverse()"
            )
        if adj.reverse.edge_id is None and (edge_dropout > 0 or adj.edge_weight is not None):
            raise ValueError("edge_dropout and edge_weight need the reverse's edge ids; use adj.with_reverse()")
    if backend.debugging():
        check_values(adj, rows, position, x, history, rows if x_rows is None else x_rows)


def check_x_rows(adj: Adjacency, rows: Tensor, x_rows: Tensor | None, row_position: Tensor | None) -> None:
    """Check ``x_rows`` and ``row_position``, which are given together or not at all."""
    if (x_rows is None) != (row_position is None):
        raise ValueError("only one of x_rows and row_position is given; pass both or none")
    if x_rows is not None and row_position is not None:
        check.tensor("x_rows", x_rows, (torch.int64,), 1)
        check.tensor("row_position", row_position, (torch.int32,), 1)
        check.size("row_position", row_position, 0, adj.num_nodes, "the number of nodes")
        check.device("row_position", row_position, rows.device)


def check_values(
    adj: Adjacency, rows: Tensor, position: Tensor, x: Tensor | None, history: Tensor | None, x_rows: Tensor
) -> None:
    check.in_range("rows", rows, 0, adj.num_nodes, "the node ids")
    check.unique("rows", rows)
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    first = torch.repeat_interleave(adj.rowptr[rows] - (degree.cumsum(0) - degree), degree)
    read = position[adj.col[torch.arange(first.numel(), device=rows.device) + first].long()]
    # Only positions of neighbours are read, so only these are checked.
    if x is not None:
        check.in_range("position", read[read >= 0], 0, x.shape[0], "the rows of x, for nodes in the batch")
        if x.requires_grad and not torch.equal(position[x_rows].long(), torch.arange(len(x_rows), device=rows.device)):
            raise ValueError("x requires a gradient, but position[x_rows[i]] is not i for every row; enter the batch first")
    if history is not None:
        check.in_range("position", read[read < 0], -history.shape[0], 0, "-1 - row of history, for nodes out of the batch")


def _spmm_kernel(
    rowptr: Tensor, col: Tensor, edge_id: Tensor | None,
    hub_node: Tensor | None, hub_first: Tensor | None, hub_segments: int,
    back_rowptr: Tensor | None, back_col: Tensor | None, back_edge_id: Tensor | None,
    back_hub_node: Tensor | None, back_hub_first: Tensor | None, back_hub_segments: int,
    row_scale: Tensor | None, col_scale: Tensor | None, edge_weight: Tensor | None, rows: Tensor, position: Tensor,
    x: Tensor | None, history: Tensor | None, residual: Tensor | None, grad_history: Tensor | None,
    x_rows: Tensor | None, row_position: Tensor | None,
    scale: float, alpha: float, edge_dropout: float, seed: int, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    x, history, residual = row_major(x), row_major(history), row_major(residual)
    width = (x if x is not None else history).shape[1]  # type: ignore[union-attr]
    out = new_rows(rows.shape[0], width, dtype, rows.device)
    backend.kernels(rows.device).spmm(
        out, dense(rowptr), dense(col), dense(edge_id), dense(rows), dense(position), x, history, dense(row_scale),
        dense(col_scale), dense(edge_weight), residual,
        scale=scale, alpha=alpha, edge_dropout=edge_dropout, seed=seed,
        hub_node=hub_node, hub_first=hub_first, hub_segments=hub_segments,
    )  # fmt: skip
    return out


def _spmm_fake(*args: Any) -> Tensor:
    rows, x, history, dtype = (args[_AT[name]] for name in ("rows", "x", "history", "dtype"))
    width = (x if x is not None else history).shape[1]
    return torch.empty(rows.shape[0], width, dtype=dtype, device=rows.device)


def _edge_grad_kernel(
    rowptr: Tensor, col: Tensor, edge_id: Tensor | None, row_scale: Tensor | None, col_scale: Tensor | None,
    rows: Tensor, position: Tensor, x: Tensor | None, history: Tensor | None, grad_out: Tensor,
    scale: float, edge_dropout: float, seed: int,
) -> Tensor:  # fmt: skip
    grad = torch.zeros(col.numel(), dtype=torch.float32, device=rows.device)
    backend.kernels(rows.device).edge_grad(
        grad, dense(rowptr), dense(col), dense(edge_id), dense(rows), dense(position), row_major(x), row_major(history),
        dense(row_scale), dense(col_scale), row_major(grad_out), scale=scale, edge_dropout=edge_dropout, seed=seed,
    )  # fmt: skip
    return grad


def _edge_grad_fake(rowptr: Tensor, col: Tensor, *args: Any) -> Tensor:
    return torch.empty(col.shape[0], dtype=torch.float32, device=col.device)


_spmm = define(
    "history_spmm(Tensor rowptr, Tensor col, Tensor? edge_id, Tensor? hub_node, Tensor? hub_first, SymInt hub_segments, "
    "Tensor? back_rowptr, Tensor? back_col, Tensor? back_edge_id, Tensor? back_hub_node, Tensor? back_hub_first, "
    "SymInt back_hub_segments, Tensor? row_scale, Tensor? col_scale, Tensor? edge_weight, Tensor rows, Tensor position, "
    "Tensor? x, Tensor? history, Tensor? residual, Tensor? grad_history, Tensor? x_rows, Tensor? row_position, "
    "float scale, float alpha, float edge_dropout, SymInt seed, ScalarType dtype) -> Tensor",
    _spmm_kernel,
    _spmm_fake,
)
_edge_grad = define(
    "history_spmm_edge_grad(Tensor rowptr, Tensor col, Tensor? edge_id, Tensor? row_scale, Tensor? col_scale, Tensor rows, "
    "Tensor position, Tensor? x, Tensor? history, Tensor grad_out, float scale, float edge_dropout, SymInt seed) -> Tensor",
    _edge_grad_kernel,
    _edge_grad_fake,
)


#: The index of each argument of the op, by its name in the schema.
_AT = {argument.name: number for number, argument in enumerate(_spmm._schema.arguments)}
_SAVED = (
    "rowptr", "col", "edge_id", "hub_node", "hub_first", "back_rowptr", "back_col", "back_edge_id", "back_hub_node",
    "back_hub_first", "row_scale", "col_scale", "edge_weight", "rows", "position", "x", "history", "grad_history", "x_rows",
    "row_position",
)  # fmt: skip


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    given = dict(zip(_AT, inputs, strict=True))
    ctx.x_dtype, ctx.residual_dtype = (None if given[name] is None else given[name].dtype for name in ("x", "residual"))
    weight = given["edge_weight"]
    if weight is None or not weight.requires_grad:  # only the gradient of edge weights reads the rows again
        given |= {"x": None, "history": None}
    ctx.save_for_backward(*(given[name] for name in _SAVED))
    ctx.values = {name: value for name, value in given.items() if name not in _SAVED and name != "residual"}


def _backward(ctx: Any, grad: Tensor) -> tuple:
    t: dict[str, Any] = dict(zip(_SAVED, ctx.saved_tensors, strict=True)) | ctx.values
    needs = {name: ctx.needs_input_grad[number] for name, number in _AT.items()}
    gradients: dict[str, Tensor] = {}
    if needs["edge_weight"]:
        gradients["edge_weight"] = _edge_grad(
            t["rowptr"], t["col"], t["edge_id"], t["row_scale"], t["col_scale"], t["rows"], t["position"], t["x"],
            t["history"], grad, t["scale"], t["edge_dropout"], t["seed"],
        )  # fmt: skip
    if needs["x"]:
        # The same op on the reverse graph: rows and columns, their scales and their position maps change places.
        swapped = {name: t[f"back_{name}"] for name in _GRAPH} | {f"back_{name}": t[name] for name in _GRAPH}
        apart = t["x_rows"] is not None
        swapped |= dict(
            row_scale=t["col_scale"], col_scale=t["row_scale"], edge_weight=t["edge_weight"], x=grad,
            rows=t["x_rows"] if apart else t["rows"], position=t["row_position"] if apart else t["position"],
            x_rows=t["rows"] if apart else None, row_position=t["position"] if apart else None,
            history=t["grad_history"], residual=None, grad_history=None, scale=t["scale"], alpha=0.0,
            edge_dropout=t["edge_dropout"], seed=t["seed"], dtype=ctx.x_dtype,
        )  # fmt: skip
        gradients["x"] = _spmm(*(swapped[name] for name in _AT))
    if needs["residual"]:
        wider = torch.promote_types(grad.dtype, ctx.residual_dtype)  # so that the product is rounded once
        gradients["residual"] = (t["alpha"] * grad.to(wider)).to(ctx.residual_dtype)
    return tuple(gradients.get(name) for name in _AT)


_GRAPH = ("rowptr", "col", "edge_id", "hub_node", "hub_first", "hub_segments")

differentiate(_spmm, _setup_context, _backward)
