"""out[i, h] = sum_k keep(e, h) alpha(k, h) src(c)[h], alpha = softmax_k leaky_relu(row_score[i, h] + src_score(c)[h]).

Indices and sources are those of spmm, src_score is x_score or history_score where src is x or history. Per edge it reads
the row's D elements, a score per head, 4 or 8 bytes of col and 4 of position; per row it writes the output and norm[i],
by which backward knows alpha again: the largest score of each head, and 1 / sum_k exp(score - largest), [2 H].

One program computes one row of a block of heads, K edges at a time, in a fixed order and in one pass: what is summed up so
far is scaled down when a larger score comes. While the rows of tile t are on their way, so are the positions of tile t+1
and the columns of tile t+2. Rows with more than hub_degree edges are left to two more kernels: one program per segment of a
hub, then one per hub that joins its segments. No atomics, no host sync.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._hash import keep_scale, seed_key, threshold
from .._hubs import HUB_DEGREE, HUB_SEGMENT
from .edges import NOWHERE, addresses, columns, load_rows
from .hashing import edge_kept
from .launch import attention_settings, lanes, launch, row_alignment
from .spmm import rightmost
from .storage import round_to, widen


@triton.jit
def features(C: tl.constexpr, H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr):
    """Heads [BLOCK_H] and features [BLOCK_D] of this program, and which of them there are."""
    BLOCK_C: tl.constexpr = BLOCK_D // BLOCK_H
    first = tl.program_id(1) * BLOCK_H
    o = tl.arange(0, BLOCK_D)
    o_h = first + tl.arange(0, BLOCK_H)
    m_d = (first + o // BLOCK_C < H) & (o % BLOCK_C < C)
    if BLOCK_C == C:
        o_d = first * C + o  # side by side, which the compiler is to see
    else:
        o_d = (first + o // BLOCK_C) * C + o % BLOCK_C
    return o_h, o_h < H, o_d, m_d


@triton.jit
def positions(position_ptr, b_col, m_e, HAS_X: tl.constexpr, HAS_HISTORY: tl.constexpr):
    """Where the sources of edges are; NOWHERE past the row's end, and where the source is absent."""
    b_pos = tl.load(position_ptr + b_col, mask=m_e, other=NOWHERE)
    if not HAS_X:
        b_pos = tl.where(b_pos >= 0, NOWHERE, b_pos)
    if not HAS_HISTORY:
        b_pos = tl.where(b_pos < 0, NOWHERE, b_pos)
    return b_pos


