"""The gradients of attention, in two passes over the edges. With

    alpha(k, h) = exp(score(k, h) - largest[i, h]) norm[i, h]      s(k, h) = LeakyReLU's slope at score(k, h)
    da(k, h) = keep(e, h) <grad[i, h], src(c)[h]>

attention_row_grad walks a row's edges and writes sums[i] = sum_k alpha da | sum_k s alpha da | sum_k s alpha, [3 H], and
attention_source_grad walks the edges of the reverse graph, from row j to rows i in the batch, and writes
grad_x[j, h] = sum_k keep(e, h) alpha grad[i, h] and grad_score[j, h] = sum_k s alpha (da - delta[i, h]), reading row_score,
largest, norm and delta (the first of the sums) of row i as terms[i], [4 H]. Both read per edge a row and the indices, as
attention does, and treat hubs as spmm does, whose kernel adds up the segments.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._hash import keep_scale, seed_key, threshold
from .._hubs import HUB_DEGREE, HUB_SEGMENT
from .attention import POINTERS, RUNTIME, features, kept_heads, positions, segment, source_rows, source_scores, stride
from .edges import NOWHERE, columns
from .launch import Settings, attention_settings, hub_sum_settings, lanes, launch, row_alignment
from .spmm import rightmost, spmm_hub_sum_kernel
from .storage import round_to, widen


@triton.jit
def _alpha(b_score, b_pos, b_largest, b_norm, slope):
    """s and alpha of edges, [K, BLOCK_H]; alpha is 0 where there is no source."""
    b_slope = tl.where(b_score > 0, 1.0, slope)
    # The product is rounded as in forward: multiplied and subtracted in one, the largest would not cancel.
    b_score = tl.where(b_score > 0, b_score, b_score * slope)
    b_score = tl.where((b_pos != NOWHERE)[:, None], b_score - b_largest, -float("inf"))
    return b_slope, tl.exp(b_score) * b_norm


@triton.jit
def _row_grad(
    sums_ptr, at, begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
    history_score_ptr, norm_ptr, grad_ptr, stride_x, stride_x_score, stride_row_score, stride_history,
    stride_history_score, stride_grad, slope, scale, key, threshold,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr,
    C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """sums[at] over the edges begin..end of row i."""
    BLOCK_C: tl.constexpr = BLOCK_D // BLOCK_H
    MASK_D: tl.constexpr = (BLOCK_C != C) or (H % BLOCK_H != 0)
    HAS_X: tl.constexpr = x_ptr is not None
    HAS_HISTORY: tl.constexpr = history_ptr is not None
    o_h, m_h, o_d, m_d = features(C, H, BLOCK_D, BLOCK_H)
    b_own = widen(tl.load(row_score_ptr + i * stride_row_score + o_h, mask=m_h, other=0.0))
    b_largest = tl.load(norm_ptr + i * (2 * H) + o_h, mask=m_h, other=0.0)[None, :]
    b_norm = tl.load(norm_ptr + i * (2 * H) + H + o_h, mask=m_h, other=0.0)[None, :]
    p_grad = tl.multiple_of(grad_ptr + i * stride_grad, GRAD_ALIGN) + o_d
    b_grad = widen(tl.load(p_grad, mask=m_d, other=0.0))
    b_delta = tl.zeros([BLOCK_H], tl.float32)
    b_sloped = tl.zeros([BLOCK_H], tl.float32)
    b_slopes = tl.zeros([BLOCK_H], tl.float32)
    n = (end - begin).to(tl.int32)
    o_k = tl.arange(0, K)
    b_col, _ = columns(col_ptr, None, begin, o_k, n)
    b_col_1, _ = columns(col_ptr, None, begin, o_k + K, n)
    b_pos = positions(position_ptr, b_col, o_k < n, HAS_X, HAS_HISTORY)
    for k in range(0, n, K):
        b_pos_1 = positions(position_ptr, b_col_1, k + K + o_k < n, HAS_X, HAS_HISTORY)
        b_col_1, _ = columns(col_ptr, None, begin, k + 2 * K + o_k, n)
        b_row = source_rows(x_ptr, history_ptr, stride_x, stride_history, b_pos, o_d, m_d, MERGED, MASK_D, ALIGN)
        b_score = source_scores(
            x_score_ptr, history_score_ptr, stride_x_score, stride_history_score, b_pos, o_h, m_h
        ) + b_own[None, :]  # fmt: skip
        b_slope, b_alpha = _alpha(b_score, b_pos, b_largest, b_norm, slope)
        b_dot = tl.sum(tl.reshape(b_row * b_grad[None, :], [K, BLOCK_H, BLOCK_C]), axis=2) * scale
        if DROPOUT:
            b_dot = tl.where(kept_heads(edge_id_ptr, begin, k + o_k, n, o_h, key, threshold, H), b_dot, 0.0)
        b_delta += tl.sum(b_alpha * b_dot, axis=0)
        b_sloped += tl.sum(b_slope * b_alpha * b_dot, axis=0)
        b_slopes += tl.sum(b_slope * b_alpha, axis=0)
        b_pos = b_pos_1
    p_sums = sums_ptr + at * (3 * H) + o_h
    tl.store(p_sums, b_delta, mask=m_h)
    tl.store(p_sums + H, b_sloped, mask=m_h)
    tl.store(p_sums + 2 * H, b_slopes, mask=m_h)


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_row_grad_kernel(
    sums_ptr, rowptr_ptr, col_ptr, edge_id_ptr, rows_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
    history_score_ptr, norm_ptr, grad_ptr, hub_node_ptr, hub_row_ptr,
    stride_x: tl.int32, stride_x_score: tl.int32, stride_row_score: tl.int32, stride_history: tl.int32,
    stride_history_score: tl.int32, stride_grad: tl.int32, slope: tl.float32, scale: tl.float32, key: tl.int64,
    threshold: tl.int32, hub_count: tl.int32, hub_degree: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr,
    C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One program per (row, block of heads)."""
    i = tl.program_id(0).to(tl.int64)
    g = tl.load(rows_ptr + i)
    begin = tl.load(rowptr_ptr + g)
    end = tl.load(rowptr_ptr + g + 1)
    if hub_node_ptr is not None:
        if end - begin > hub_degree:
            tl.store(hub_row_ptr + rightmost(hub_node_ptr, hub_count, g), i.to(tl.int32))
            return
    _row_grad(
        sums_ptr, i, begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
        history_score_ptr, norm_ptr, grad_ptr, stride_x, stride_x_score, stride_row_score, stride_history,
        stride_history_score, stride_grad, slope, scale, key, threshold,
        DROPOUT, MERGED, ALIGN, GRAD_ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_row_grad_hub_segment_kernel(
    partial_ptr, rowptr_ptr, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
    history_score_ptr, norm_ptr, grad_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr,
    stride_x: tl.int32, stride_x_score: tl.int32, stride_row_score: tl.int32, stride_history: tl.int32,
    stride_history_score: tl.int32, stride_grad: tl.int32, slope: tl.float32, scale: tl.float32, key: tl.int64,
    threshold: tl.int32, hub_count: tl.int32, hub_segment: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr,
    C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """partial[s] = the sums over segment s of a hub, for the hubs among the rows of this launch."""
    s, i, begin, end = segment(rowptr_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr, hub_count, hub_segment)
    if i < 0:
        return
    _row_grad(
        partial_ptr, s, begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
        history_score_ptr, norm_ptr, grad_ptr, stride_x, stride_x_score, stride_row_score, stride_history,
        stride_history_score, stride_grad, slope, scale, key, threshold,
        DROPOUT, MERGED, ALIGN, GRAD_ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip


@triton.jit
def _source_grad(
    grad_x_ptr, grad_score_ptr, at, begin, end, j, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, terms_ptr,
    grad_ptr, stride_grad_x, stride_grad_score, stride_x, stride_x_score, stride_grad, slope, scale, key, threshold,
    DROPOUT: tl.constexpr, ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr,
    C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """grad_x[at] and grad_score[at] over the reversed edges begin..end of row j."""
    BLOCK_C: tl.constexpr = BLOCK_D // BLOCK_H
    MASK_D: tl.constexpr = (BLOCK_C != C) or (H % BLOCK_H != 0)
    o_h, m_h, o_d, m_d = features(C, H, BLOCK_D, BLOCK_H)
    b_own = widen(tl.load(x_score_ptr + j * stride_x_score + o_h, mask=m_h, other=0.0))
    b_x = widen(tl.load(tl.multiple_of(x_ptr + j * stride_x, ALIGN) + o_d, mask=m_d, other=0.0))
    b_acc = tl.zeros([BLOCK_H, BLOCK_C], tl.float32)
    b_sum = tl.zeros([BLOCK_H], tl.float32)
    n = (end - begin).to(tl.int32)
    o_k = tl.arange(0, K)
    b_col, _ = columns(col_ptr, None, begin, o_k, n)
    b_col_1, _ = columns(col_ptr, None, begin, o_k + K, n)
    b_pos = positions(position_ptr, b_col, o_k < n, True, False)
    for k in range(0, n, K):
        b_pos_1 = positions(position_ptr, b_col_1, k + K + o_k < n, True, False)
        b_col_1, _ = columns(col_ptr, None, begin, k + 2 * K + o_k, n)
        b_row = source_rows(grad_ptr, None, stride_grad, 0, b_pos, o_d, m_d, False, MASK_D, GRAD_ALIGN)
        p_terms = terms_ptr + (b_pos.to(tl.int64) * (4 * H))[:, None] + o_h[None, :]
        m_terms = (b_pos >= 0)[:, None] & m_h[None, :]
        b_score = tl.load(p_terms, mask=m_terms, other=0.0) + b_own[None, :]
        b_largest = tl.load(p_terms + H, mask=m_terms, other=0.0)
        b_norm = tl.load(p_terms + 2 * H, mask=m_terms, other=0.0)
        b_delta = tl.load(p_terms + 3 * H, mask=m_terms, other=0.0)
        b_slope, b_alpha = _alpha(b_score, b_pos, b_largest, b_norm, slope)
        b_dot = tl.sum(tl.reshape(b_row * b_x[None, :], [K, BLOCK_H, BLOCK_C]), axis=2) * scale
        b_weight = b_alpha * scale
        if DROPOUT:
            m_kept = kept_heads(edge_id_ptr, begin, k + o_k, n, o_h, key, threshold, H)
            b_dot = tl.where(m_kept, b_dot, 0.0)
            b_weight = tl.where(m_kept, b_weight, 0.0)
        b_sum += tl.sum(b_slope * b_alpha * (b_dot - b_delta), axis=0)
        b_acc += tl.sum(tl.reshape(b_row, [K, BLOCK_H, BLOCK_C]) * b_weight[:, :, None], axis=0)
        b_pos = b_pos_1
    p_x = tl.multiple_of(grad_x_ptr + at * stride_grad_x, OUT_ALIGN) + o_d
    tl.store(p_x, round_to(tl.reshape(b_acc, [BLOCK_D]), grad_x_ptr), mask=m_d)
    tl.store(grad_score_ptr + at * stride_grad_score + o_h, round_to(b_sum, grad_score_ptr), mask=m_h)


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_source_grad_kernel(
    grad_x_ptr, grad_score_ptr, rowptr_ptr, col_ptr, edge_id_ptr, rows_ptr, position_ptr, x_ptr, x_score_ptr, terms_ptr,
    grad_ptr, hub_node_ptr, hub_row_ptr,
    stride_grad_x: tl.int32, stride_grad_score: tl.int32, stride_x: tl.int32, stride_x_score: tl.int32,
    stride_grad: tl.int32, slope: tl.float32, scale: tl.float32, key: tl.int64, threshold: tl.int32,
    hub_count: tl.int32, hub_degree: tl.int32,
    DROPOUT: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One program per (row, block of heads)."""
    j = tl.program_id(0).to(tl.int64)
    g = tl.load(rows_ptr + j)
    begin = tl.load(rowptr_ptr + g)
    end = tl.load(rowptr_ptr + g + 1)
    if hub_node_ptr is not None:
        if end - begin > hub_degree:
            tl.store(hub_row_ptr + rightmost(hub_node_ptr, hub_count, g), j.to(tl.int32))
            return
    _source_grad(
        grad_x_ptr, grad_score_ptr, j, begin, end, j, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, terms_ptr,
        grad_ptr, stride_grad_x, stride_grad_score, stride_x, stride_x_score, stride_grad, slope, scale, key, threshold,
        DROPOUT, ALIGN, ALIGN, GRAD_ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_source_grad_hub_segment_kernel(
    partial_ptr, partial_score_ptr, rowptr_ptr, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, terms_ptr,
    grad_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr,
    stride_x: tl.int32, stride_x_score: tl.int32, stride_grad: tl.int32, slope: tl.float32, scale: tl.float32,
    key: tl.int64, threshold: tl.int32, hub_count: tl.int32, hub_segment: tl.int32,
    DROPOUT: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """partial[s] and partial_score[s] = the sums over segment s of a hub, for the hubs among the rows of this launch."""
    s, j, begin, end = segment(rowptr_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr, hub_count, hub_segment)
    if j < 0:
        return
    _source_grad(
        partial_ptr, partial_score_ptr, s, begin, end, j, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, terms_ptr,
        grad_ptr, H * C, H, stride_x, stride_x_score, stride_grad, slope, scale, key, threshold,
        DROPOUT, ALIGN, 16 if H * C % 4 == 0 else 4, GRAD_ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip


def _walk(
    kernel: object, segment_kernel: object, results: dict[str, Tensor], heads: int, settings: Settings,
    walk: dict, finish: dict, rows: Tensor, hub_node: Tensor | None, hub_first: Tensor | None, hub_segments: int,
    hub_degree: int, hub_segment: int,
) -> None:  # fmt: skip
    """Launch over rows, then over the segments of hubs, whose sums (float32, named ``partial…``) are added up at last.

    ``results`` maps the names of the segments' sums to the matrices [R, ...] that they are parts of.
    """
    device = rows.device
    blocks = triton.cdiv(heads, settings.BLOCK_H)
    hubs = hub_node is not None and hub_first is not None and hub_segments > 0
    hub_count = hub_node.numel() if hubs else 0  # type: ignore[union-attr]
    hub_row = torch.full((hub_count,), -1, dtype=torch.int32, device=device) if hubs else None
    walk |= dict(hub_node_ptr=hub_node if hubs else None, hub_row_ptr=hub_row, hub_count=hub_count)
    launch(kernel, (rows.numel(), blocks), settings, device, **walk, **finish, rows_ptr=rows, hub_degree=hub_degree)
    if not hubs:
        return
    parts = {n: torch.empty(hub_segments, r.shape[1], dtype=torch.float32, device=device) for n, r in results.items()}
    grid = (hub_segments, blocks)
    launch(segment_kernel, grid, settings, device, **walk, **parts, hub_first_ptr=hub_first, hub_segment=hub_segment)
    for name, result in results.items():
        settings = hub_sum_settings(result.shape[1])
        launch(
            spmm_hub_sum_kernel, (hub_count, triton.cdiv(result.shape[1], settings.BLOCK_D)), settings, device,
            out_ptr=result, partial_ptr=parts[name], row_scale_ptr=None, residual_ptr=None, hub_node_ptr=hub_node,
            hub_first_ptr=hub_first, hub_row_ptr=hub_row, stride_out=result.stride(0), stride_residual=0, scale=1.0,
            alpha=0.0, OUT_ALIGN=row_alignment(result), D=result.shape[1],
        )  # fmt: skip


def attention_row_grad(
    sums: Tensor,
    rowptr: Tensor,
    col: Tensor,
    edge_id: Tensor | None,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    x_score: Tensor | None,
    row_score: Tensor,
    history: Tensor | None,
    history_score: Tensor | None,
    norm: Tensor,
    grad: Tensor,
    *,
    negative_slope: float,
    dropout: float,
    seed: int,
    hub_node: Tensor | None = None,
    hub_first: Tensor | None = None,
    hub_segments: int = 0,
    hub_degree: int = HUB_DEGREE,
    hub_segment: int = HUB_SEGMENT,
) -> None:
    """Writes the sums of ``rows`` (see above). ``sums`` and ``norm`` are contiguous float32 [R, 3 H] and [R, 2 H]."""
    width, heads = grad.shape[1], norm.shape[1] // 2
    if grad.numel() == 0:
        sums.zero_()
        return
    given, align = [matrix.dtype for matrix in (x, history) if matrix is not None], row_alignment(x, history)
    settings = attention_settings(heads, width // heads, align, *given, lanes=lanes())
    walk = dict(
        rowptr_ptr=rowptr, col_ptr=col, edge_id_ptr=edge_id, position_ptr=position, x_ptr=x, x_score_ptr=x_score,
        row_score_ptr=row_score, history_ptr=history, history_score_ptr=history_score, norm_ptr=norm, grad_ptr=grad,
        stride_x=stride(x), stride_x_score=stride(x_score), stride_row_score=stride(row_score),
        stride_history=stride(history), stride_history_score=stride(history_score), stride_grad=stride(grad),
        slope=negative_slope, scale=keep_scale(dropout), key=seed_key(seed), threshold=threshold(dropout),
        DROPOUT=dropout > 0, MERGED=len(given) == 2 and given[0] == given[1], ALIGN=align,
        GRAD_ALIGN=row_alignment(grad), H=heads, C=width // heads,
    )  # fmt: skip
    _walk(
        attention_row_grad_kernel, attention_row_grad_hub_segment_kernel, {"partial_ptr": sums}, heads, settings, walk,
        {"sums_ptr": sums}, rows, hub_node, hub_first, hub_segments, hub_degree, hub_segment,
    )  # fmt: skip


def attention_source_grad(
    grad_x: Tensor,
    grad_score: Tensor,
    rowptr: Tensor,
    col: Tensor,
    edge_id: Tensor | None,
    rows: Tensor,
    position: Tensor,
    x: Tensor,
    x_score: Tensor,
    terms: Tensor,
    grad: Tensor,
    *,
    negative_slope: float,
    dropout: float,
    seed: int,
    hub_node: Tensor | None = None,
    hub_first: Tensor | None = None,
    hub_segments: int = 0,
    hub_degree: int = HUB_DEGREE,
    hub_segment: int = HUB_SEGMENT,
) -> None:
    """Writes the gradients of x and of its scores, by the reverse graph. ``terms`` is contiguous float32 [R, 4 H]."""
    width, heads = grad.shape[1], grad_score.shape[1]
    if grad.numel() == 0:
        grad_score.zero_()
        return
    settings = attention_settings(heads, width // heads, row_alignment(grad), grad.dtype, lanes=lanes())
    walk = dict(
        rowptr_ptr=rowptr, col_ptr=col, edge_id_ptr=edge_id, position_ptr=position, x_ptr=x, x_score_ptr=x_score,
        terms_ptr=terms, grad_ptr=grad, stride_x=stride(x), stride_x_score=stride(x_score), stride_grad=stride(grad),
        slope=negative_slope, scale=keep_scale(dropout), key=seed_key(seed), threshold=threshold(dropout),
        DROPOUT=dropout > 0, ALIGN=row_alignment(x, grad_x), GRAD_ALIGN=row_alignment(grad), H=heads, C=width // heads,
    )  # fmt: skip
    finish = dict(
        grad_x_ptr=grad_x, grad_score_ptr=grad_score, stride_grad_x=stride(grad_x), stride_grad_score=stride(grad_score)
    )
    _walk(
        attention_source_grad_kernel, attention_source_grad_hub_segment_kernel,
        {"partial_ptr": grad_x, "partial_score_ptr": grad_score}, heads, settings, walk, finish, rows,
        hub_node, hub_first, hub_segments, hub_degree, hub_segment,
    )  # fmt: skip
