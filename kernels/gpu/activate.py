"""y = dropout(relu(h * scale + shift)) for h [R, D] and scale, shift float32 [D]: one pass forward, one backward.

Forward reads h and writes y, and optionally history[history_rows[i]] = the value before dropout. Backward reads grad_y and
the saved matrix and writes grad_h. Each program writes one partial row per sum over rows; a second small kernel adds the
partial rows in order. The dropout mask is a hash of (seed, rows[i], d). It is computed again, never stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._hash import keep_scale, seed_key, threshold
from .hashing import counter_hash, feature_kept
from .launch import PARTIAL_PROGRAMS, activate_settings, column_sum_settings, launch, row_vector
from .storage import round_to, row_pointers, widen

_RUNTIME = [
    "stride_y", "stride_h", "stride_history", "stride_grad_h", "stride_grad_y", "stride_saved", "count",
    "partials", "key", "threshold", "keep_scale",
]  # fmt: skip
_POINTERS = [
    "y_ptr", "h_ptr", "scale_ptr", "shift_ptr", "rows_ptr", "history_ptr", "history_rows_ptr", "grad_h_ptr",
    "grad_y_ptr", "saved_ptr", "partial_scale_ptr", "partial_shift_ptr", "sum_ptr", "partial_ptr", "slope_ptr",
    "offset_ptr",
]  # fmt: skip


@triton.jit
def _vector(ptr, o_d, m_d):
    """ptr[o_d] to be broadcast over rows, float32 [1, BLOCK_D]."""
    return tl.load(ptr + o_d[None, :], mask=m_d[None, :], other=0.0)


@triton.jit
def _kept(rows_ptr, o_r, m_r, o_d, key, threshold):
    """Dropout's mask of rows o_r and features o_d."""
    b_id = o_r
    if rows_ptr is not None:
        b_id = tl.load(rows_ptr + o_r, mask=m_r, other=0)
    return feature_kept(counter_hash(key, b_id)[:, None], o_d[None, :], threshold)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def activate_kernel(
    y_ptr, h_ptr, scale_ptr, shift_ptr, rows_ptr, history_ptr, history_rows_ptr,
    stride_y: tl.int32, stride_h: tl.int32, stride_history: tl.int32, count: tl.int32,
    key: tl.int64, threshold: tl.int32, keep_scale: tl.float32,
    RELU: tl.constexpr, DROPOUT: tl.constexpr, VECTOR: tl.constexpr,
    D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per tile."""
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_r = o_r < count
    m_d = o_d < D
    m = m_r[:, None] & m_d[None, :]
    b_a = widen(tl.load(row_pointers(h_ptr, o_r, stride_h, o_d, VECTOR), mask=m, other=0.0))
    if scale_ptr is not None:
        b_a *= _vector(scale_ptr, o_d, m_d)
    if shift_ptr is not None:
        b_a += _vector(shift_ptr, o_d, m_d)
    if RELU:
        b_a = tl.where(b_a <= 0, 0.0, b_a)  # a comparison with NaN fails: NaN stays
    if history_ptr is not None:
        b_to = tl.load(history_rows_ptr + o_r, mask=m_r, other=0)
        p_history = row_pointers(history_ptr, b_to, stride_history, o_d, VECTOR)
        tl.store(p_history, round_to(b_a, history_ptr), mask=m)
    if DROPOUT:
        b_a = tl.where(_kept(rows_ptr, o_r, m_r, o_d, key, threshold), b_a * keep_scale, 0.0)
    tl.store(row_pointers(y_ptr, o_r, stride_y, o_d, VECTOR), round_to(b_a, y_ptr), mask=m)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def activate_backward_kernel(
    grad_h_ptr, partial_scale_ptr, partial_shift_ptr, grad_y_ptr, saved_ptr, scale_ptr, shift_ptr,
    slope_ptr, offset_ptr, rows_ptr,
    stride_grad_h: tl.int32, stride_grad_y: tl.int32, stride_saved: tl.int32, count: tl.int32,
    key: tl.int64, threshold: tl.int32, keep_scale: tl.float32,
    SAVED_IS_OUTPUT: tl.constexpr, RELU: tl.constexpr, DROPOUT: tl.constexpr, VECTOR: tl.constexpr,
    D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program p takes the tiles p, p + programs, ... and sums over their rows."""
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    if scale_ptr is not None:
        b_scale = _vector(scale_ptr, o_d, m_d)
    if shift_ptr is not None:
        b_shift = _vector(shift_ptr, o_d, m_d)
    if slope_ptr is not None:
        b_slope = _vector(slope_ptr, o_d, m_d)
        b_offset = _vector(offset_ptr, o_d, m_d)
    b_sum_scale = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    b_sum_shift = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for first in range(tl.program_id(0) * BLOCK_R, count, tl.num_programs(0) * BLOCK_R):
        o_r = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        m_r = o_r < count
        m = m_r[:, None] & m_d[None, :]
        b_dz = widen(tl.load(row_pointers(grad_y_ptr, o_r, stride_grad_y, o_d, VECTOR), mask=m, other=0.0))
        if saved_ptr is not None:
            p_saved = row_pointers(saved_ptr, o_r, stride_saved, o_d, VECTOR)
            b_saved = widen(tl.load(p_saved, mask=m, other=0.0))
        if DROPOUT:
            b_dz *= keep_scale
            # y > 0 exactly where an element was kept and positive: y alone is enough.
            if not (SAVED_IS_OUTPUT and RELU):
                b_dz = tl.where(_kept(rows_ptr, o_r, m_r, o_d, key, threshold), b_dz, 0.0)
        if RELU:
            b_z = b_saved
            if not SAVED_IS_OUTPUT:
                if scale_ptr is not None:
                    b_z *= b_scale
                if shift_ptr is not None:
                    b_z += b_shift
            b_dz = tl.where(b_z <= 0, 0.0, b_dz)
        if partial_scale_ptr is not None:
            b_sum_scale += tl.where(m, b_dz * b_saved, 0.0)
        if partial_shift_ptr is not None:
            b_sum_shift += tl.where(m, b_dz, 0.0)
        if grad_h_ptr is not None:
            b_dh = b_dz
            if scale_ptr is not None:
                b_dh = b_dz * b_scale
            if slope_ptr is not None:
                b_dh += b_saved * b_slope + b_offset
            p_grad_h = row_pointers(grad_h_ptr, o_r, stride_grad_h, o_d, VECTOR)
            tl.store(p_grad_h, round_to(b_dh, grad_h_ptr), mask=m)
    o_partial = tl.program_id(0) * D + o_d
    if partial_scale_ptr is not None:
        tl.store(partial_scale_ptr + o_partial, tl.sum(b_sum_scale, axis=0), mask=m_d)
    if partial_shift_ptr is not None:
        tl.store(partial_shift_ptr + o_partial, tl.sum(b_sum_shift, axis=0), mask=m_d)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def column_sum_kernel(
    sum_ptr, partial_ptr, partials: tl.int32, D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr
):
    """sum[d] = sum over p of partial[p, d], in a fixed order."""
    o_d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_sum = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for first in range(0, partials, BLOCK_R):
        o_p = first + tl.arange(0, BLOCK_R)
        m = (o_p < partials)[:, None] & m_d[None, :]
        b_sum += tl.load(row_pointers(partial_ptr, o_p, D, o_d, 4 if D % 4 == 0 else 1), mask=m, other=0.0)
    tl.store(sum_ptr + o_d, tl.sum(b_sum, axis=0), mask=m_d)


def activate(
    y: Tensor,
    h: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    rows: Tensor | None,
    history: Tensor | None,
    history_rows: Tensor | None,
    *,
    relu: bool,
    dropout: float,
    seed: int,
) -> None:
    """y = dropout(relu(h * scale + shift)) and, if given, history[history_rows] = the value before dropout."""
    count, width = h.shape
    if h.numel() == 0:
        return
    vector = row_vector(y, h, history)
    settings = activate_settings(width, vector)
    launch(
        activate_kernel,
        (triton.cdiv(count, settings.BLOCK_R), triton.cdiv(width, settings.BLOCK_D)),
        settings,
        y.device,
        y_ptr=y,
        h_ptr=h,
        scale_ptr=scale,
        shift_ptr=shift,
        rows_ptr=rows if dropout > 0 else None,
        history_ptr=history,
        history_rows_ptr=None if history is None else history_rows,
        stride_y=y.stride(0),
        stride_h=h.stride(0),
        stride_history=0 if history is None else history.stride(0),
        count=count,
        key=seed_key(seed),
        threshold=threshold(dropout),
        keep_scale=keep_scale(dropout),
        RELU=relu,
        DROPOUT=dropout > 0,
        VECTOR=vector,
        D=width,
    )


def activate_backward(
    grad_h: Tensor | None,
    grad_scale: Tensor | None,
    grad_shift: Tensor | None,
    grad_y: Tensor,
    saved: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    rows: Tensor | None,
    slope: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    saved_is_output: bool,
    relu: bool,
    dropout: float,
    seed: int,
) -> None:
    """Write the gradients that are not None.

    ``saved`` is y if ``saved_is_output`` (scale then has no gradient), else h; None if neither is needed. ``slope`` and
    ``offset`` add h * slope + offset to grad_h, the gradient through the moments of a BatchNorm.
    """
    count, width = grad_y.shape
    if grad_y.numel() == 0:
        for grad in (grad_scale, grad_shift):
            if grad is not None:
                grad.zero_()
        return
    vector = row_vector(grad_h, grad_y, saved)
    settings = activate_settings(width, vector, moments=slope is not None)
    programs = triton.cdiv(count, settings.BLOCK_R)
    if grad_scale is not None or grad_shift is not None:
        programs = min(programs, PARTIAL_PROGRAMS)
    partial_scale, partial_shift = (
        None if grad is None else torch.empty(programs, width, dtype=torch.float32, device=grad.device)
        for grad in (grad_scale, grad_shift)
    )
    launch(
        activate_backward_kernel,
        (programs, triton.cdiv(width, settings.BLOCK_D)),
        settings,
        grad_y.device,
        grad_h_ptr=grad_h,
        partial_scale_ptr=partial_scale,
        partial_shift_ptr=partial_shift,
        grad_y_ptr=grad_y,
        saved_ptr=saved,
        scale_ptr=scale,
        shift_ptr=shift,
        slope_ptr=slope,
        offset_ptr=offset,
        rows_ptr=rows if dropout > 0 and not (saved_is_output and relu) else None,
        stride_grad_h=0 if grad_h is None else grad_h.stride(0),
        stride_grad_y=grad_y.stride(0),
        stride_saved=0 if saved is None else saved.stride(0),
        count=count,
        key=seed_key(seed),
        threshold=threshold(dropout),
        keep_scale=keep_scale(dropout),
        SAVED_IS_OUTPUT=saved_is_output,
        RELU=relu,
        DROPOUT=dropout > 0,
        VECTOR=vector,
        D=width,
    )
    for grad, partial in ((grad_scale, partial_scale), (grad_shift, partial_shift)):
        if grad is not None:
            settings = column_sum_settings()
            grid = (triton.cdiv(width, settings.BLOCK_D),)
            launch(
                column_sum_kernel, grid, settings, grad.device,
                sum_ptr=grad, partial_ptr=partial, partials=programs, D=width,
            )  # fmt: skip


def column_moments(mean: Tensor, var: Tensor, h: Tensor) -> None:
    """mean and var = the mean and the biased variance of h's columns; torch's own reduction is fast on a GPU."""
    if h.shape[0] == 0:
        mean.zero_()
        var.zero_()
    else:
        for target, value in zip((var, mean), torch.var_mean(h.float(), 0, correction=0), strict=True):
            target.copy_(value)