@triton.jit
def source_rows(
    x_ptr, history_ptr, stride_x, stride_history, b_pos, o_d, m_d, MERGED: tl.constexpr, MASK_D: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """The rows at b_pos, float32 [K, BLOCK_D]; zeros where there is none."""
    b_x, b_history = addresses(x_ptr, history_ptr, stride_x, stride_history, b_pos, MERGED)
    if MERGED or history_ptr is None:
        b_row = load_rows(x_ptr, b_x, o_d, b_x != 0, m_d, True, MASK_D, ALIGN)
    else:
        b_row = load_rows(history_ptr, b_history, o_d, b_history != 0, m_d, True, MASK_D, ALIGN)
        if x_ptr is not None:
            b_row += load_rows(x_ptr, b_x, o_d, b_x != 0, m_d, True, MASK_D, ALIGN)
    return b_row


@triton.jit
def source_scores(x_score_ptr, history_score_ptr, stride_x_score, stride_history_score, b_pos, o_h, m_h):
    """What the rows at b_pos give to the score, float32 [K, BLOCK_H]."""
    b_score = tl.zeros([b_pos.shape[0], o_h.shape[0]], tl.float32)
    if x_score_ptr is not None:
        p_score = x_score_ptr + (b_pos.to(tl.int64) * stride_x_score)[:, None] + o_h[None, :]
        b_score += widen(tl.load(p_score, mask=(b_pos >= 0)[:, None] & m_h[None, :], other=0.0))
    if history_score_ptr is not None:
        m_k = (b_pos < 0) & (b_pos != NOWHERE)
        p_score = history_score_ptr + ((~b_pos).to(tl.int64) * stride_history_score)[:, None] + o_h[None, :]
        b_score += widen(tl.load(p_score, mask=m_k[:, None] & m_h[None, :], other=0.0))
    return b_score


@triton.jit
def kept_heads(edge_id_ptr, begin, o_e, n, o_h, key, threshold, H: tl.constexpr):
    """Whether dropout lets the heads o_h of the edges o_e of the n that start at begin pass."""
    b_edge = begin + o_e
    if edge_id_ptr is not None:
        p_edge = edge_id_ptr + begin + o_e
        b_edge = tl.load(p_edge, mask=o_e < n, other=0, eviction_policy="evict_first").to(tl.int64)
    return edge_kept(key, b_edge[:, None] * H + o_h[None, :], threshold)


@triton.jit
def _rebase(b_score, b_largest):
    """The largest score with these [K, BLOCK_H], what sums so far are to be multiplied by, and exp(score - largest)."""
    b_new = tl.maximum(b_largest, tl.max(b_score, axis=0))
    b_base = tl.where(b_new == -float("inf"), 0.0, b_new)  # nothing so far
    return b_new, tl.exp(b_largest - b_base), tl.exp(b_score - b_base[None, :])


@triton.jit
def _attend(
    begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr, history_score_ptr,
    stride_x, stride_x_score, stride_row_score, stride_history, stride_history_score, slope, key, threshold,
    o_h, m_h, o_d, m_d,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """For the edges begin..end: the largest score, the sums of exp(score - largest), and of that times the row."""
    BLOCK_C: tl.constexpr = BLOCK_D // BLOCK_H
    MASK_D: tl.constexpr = (BLOCK_C != C) or (H % BLOCK_H != 0)
    HAS_X: tl.constexpr = x_ptr is not None
    HAS_HISTORY: tl.constexpr = history_ptr is not None
    b_own = widen(tl.load(row_score_ptr + i * stride_row_score + o_h, mask=m_h, other=0.0))
    b_acc = tl.zeros([BLOCK_H, BLOCK_C], tl.float32)
    b_sum = tl.zeros([BLOCK_H], tl.float32)
    b_largest = tl.full([BLOCK_H], -float("inf"), tl.float32)
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
        b_score = tl.where(b_score > 0, b_score, b_score * slope)
        b_score = tl.where((b_pos != NOWHERE)[:, None], b_score, -float("inf"))
        b_largest, b_down, b_weight = _rebase(b_score, b_largest)
        b_sum = b_sum * b_down + tl.sum(b_weight, axis=0)
        if DROPOUT:
            b_weight = tl.where(kept_heads(edge_id_ptr, begin, k + o_k, n, o_h, key, threshold, H), b_weight, 0.0)
        b_message = tl.reshape(b_row, [K, BLOCK_H, BLOCK_C]) * b_weight[:, :, None]
        b_acc = b_acc * b_down[:, None] + tl.sum(b_message, axis=0)
        b_pos = b_pos_1
    return b_largest, b_sum, b_acc


@triton.jit
def _store(
    out_ptr, norm_ptr, i, stride_out, scale, b_largest, b_sum, b_acc, o_h, m_h, o_d, m_d,
    H: tl.constexpr, BLOCK_D: tl.constexpr, OUT_ALIGN: tl.constexpr,
):  # fmt: skip
    """Row i of out and of norm; zeros for a row without edges."""
    b_factor = tl.where(b_sum == 0, 0.0, 1 / tl.where(b_sum == 0, 1.0, b_sum))
    b_out = tl.reshape(b_acc * (b_factor * scale)[:, None], [BLOCK_D])
    tl.store(tl.multiple_of(out_ptr + i * stride_out, OUT_ALIGN) + o_d, round_to(b_out, out_ptr), mask=m_d)
    tl.store(norm_ptr + i * (2 * H) + o_h, tl.where(b_sum == 0, 0.0, b_largest), mask=m_h)
    tl.store(norm_ptr + i * (2 * H) + H + o_h, b_factor, mask=m_h)


RUNTIME = [
    "stride_out", "stride_x", "stride_x_score", "stride_row_score", "stride_history", "stride_history_score", "stride_grad",
    "stride_grad_x", "stride_grad_score", "scale", "slope", "key", "threshold", "hub_count", "hub_degree", "hub_segment",
]  # fmt: skip
POINTERS = [
    "out_ptr", "norm_ptr", "rowptr_ptr", "col_ptr", "edge_id_ptr", "rows_ptr", "position_ptr", "x_ptr", "x_score_ptr",
    "row_score_ptr", "history_ptr", "history_score_ptr", "hub_node_ptr", "hub_first_ptr", "hub_row_ptr", "partial_ptr",
    "partial_score_ptr", "grad_ptr", "sums_ptr", "terms_ptr", "grad_x_ptr", "grad_score_ptr",
]  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_kernel(
    out_ptr, norm_ptr, rowptr_ptr, col_ptr, edge_id_ptr, rows_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr,
    history_ptr, history_score_ptr, hub_node_ptr, hub_row_ptr,
    stride_out: tl.int32, stride_x: tl.int32, stride_x_score: tl.int32, stride_row_score: tl.int32,
    stride_history: tl.int32, stride_history_score: tl.int32, scale: tl.float32, slope: tl.float32,
    key: tl.int64, threshold: tl.int32, hub_count: tl.int32, hub_degree: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, H: tl.constexpr,
    C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One program per (row, block of heads); a hub's program only notes where the hub's output goes."""
    i = tl.program_id(0).to(tl.int64)
    g = tl.load(rows_ptr + i)
    begin = tl.load(rowptr_ptr + g)
    end = tl.load(rowptr_ptr + g + 1)
    if hub_node_ptr is not None:
        if end - begin > hub_degree:
            # All blocks of heads store the same number.
            tl.store(hub_row_ptr + rightmost(hub_node_ptr, hub_count, g), i.to(tl.int32))
            return
    o_h, m_h, o_d, m_d = features(C, H, BLOCK_D, BLOCK_H)
    b_largest, b_sum, b_acc = _attend(
        begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
        history_score_ptr, stride_x, stride_x_score, stride_row_score, stride_history, stride_history_score, slope, key,
        threshold, o_h, m_h, o_d, m_d, DROPOUT, MERGED, ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip
    _store(out_ptr, norm_ptr, i, stride_out, scale, b_largest, b_sum, b_acc, o_h, m_h, o_d, m_d, H, BLOCK_D, OUT_ALIGN)


@triton.jit
def segment(rowptr_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr, hub_count, hub_segment):
    """This program's segment of a hub: the hub's row of the launch or -1, and its first and last edge."""
    s = tl.program_id(0).to(tl.int64)
    h = rightmost(hub_first_ptr, hub_count, s)
    g = tl.load(hub_node_ptr + h)
    begin = tl.load(rowptr_ptr + g) + (s - tl.load(hub_first_ptr + h)) * hub_segment
    end = tl.minimum(begin + hub_segment, tl.load(rowptr_ptr + g + 1))
    return s, tl.load(hub_row_ptr + h).to(tl.int64), begin, end


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_hub_segment_kernel(
    partial_ptr, partial_score_ptr, rowptr_ptr, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr,
    history_ptr, history_score_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr,
    stride_x: tl.int32, stride_x_score: tl.int32, stride_row_score: tl.int32, stride_history: tl.int32,
    stride_history_score: tl.int32, slope: tl.float32, key: tl.int64, threshold: tl.int32, hub_count: tl.int32,
    hub_segment: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """partial[s] and partial_score[s] = what ``_attend`` finds for segment s, of the hubs among the rows of this launch."""
    s, i, begin, end = segment(rowptr_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr, hub_count, hub_segment)
    if i < 0:
        return
    o_h, m_h, o_d, m_d = features(C, H, BLOCK_D, BLOCK_H)
    b_largest, b_sum, b_acc = _attend(
        begin, end, i, col_ptr, edge_id_ptr, position_ptr, x_ptr, x_score_ptr, row_score_ptr, history_ptr,
        history_score_ptr, stride_x, stride_x_score, stride_row_score, stride_history, stride_history_score, slope, key,
        threshold, o_h, m_h, o_d, m_d, DROPOUT, MERGED, ALIGN, H, C, BLOCK_D, BLOCK_H, K,
    )  # fmt: skip
    tl.store(partial_ptr + s * (H * C) + o_d, tl.reshape(b_acc, [BLOCK_D]), mask=m_d)
    tl.store(partial_score_ptr + s * (2 * H) + o_h, b_largest, mask=m_h)
    tl.store(partial_score_ptr + s * (2 * H) + H + o_h, b_sum, mask=m_h)


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def attention_hub_join_kernel(
    out_ptr, norm_ptr, partial_ptr, partial_score_ptr, hub_first_ptr, hub_row_ptr, stride_out: tl.int32, scale: tl.float32,
    OUT_ALIGN: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """out[i] and norm[i] of each hub from its segments, K of them at a time."""
    BLOCK_C: tl.constexpr = BLOCK_D // BLOCK_H
    h = tl.program_id(0)
    i = tl.load(hub_row_ptr + h).to(tl.int64)
    if i < 0:
        return
    o_h, m_h, o_d, m_d = features(C, H, BLOCK_D, BLOCK_H)
    b_acc = tl.zeros([BLOCK_H, BLOCK_C], tl.float32)
    b_sum = tl.zeros([BLOCK_H], tl.float32)
    b_largest = tl.full([BLOCK_H], -float("inf"), tl.float32)
    last = tl.load(hub_first_ptr + h + 1)
    for s in range(tl.load(hub_first_ptr + h), last, K):
        o_s = s + tl.arange(0, K)
        m_s = (o_s < last)[:, None]
        p_score = partial_score_ptr + (o_s * (2 * H))[:, None] + o_h[None, :]
        b_score = tl.load(p_score, mask=m_s & m_h[None, :], other=-float("inf"))
        b_part = tl.load(p_score + H, mask=m_s & m_h[None, :], other=0.0)
        b_row = tl.load(partial_ptr + (o_s * (H * C))[:, None] + o_d[None, :], mask=m_s & m_d[None, :], other=0.0)
        b_largest, b_down, b_weight = _rebase(b_score, b_largest)
        b_sum = b_sum * b_down + tl.sum(b_part * b_weight, axis=0)
        b_message = tl.reshape(b_row, [K, BLOCK_H, BLOCK_C]) * b_weight[:, :, None]
        b_acc = b_acc * b_down[:, None] + tl.sum(b_message, axis=0)
    _store(out_ptr, norm_ptr, i, stride_out, scale, b_largest, b_sum, b_acc, o_h, m_h, o_d, m_d, H, BLOCK_D, OUT_ALIGN)


def stride(matrix: Tensor | None) -> int:
    return 0 if matrix is None else matrix.stride(0)


def attention(
    out: Tensor,
    norm: Tensor,
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
    """Writes ``out`` and ``norm``, contiguous float32 [R, 2 H], of ``rows``. Hubs are given as to spmm."""
    width, heads = out.shape[1], norm.shape[1] // 2
    if out.numel() == 0:
        norm.zero_()
        return
    given = [matrix.dtype for matrix in (x, history) if matrix is not None]
    align = row_alignment(x, history)
    settings = attention_settings(heads, width // heads, align, *given, lanes=lanes())
    blocks = triton.cdiv(heads, settings.BLOCK_H)
    hubs = hub_node is not None and hub_segments > 0
    hub_count = hub_node.numel() if hubs else 0
    hub_row = torch.full((hub_count,), -1, dtype=torch.int32, device=out.device) if hubs else None
    walk = dict(
        rowptr_ptr=rowptr, col_ptr=col, edge_id_ptr=edge_id, position_ptr=position, x_ptr=x, x_score_ptr=x_score,
        row_score_ptr=row_score, history_ptr=history, history_score_ptr=history_score,
        hub_node_ptr=hub_node if hubs else None, hub_row_ptr=hub_row, stride_x=stride(x), stride_x_score=stride(x_score),
        stride_row_score=stride(row_score), stride_history=stride(history), stride_history_score=stride(history_score),
        slope=negative_slope, key=seed_key(seed), threshold=threshold(dropout), hub_count=hub_count, DROPOUT=dropout > 0,
        MERGED=len(given) == 2 and given[0] == given[1], ALIGN=align, H=heads, C=width // heads,
    )  # fmt: skip
    finish = dict(
        out_ptr=out, norm_ptr=norm, stride_out=out.stride(0), scale=keep_scale(dropout), OUT_ALIGN=row_alignment(out)
    )
    launch(
        attention_kernel,
        (rows.numel(), blocks),
        settings,
        out.device,
        **walk,
        **finish,
        rows_ptr=rows,
        hub_degree=hub_degree,
    )
    if hubs:
        partial = torch.empty(hub_segments, width, dtype=torch.float32, device=out.device)
        partial_score = torch.empty(hub_segments, 2 * heads, dtype=torch.float32, device=out.device)
        parts = dict(partial_ptr=partial, partial_score_ptr=partial_score, hub_first_ptr=hub_first)
        grid = (hub_segments, blocks)
        launch(attention_hub_segment_kernel, grid, settings, out.device, **walk, **parts, hub_segment=hub_segment)
        settings = attention_settings(heads, width // heads, row_alignment(partial), torch.float32)
        grid = (hub_count, triton.cdiv(heads, settings.BLOCK_H))
        parts.update(finish, hub_row_ptr=hub_row, H=heads, C=width // heads)
        launch(attention_hub_join_kernel, grid, settings, out.device, **parts)
