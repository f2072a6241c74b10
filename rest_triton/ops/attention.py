"""history_attention: computes GAT's attention over in-batch and historical rows, without gathering either."""

from typing import Any

import torch
from torch import Tensor

from ..kernels._hash import keep_scale
from . import backend, check
from .adjacency import Adjacency
from .hashing import edge_kept
from .library import define, dense, differentiate, row_major
from .memory import new_rows
from .spmm import check_values, check_x_rows


def history_attention_definition(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    x_score: Tensor | None,
    row_score: Tensor,
    history: Tensor | None = None,
    history_score: Tensor | None = None,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """The definition of :func:`history_attention` in plain torch. It also takes float64."""
    heads, width = row_score.shape[1], next(t for t in (x, history) if t is not None).shape[1]
    precision = torch.promote_types(torch.float32, row_score.dtype)

    # All edges of the rows: edge k of row i leads to row p of x, or to row ~p of history.
    start, degree = adj.rowptr[rows], adj.rowptr[rows + 1] - adj.rowptr[rows]
    i = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), degree)
    k = torch.arange(len(i), device=rows.device) + torch.repeat_interleave(start - (degree.cumsum(0) - degree), degree)
    p = position[adj.col[k].long()].long()
    if x is None or history is None:
        read = p < 0 if x is None else p >= 0
        i, k, p = i[read], k[read], p[read]

    def of_sources(inside: Tensor | None, outside: Tensor | None, width: int) -> Tensor:
        """[edges, width]: the source row of each edge."""
        sources = torch.zeros(len(p), width, dtype=precision, device=rows.device)
        if inside is not None:
            sources = sources.index_add(0, torch.nonzero(p >= 0)[:, 0], inside[p[p >= 0]].to(precision))
        if outside is not None:
            stale = outside.detach()[(~p[p < 0]).to(outside.device)].to(rows.device, precision)
            sources = sources.index_add(0, torch.nonzero(p < 0)[:, 0], stale)
        return sources

    score = row_score.to(precision)[i] + of_sources(x_score, history_score, heads)
    score = torch.nn.functional.leaky_relu(score, negative_slope)
    # The largest score of a row cancels out of its softmax, so it needs no gradient.
    largest = torch.zeros(len(rows), heads, dtype=precision, device=rows.device)
    largest = largest.scatter_reduce(0, i[:, None].expand_as(score), score.detach(), "amax", include_self=False)
    weight = (score - largest[i]).exp()
    total = torch.zeros_like(largest).index_add(0, i, weight)
    alpha = weight / total[i]
    if dropout > 0:
        name = k if adj.edge_id is None else adj.edge_id[k].long()
        kept = edge_kept(seed, name[:, None] * heads + torch.arange(heads, device=rows.device), dropout)
        alpha = torch.where(kept, alpha * keep_scale(dropout), 0.0)
    message = alpha[:, :, None] * of_sources(x, history, width).view(len(p), heads, width // heads)
    out = torch.zeros(len(rows), width, dtype=precision, device=rows.device).index_add(0, i, message.flatten(1))
    return out.to(precision if x is None else x.dtype)


def history_attention(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    x_score: Tensor | None,
    row_score: Tensor,
    history: Tensor | None = None,
    history_score: Tensor | None = None,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: int = 0,
    x_rows: Tensor | None = None,
    row_position: Tensor | None = None,
) -> Tensor:
    r"""Attend to all neighbours of ``rows``, as GATConv does: rows in the batch from ``x``, the others from ``history``.

    .. math::
        out_{ih} = \sum_{k=rowptr_g}^{rowptr_{g+1}-1} \alpha_{kh} \, src(col_k)_h, \qquad
        \alpha_{\cdot h} = softmax_k \, LeakyReLU(row\_score_{ih} + src\_score(col_k)_h), \qquad g = rows_i

    with ``src(c) = x[position[c]]`` where ``position[c] >= 0``, else ``history[~position[c]]``, and ``src_score`` likewise
    from ``x_score`` and ``history_score``. Head h takes D / heads columns of a row, from h D / heads on. Edges to a source
    that is None are left out. A row without edges is zero. Sums are accumulated in float32. The result is bitwise the same
    for any number of threads.

    Args:
        adj: the graph, without scales and weights. The gradients of x and x_score need its reverse.
        rows: int64[R], the nodes to compute, distinct.
        position: int32[N], as in :func:`history_spmm`. It must not change until backward has run.
        x: [R, D] in-batch rows, differentiable. Its gradient needs ``position[rows[i]] == i``.
        x_score: [R, heads], the part of the score that each row of x gives as a source, differentiable.
        row_score: [R, heads], the part of the score that each of ``rows`` gives, differentiable.
        history: [H, D] and history_score: [H, heads], never differentiated. The GPU reads them directly from pinned host
            memory.
        negative_slope: of the LeakyReLU.
        dropout: the probability that an alpha is left out, by a hash of (seed, edge, head). The others are scaled up.
        x_rows, row_position: as in :func:`history_spmm`, where x has other rows than ``rows``: the nodes of x's rows, and
            the position map of ``rows``.

    Rows and scores may differ in dtype: float32, bfloat16 or float16. Returns: [R, D] in x's dtype, or float32 without x.

    Example::

        h = lin(features)  # [R, heads * C]
        source, target = ((h.view(-1, heads, C) * att).sum(-1) for att in (att_src, att_dst))
        z = history_attention(adj, rows, position, h, source, target, table, table_score)
    """
    _check_arguments(adj, rows, position, x, x_score, row_score, history, history_score, dropout, x_rows, row_position)
    if backend.runs_definition():
        return history_attention_definition(
            adj, rows, position, x, x_score, row_score, history, history_score,
            negative_slope=negative_slope, dropout=dropout, seed=seed,
        )  # fmt: skip
    reverse = adj.reverse
    return _attention(
        adj.rowptr, adj.col, adj.edge_id, *adj.hubs,
        None if reverse is None else reverse.rowptr, None if reverse is None else reverse.col,
        None if reverse is None else reverse.edge_id, *((None, None, 0) if reverse is None else reverse.hubs),
        rows, position, x, x_score, row_score, history, history_score, x_rows, row_position, negative_slope, dropout, seed,
    )[0]  # fmt: skip


def _check_arguments(
    adj: Adjacency,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    x_score: Tensor | None,
    row_score: Tensor,
    history: Tensor | None,
    history_score: Tensor | None,
    dropout: float,
    x_rows: Tensor | None,
    row_position: Tensor | None,
) -> None:
    floats = (*check.ROW_DTYPES, torch.float64) if backend.runs_definition() else check.ROW_DTYPES
    check.tensor("rows", rows, (torch.int64,), 1)
    check.tensor("position", position, (torch.int32,), 1)
    check.same_nodes("history_attention", adj.num_nodes, adj.num_columns)
    check.size("position", position, 0, adj.num_nodes, "the number of nodes")
    check_x_rows(adj, rows, x_rows, row_position)
    if x is None and history is None:
        raise ValueError("x and history are both None; there is nothing to attend to, pass one of them")
    for name in ("row_scale", "col_scale", "edge_weight"):
        if getattr(adj, name) is not None:
            raise ValueError(f"adj has {name}, but attention weighs edges by their scores; pass an Adjacency without it")
    check.probability("dropout", dropout)
    check.device("adj.rowptr", adj.rowptr, rows.device)
    check.device("position", position, rows.device)
    check.tensor("row_score", row_score, floats, 2)
    check.device("row_score", row_score, rows.device)
    check.size("row_score", row_score, 0, rows.shape[0], "one per row")
    heads, width = row_score.shape[1], -1
    for name, value, score in (("x", x, x_score), ("history", history, history_score)):
        if (value is None) != (score is None):
            raise ValueError(f"only one of {name} and {name}_score is given; pass both or none")
        if value is None or score is None:
            continue
        for tensor_name, tensor in ((name, value), (f"{name}_score", score)):
            check.tensor(tensor_name, tensor, floats, 2)
            check.device(tensor_name, tensor, rows.device, may_be_pinned=name == "history")
        width = value.shape[1] if width < 0 else width
        check.size(name, value, 1, width, "the width of the other rows")
        check.size(f"{name}_score", score, 1, heads, "the number of heads, as in row_score")
        check.size(f"{name}_score", score, 0, value.shape[0], f"one per row of {name}")
    if heads == 0 or width % heads != 0:
        raise ValueError(
            f"rows of {width} elements cannot be split into {heads} heads; the width must be a multiple of heads"
        )
    for name, value in (("history", history), ("history_score", history_score)):
        check.no_gradient(name, value, "history rows are constants: gradients do not flow into the past")
    for name, value in (("x", x), ("x_score", x_score)):
        if value is None or not value.requires_grad or not torch.is_grad_enabled() or backend.runs_definition():
            continue
        inputs = rows if x_rows is None else x_rows
        check.size(
            name, value, 0, inputs.shape[0], "one per row that it holds; name them with x_rows where they are not rows"
        )
        if adj.reverse is None:
            raise ValueError(
                f"{name} requires a gradient but adj has no reverse; use adj.undirected() if every edge is there both ways, "
                "else adj.with_reverse()"
            )
        if adj.reverse.edge_id is None and dropout > 0:
            raise ValueError("dropout needs the reverse's edge ids; use adj.with_reverse()")
    if backend.debugging():
        check_values(adj, rows, position, x, history, rows if x_rows is None else x_rows)


def _attention_kernel(
    rowptr: Tensor, col: Tensor, edge_id: Tensor | None,
    hub_node: Tensor | None, hub_first: Tensor | None, hub_segments: int,
    back_rowptr: Tensor | None, back_col: Tensor | None, back_edge_id: Tensor | None,
    back_hub_node: Tensor | None, back_hub_first: Tensor | None, back_hub_segments: int,
    rows: Tensor, position: Tensor, x: Tensor | None, x_score: Tensor | None, row_score: Tensor,
    history: Tensor | None, history_score: Tensor | None, x_rows: Tensor | None, row_position: Tensor | None,
    negative_slope: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    given: Tensor = x if x is not None else history  # type: ignore[assignment]
    out = new_rows(rows.shape[0], given.shape[1], torch.float32 if x is None else x.dtype, rows.device)
    norm = torch.empty(rows.shape[0], 2 * row_score.shape[1], dtype=torch.float32, device=rows.device)
    backend.kernels(rows.device).attention(
        out, norm, dense(rowptr), dense(col), dense(edge_id), dense(rows), dense(position), row_major(x), row_major(x_score),
        row_major(row_score), row_major(history), row_major(history_score),
        negative_slope=negative_slope, dropout=dropout, seed=seed,
        hub_node=hub_node, hub_first=hub_first, hub_segments=hub_segments,
    )  # fmt: skip
    return out, norm


def _attention_fake(*args: Any) -> tuple[Tensor, Tensor]:
    rows, _, x, _, row_score, history = args[12:18]
    dtype = torch.float32 if x is None else x.dtype
    out = torch.empty(rows.shape[0], (history if x is None else x).shape[1], dtype=dtype, device=rows.device)
    return out, torch.empty(rows.shape[0], 2 * row_score.shape[1], dtype=torch.float32, device=rows.device)


def _row_grad_kernel(
    rowptr: Tensor, col: Tensor, edge_id: Tensor | None,
    hub_node: Tensor | None, hub_first: Tensor | None, hub_segments: int, rows: Tensor, position: Tensor,
    x: Tensor | None, x_score: Tensor | None, row_score: Tensor, history: Tensor | None, history_score: Tensor | None,
    norm: Tensor, grad: Tensor, negative_slope: float, dropout: float, seed: int,
) -> Tensor:  # fmt: skip
    sums = torch.empty(rows.shape[0], 3 * row_score.shape[1], dtype=torch.float32, device=rows.device)
    backend.kernels(rows.device).attention_row_grad(
        sums, dense(rowptr), dense(col), dense(edge_id), dense(rows), dense(position), row_major(x), row_major(x_score),
        row_major(row_score), row_major(history), row_major(history_score), norm, row_major(grad),
        negative_slope=negative_slope, dropout=dropout, seed=seed,
        hub_node=hub_node, hub_first=hub_first, hub_segments=hub_segments,
    )  # fmt: skip
    return sums


def _row_grad_fake(*args: Any) -> Tensor:
    row_score = args[10]
    return torch.empty(row_score.shape[0], 3 * row_score.shape[1], dtype=torch.float32, device=row_score.device)


def _source_grad_kernel(
    rowptr: Tensor, col: Tensor, edge_id: Tensor | None,
    hub_node: Tensor | None, hub_first: Tensor | None, hub_segments: int, rows: Tensor, position: Tensor,
    x: Tensor, x_score: Tensor, terms: Tensor, grad: Tensor, negative_slope: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    grad_x = new_rows(rows.shape[0], x.shape[1], x.dtype, rows.device)
    grad_score = torch.empty(x_score.shape, dtype=x_score.dtype, device=rows.device)
    backend.kernels(rows.device).attention_source_grad(
        grad_x, grad_score, dense(rowptr), dense(col), dense(edge_id), dense(rows), dense(position), row_major(x),
        row_major(x_score), terms, row_major(grad), negative_slope=negative_slope, dropout=dropout, seed=seed,
        hub_node=hub_node, hub_first=hub_first, hub_segments=hub_segments,
    )  # fmt: skip
    return grad_x, grad_score


def _source_grad_fake(*args: Any) -> tuple[Tensor, Tensor]:
    x, x_score = args[8:10]
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(
        x_score.shape, dtype=x_score.dtype, device=x_score.device
    )


_GRAPH = "Tensor rowptr, Tensor col, Tensor? edge_id, Tensor? hub_node, Tensor? hub_first, SymInt hub_segments, "
_SOURCES = "Tensor? x, Tensor? x_score, Tensor row_score, Tensor? history, Tensor? history_score, "
_OPTIONS = "float negative_slope, float dropout, SymInt seed"
_attention = define(
    f"history_attention({_GRAPH}Tensor? back_rowptr, Tensor? back_col, Tensor? back_edge_id, Tensor? back_hub_node, "
    f"Tensor? back_hub_first, SymInt back_hub_segments, Tensor rows, Tensor position, {_SOURCES}"
    f"Tensor? x_rows, Tensor? row_position, {_OPTIONS}) -> (Tensor, Tensor)",
    _attention_kernel,
    _attention_fake,
)
_row_grad = define(
    f"history_attention_row_grad({_GRAPH}Tensor rows, Tensor position, {_SOURCES}Tensor norm, Tensor grad, {_OPTIONS}) "
    "-> Tensor",
    _row_grad_kernel,
    _row_grad_fake,
)
_source_grad = define(
    f"history_attention_source_grad({_GRAPH}Tensor rows, Tensor position, Tensor x, Tensor x_score, Tensor terms, "
    f"Tensor grad, {_OPTIONS}) -> (Tensor, Tensor)",
    _source_grad_kernel,
    _source_grad_fake,
)


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.slope, ctx.dropout, ctx.seed = inputs
    ctx.segments, ctx.back_segments = inputs[5], inputs[11]
    ctx.save_for_backward(*(t for n, t in enumerate(tensors) if n not in (5, 11)), output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple:
    *tensors, rows, position, x, x_score, row_score, history, history_score, x_rows, row_position, norm = ctx.saved_tensors
    graph, reverse = (*tensors[:5], ctx.segments), (*tensors[5:], ctx.back_segments)
    options = ctx.slope, ctx.dropout, ctx.seed
    needs = ctx.needs_input_grad
    if torch.is_grad_enabled() and grad.requires_grad:
        raise RuntimeError('history_attention can be differentiated once; for second derivatives use use_backend("torch")')
    # For each edge da = <grad, src> after dropout, and s is the slope of LeakyReLU at its score.
    # sums holds the row's sums of alpha da, s alpha da and s alpha. A score has the gradient s alpha (da - sum of alpha da).
    sums = _row_grad(*graph, rows, position, x, x_score, row_score, history, history_score, norm, grad, *options)
    delta, sloped, slopes = sums.chunk(3, 1)
    grad_x = grad_x_score = grad_row_score = None
    if needs[16]:
        grad_row_score = (sloped - delta * slopes).to(row_score.dtype)
    if needs[14] or needs[15]:
        terms = torch.cat([row_score.float(), norm, delta], 1)
        targets = (rows, position) if x_rows is None else (x_rows, row_position)
        grad_x, grad_x_score = _source_grad(*reverse, *targets, x, x_score, terms, grad, *options)
    return (*[None] * 14, grad_x, grad_x_score, grad_row_score, *[None] * 7)


differentiate(_attention, _setup_context, _backward)
