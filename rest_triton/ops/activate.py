"""activate: BatchNorm's scale and shift, ReLU, write-back to history and dropout in one pass over the rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import backend, check
from .hashing import feature_kept
from .library import define, dense, mutate, row_major
from .memory import new_rows


def activate_definition(
    h: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    relu: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
    rows: Tensor | None = None,
    history: Tensor | None = None,
    history_rows: Tensor | None = None,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The definition of :func:`activate` in plain torch. It also takes float64."""
    rows = torch.arange(len(h), device=h.device) if rows is None else rows
    a = h.to(torch.promote_types(torch.float32, h.dtype))
    if moments is not None and scale is not None and shift is not None and len(h) > 0:
        # The moments keep the values that were passed and get the gradients of h's moments.
        mean, var = moments
        own_mean, own_var = a.mean(0), a.var(0, correction=0)
        own_mean, own_var = mean + (own_mean - own_mean.detach()), var + (own_var - own_var.detach())
        own_scale = scale * (var / own_var).sqrt()
        shift, scale = shift + scale * mean - own_scale * own_mean, own_scale
    if scale is not None:
        a = a * scale
    if shift is not None:
        a = a + shift
    if relu:
        a = a.relu()
    if history is not None:
        into = rows if history_rows is None else history_rows
        history[into.to(history.device)] = a.detach().to(history.device, history.dtype)
    if dropout > 0:
        kept = feature_kept(seed, rows, h.shape[1], dropout)
        a = torch.where(kept, a / (1 - dropout) if dropout < 1 else a, 0)
    return a.to(h.dtype)


