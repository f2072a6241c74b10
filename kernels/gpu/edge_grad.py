"""grad_edge_weight[e] = scale * row_scale[g] * col_scale[c] * keep(e) * <grad_out[i], src(c)>, g = rows[i].

Only the entries of the edges of ``rows`` are written. Per edge it reads what spmm reads and writes 4 bytes. grad_out[i]
stays in registers if it fits one block of features. The blocks of a row's edges are distributed over EDGE_GRAD_SPLIT
programs, so that several warps share a long row. Every edge is written by one program, so nothing has to be added up.
"""

import triton
import triton.language as tl
from torch import Tensor

from .._hash import keep_scale, seed_key, threshold
from .edges import addresses, columns, has_row, neighbours, sources, turn
from .launch import EDGE_GRAD_SPLIT, edge_grad_settings, lanes, launch, row_alignment

_RUNTIME = ["stride_x", "stride_history", "stride_grad_out", "scale", "key", "threshold"]
_POINTERS = [
    "grad_ptr", "rowptr_ptr", "col_ptr", "edge_id_ptr", "rows_ptr", "position_ptr", "x_ptr", "history_ptr",
    "row_scale_ptr", "col_scale_ptr", "grad_out_ptr",
]  # fmt: skip


@triton.jit
def _load_grad(p_grad, o_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Features o_d of this row's grad_out, float32 [1, BLOCK_D]."""
    if D % BLOCK_D != 0:
        return tl.load(p_grad + o_d[None, :], mask=(o_d < D)[None, :], other=0.0).to(tl.float32)
    return tl.load(p_grad + o_d[None, :]).to(tl.float32)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def edge_grad_kernel(
    grad_ptr, rowptr_ptr, col_ptr, edge_id_ptr, rows_ptr, position_ptr, x_ptr, history_ptr,
    row_scale_ptr, col_scale_ptr, grad_out_ptr,
    stride_x: tl.int32, stride_history: tl.int32, stride_grad_out: tl.int32,
    scale: tl.float32, key: tl.int64, threshold: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, GRAD_ALIGN: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EDGES: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One program per (row, residue of the edge block's number modulo SPLIT)."""
    SPARSE: tl.constexpr = DROPOUT or not MERGED
    STEP: tl.constexpr = EDGES * SPLIT
    i = tl.program_id(0).to(tl.int64)
    g = tl.load(rows_ptr + i)
    begin = tl.load(rowptr_ptr + g) + tl.program_id(1) * EDGES
    end = tl.load(rowptr_ptr + g + 1)
    if begin >= end:
        return
    factor = scale + 0.0
    if row_scale_ptr is not None:
        factor = tl.load(row_scale_ptr + g) * scale
    p_grad = tl.multiple_of(grad_out_ptr + i * stride_grad_out, GRAD_ALIGN)
    o_d = tl.arange(0, BLOCK_D)
    b_grad = _load_grad(p_grad, o_d, D, BLOCK_D)
    # 32 bits from here on: a row has fewer edges than that, and only the addresses need more.
    n = (end - begin).to(tl.int32)
    o_k = tl.arange(0, K)
    o_e = tl.arange(0, EDGES)

    b_col, b_edge = columns(col_ptr, edge_id_ptr, begin, o_e, n)
    b_col_1, b_edge_1 = columns(col_ptr, edge_id_ptr, begin, o_e + STEP, n)
    b_pos, b_weight = sources(position_ptr, col_scale_ptr, None, b_col, b_edge, o_e < n, key, threshold, DROPOUT)
    for k in range(0, n, STEP):
        b_pos_1, b_weight_1 = sources(
            position_ptr, col_scale_ptr, None, b_col_1, b_edge_1, k + STEP + o_e < n, key, threshold, DROPOUT
        )
        b_col_2, b_edge_2 = columns(col_ptr, edge_id_ptr, begin, k + 2 * STEP + o_e, n)
        b_x, b_history = addresses(x_ptr, history_ptr, stride_x, stride_history, b_pos, MERGED)
        if SPARSE:
            b_edge = tl.where(has_row(b_x, b_history), b_edge, -1)
        m = tl.minimum(n - k, EDGES)
        for j in range(0, m, K):
            b_row = neighbours(
                x_ptr, history_ptr, b_x, b_history, m - j, o_d, o_d < D,
                K, True, MERGED, SPARSE, D % BLOCK_D != 0, ALIGN,
            )  # fmt: skip
            b_dot = tl.sum(b_row * b_grad, axis=1)
            if D > BLOCK_D:
                for d in range(BLOCK_D, D, BLOCK_D):
                    o_f = d + o_d
                    b_row = neighbours(
                        x_ptr, history_ptr, b_x, b_history, m - j, o_f, o_f < D,
                        K, True, MERGED, SPARSE, D % BLOCK_D != 0, ALIGN,
                    )  # fmt: skip
                    b_dot += tl.sum(b_row * _load_grad(p_grad, o_f, D, BLOCK_D), axis=1)
            b_dot *= tl.gather(b_weight, o_k, axis=0) * factor
            b_to = tl.gather(b_edge, o_k, axis=0)
            # The entry of a dropped edge, or of one without a source, stays zero, whatever grad_out holds.
            tl.store(grad_ptr + b_to, b_dot, mask=(o_k < m - j) & (b_to >= 0))
            b_x, b_history = turn(b_x, K), turn(b_history, K)
            b_weight, b_edge = turn(b_weight, K), turn(b_edge, K)
        b_pos = b_pos_1
        b_weight = b_weight_1
        b_edge = b_edge_1
        b_col_1 = b_col_2
        b_edge_1 = b_edge_2


def edge_grad(
    grad_edge_weight: Tensor,
    rowptr: Tensor,
    col: Tensor,
    edge_id: Tensor | None,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    history: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    grad_out: Tensor,
    *,
    scale: float,
    edge_dropout: float,
    seed: int,
) -> None:
    """Write the gradient of the edge weights of ``rows`` into ``grad_edge_weight``, zeroed by the caller."""
    width = grad_out.shape[1]
    given = [matrix.dtype for matrix in (x, history) if matrix is not None]
    if grad_out.numel() == 0 or col.numel() == 0 or not given:
        return
    align = row_alignment(x, history)
    settings = edge_grad_settings(width, align, *given, lanes=lanes())
    launch(
        edge_grad_kernel,
        (rows.numel(), EDGE_GRAD_SPLIT),
        settings,
        grad_edge_weight.device,
        grad_ptr=grad_edge_weight,
        rowptr_ptr=rowptr,
        col_ptr=col,
        edge_id_ptr=edge_id,
        rows_ptr=rows,
        position_ptr=position,
        x_ptr=x,
        history_ptr=history,
        row_scale_ptr=row_scale,
        col_scale_ptr=col_scale,
        grad_out_ptr=grad_out,
        stride_x=0 if x is None else x.stride(0),
        stride_history=0 if history is None else history.stride(0),
        stride_grad_out=grad_out.stride(0),
        scale=scale * keep_scale(edge_dropout),
        key=seed_key(seed),
        threshold=threshold(edge_dropout),
        DROPOUT=edge_dropout > 0,
        MERGED=len(given) == 2 and given[0] == given[1],
        ALIGN=align,
        GRAD_ALIGN=row_alignment(grad_out),
        D=width,
    )