def activate(
    h: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    relu: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
    rows: Tensor | None = None,
    history: Tensor | None = None,
    history_rows: Tensor | None = None,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    r"""Scale, shift, ReLU, write to history and dropout, in one pass forward and one pass backward.

    .. math::
        a_i = relu(h_i \cdot scale + shift), \qquad history[history\_rows_i] \leftarrow a_i, \qquad y_i = dropout(a_i)

    Args:
        h: [R, D] float32, bfloat16 or float16, differentiable.
        scale, shift: float32[D], differentiable. BatchNorm is ``scale = weight / sqrt(var + eps)`` and
            ``shift = bias - mean * scale``.
        dropout: probability that an element is zeroed; the others are scaled up. A hash of (seed, rows[i], feature)
            decides, so no mask is stored and all devices draw the same one.
        rows: int64[R], the nodes' global ids. Default: 0..R.
        history: [H, D] table that the values before dropout are written to, in its dtype; not differentiated.
        history_rows: int64[R], distinct, the rows of the table that are written. Default: ``rows``.
        moments: (mean, variance + eps), float32[D] each, if scale and shift were computed from the moments of this h. The
            gradient of h then includes theirs, as for BatchNorm in training, and backward takes two passes.

    Returns: [R, D] in h's dtype. Backward keeps h if scale needs a gradient, else the result.

    Example::

        mean, var = column_moments(h := lin(z))
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        y = activate(h, scale, norm.bias - mean * scale, moments=(mean, var + norm.eps), dropout=0.5, seed=step,
                     rows=batch, history=table)
    """
    _check_arguments(h, scale, shift, dropout, rows, history, history_rows, moments)
    if backend.runs_definition():
        return activate_definition(
            h,
            scale,
            shift,
            relu=relu,
            dropout=dropout,
            seed=seed,
            rows=rows,
            history=history,
            history_rows=history_rows,
            moments=moments,
        )
    if history is not None and history_rows is None:
        history_rows = torch.arange(h.shape[0], device=h.device) if rows is None else rows
    mean, var = (None, None) if moments is None else moments
    return _activate(h, scale, shift, rows, history, history_rows, mean, var, relu, dropout, seed)


def _check_arguments(
    h: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    dropout: float,
    rows: Tensor | None,
    history: Tensor | None,
    history_rows: Tensor | None,
    moments: tuple[Tensor, Tensor] | None,
) -> None:
    definition = backend.runs_definition()
    floats = (*check.ROW_DTYPES, torch.float64) if definition else check.ROW_DTYPES
    check.tensor("h", h, floats, 2)
    check.probability("dropout", dropout)
    vectors = {"scale": scale, "shift": shift}
    if moments is not None:
        if scale is None or shift is None:
            raise ValueError("moments are given without scale and shift; pass the scale and shift computed from them")
        vectors |= {"moments[0]": moments[0], "moments[1]": moments[1]}
        for name in ("moments[0]", "moments[1]"):
            check.no_gradient(name, vectors[name], "the gradient through moments is computed by the op")
    for name, value in vectors.items():
        if value is not None:
            check.tensor(name, value, (torch.float32, torch.float64) if definition else (torch.float32,), 1)
            check.size(name, value, 0, h.shape[1], "one per feature of h")
            check.device(name, value, h.device)
    for name, value in (("rows", rows), ("history_rows", history_rows)):
        if value is not None:
            check.tensor(name, value, (torch.int64,), 1)
            check.size(name, value, 0, h.shape[0], "one per row of h")
            check.device(name, value, h.device)
    if history is None:
        if history_rows is not None:
            raise ValueError("history_rows is given without history; pass the table, too")
        return
    check.tensor("history", history, floats, 2)
    check.size("history", history, 1, h.shape[1], "the width of h")
    check.device("history", history, h.device, may_be_pinned=True)
    check.no_gradient("history", history, "it is written, not differentiated")
    into = history_rows if history_rows is not None else rows
    if into is None and history.shape[0] < h.shape[0]:
        raise ValueError(f"history has {history.shape[0]} rows and h has {h.shape[0]}; say which ones to write with rows")
    if backend.debugging() and into is not None:
        name = "history_rows" if history_rows is not None else "rows"
        check.in_range(name, into, 0, history.shape[0], "the rows of history")
        check.unique(name, into)


def _activate_kernel(
    h: Tensor, scale: Tensor | None, shift: Tensor | None, rows: Tensor | None, history: Tensor | None,
    history_rows: Tensor | None, mean: Tensor | None, var: Tensor | None, relu: bool, dropout: float, seed: int,
) -> Tensor:  # fmt: skip
    h = row_major(h)  # type: ignore[assignment]
    if history is not None and history.stride(1) != 1 and history.shape[1] > 1:
        raise ValueError(f"history has strides {history.stride()}; its rows must be contiguous to be written")
    y = new_rows(h.shape[0], h.shape[1], h.dtype, h.device)
    backend.kernels(h.device).activate(
        y, h, dense(scale), dense(shift), dense(rows), history, dense(history_rows), relu=relu, dropout=dropout, seed=seed
    )
    return y


def _activate_fake(h: Tensor, *args: Any) -> Tensor:
    return torch.empty(h.shape, dtype=h.dtype, device=h.device)


def _backward_kernel(
    grad_y: Tensor, saved: Tensor | None, scale: Tensor | None, shift: Tensor | None, rows: Tensor | None,
    mean: Tensor | None, var: Tensor | None, saved_is_output: bool, relu: bool, dropout: float, seed: int,
    need_scale: bool, need_shift: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    count, width = grad_y.shape
    need_scale, need_shift = need_scale or mean is not None, need_shift or mean is not None
    grad_h = new_rows(count, width, dtype, grad_y.device)
    grad_scale = torch.empty(width if need_scale else 0, dtype=torch.float32, device=grad_y.device)
    grad_shift = torch.empty(width if need_shift else 0, dtype=torch.float32, device=grad_y.device)
    inputs = row_major(grad_y), row_major(saved), dense(scale), dense(shift), dense(rows)
    options = dict(saved_is_output=saved_is_output, relu=relu, dropout=dropout, seed=seed)
    run = backend.kernels(grad_y.device).activate_backward
    sums = grad_scale if need_scale else None, grad_shift if need_shift else None
    if mean is None or var is None or scale is None:
        run(grad_h, *sums, *inputs, **options)
    else:
        # The moments belong to all rows: their gradients must be known before the first row's can be written.
        run(None, *sums, *inputs, **options)
        grad_mean = -scale * grad_shift
        grad_var = -0.5 * scale / var * (grad_scale - mean * grad_shift)
        slope = 2 / max(count, 1) * grad_var
        run(grad_h, None, None, *inputs, slope, grad_mean / max(count, 1) - slope * mean, **options)
    return grad_h, grad_scale, grad_shift


def _backward_fake(
    grad_y: Tensor, saved: Tensor | None, scale: Tensor | None, shift: Tensor | None, rows: Tensor | None,
    mean: Tensor | None, var: Tensor | None, saved_is_output: bool, relu: bool, dropout: float, seed: int,
    need_scale: bool, need_shift: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    width = grad_y.shape[1]
    grad_h = torch.empty(grad_y.shape, dtype=dtype, device=grad_y.device)
    scale_size = width if need_scale or mean is not None else 0
    shift_size = width if need_shift or mean is not None else 0
    return grad_h, grad_h.new_empty(scale_size, dtype=torch.float32), grad_h.new_empty(shift_size, dtype=torch.float32)


_activate = define(
    "activate(Tensor h, Tensor? scale, Tensor? shift, Tensor? rows, Tensor(a!)? history, Tensor? history_rows, "
    "Tensor? mean, Tensor? var, bool relu, float dropout, SymInt seed) -> Tensor",
    _activate_kernel,
    _activate_fake,
)
_activate_backward = define(
    "activate_backward(Tensor grad_y, Tensor? saved, Tensor? scale, Tensor? shift, Tensor? rows, Tensor? mean, Tensor? var, "
    "bool saved_is_output, bool relu, float dropout, SymInt seed, bool need_scale, bool need_shift, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    _backward_kernel,
    _backward_fake,
)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, redispatch: Callable[..., Tensor], h: Tensor, scale: Tensor | None, shift: Tensor | None,
        rows: Tensor | None, history: Tensor | None, history_rows: Tensor | None, mean: Tensor | None, var: Tensor | None,
        relu: bool, dropout: float, seed: int,
    ) -> Tensor:  # fmt: skip
        y = redispatch(h, scale, shift, rows, history, history_rows, mean, var, relu, dropout, seed)
        # The gradients of scale and of moments need h. Otherwise the result is enough, and is usually in memory anyway:
        # it is positive exactly where ReLU and dropout pass the gradient.
        by_output = not ctx.needs_input_grad[2] and mean is None
        saved = None if by_output and not relu else y if by_output else h
        ctx.save_for_backward(saved, scale, shift, rows, mean, var)
        ctx.options = by_output, relu, dropout, seed
        ctx.dtype = h.dtype
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple:
        saved, scale, shift, rows, mean, var = ctx.saved_tensors
        needs_scale, needs_shift = ctx.needs_input_grad[2:4]
        grad_h, grad_scale, grad_shift = _activate_backward(
            grad_y, saved, scale, shift, rows, mean, var, *ctx.options, needs_scale, needs_shift, ctx.dtype
        )
        return (
            None, grad_h if ctx.needs_input_grad[1] else None, grad_scale if needs_scale else None,
            grad_shift if needs_shift else None, *[None] * 8,
        )  # fmt: skip


def _autograd(redispatch: Callable[..., Tensor], *args: Any) -> Tensor:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in args[:3]):
        return _Activate.apply(redispatch, *args)
    return redispatch(*args)


mutate(_activate, _autograd)
