"""out[i] = scale * row_scale[g] * sum_k keep(e) col_scale[c] edge_weight[e] src(c) + alpha * residual[i].

g = rows[i], c = col[k], e = edge_id[k], for k in rowptr[g]..rowptr[g+1]. src(c) is row ``position[c]`` of x, or row
``~position[c]`` of history if that is negative. So two matrices are read as one, without gathering, concatenating or
relabelling. Per edge it reads the row's D elements, 4 or 8 bytes of col, 4 of position and 4 of each scale or weight
given; per row 24 bytes of indices, the residual and the output.

One warp computes one block of features of one row, in a fixed order. It resolves EDGES edges at a time, one per lane, and
loads their rows K at a time, 16 bytes per lane. The loads of the rows of block t, the positions of block t+1 and the columns
of block t+2 overlap. Two more kernels compute rows with more than hub_degree edges: one program per segment of a hub, then
one per hub that adds its segments. There are no atomics and no host synchronisation.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._hash import keep_scale, seed_key, threshold
from .._hubs import HUB_DEGREE, HUB_SEGMENT
from .edges import addresses, columns, has_row, neighbours, sources, turn
from .launch import hub_sum_settings, lanes, launch, row_alignment, spmm_settings
from .storage import round_to, row_pointers


@triton.jit
def _locate(x_ptr, history_ptr, stride_x, stride_history, b_pos, b_weight, MERGED: tl.constexpr):
    """Addresses and weights. An absent row has weight 0, so that an infinite weight does not give NaN."""
    b_x, b_history = addresses(x_ptr, history_ptr, stride_x, stride_history, b_pos, MERGED)
    if not MERGED:
        b_weight = tl.where(has_row(b_x, b_history), b_weight, 0.0)
    return b_x, b_history, b_weight


@triton.jit
def _add_rows(
    b_acc, x_ptr, history_ptr, b_x, b_history, b_weight, n, o_d, m_d,
    TAIL: tl.constexpr, WEIGHTED: tl.constexpr, MERGED: tl.constexpr, SPARSE: tl.constexpr,
    ALIGN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """b_acc [GROUP, BLOCK_D] plus the weighted rows of the first K edges, and the edges turned by K."""
    b_row = neighbours(x_ptr, history_ptr, b_x, b_history, n, o_d, m_d, K, TAIL, MERGED, SPARSE, D % BLOCK_D != 0, ALIGN)
    if WEIGHTED:
        b_row *= tl.gather(b_weight, tl.arange(0, K), axis=0)[:, None]
    # Every GROUP-th row is in the registers of the same lane: this sum crosses no lanes.
    b_acc += tl.sum(tl.reshape(b_row, [K // GROUP, GROUP, BLOCK_D]), axis=0)
    return b_acc, turn(b_x, K), turn(b_history, K), turn(b_weight, K)


@triton.jit
def _aggregate(
    begin, end, col_ptr, edge_id_ptr, position_ptr, x_ptr, history_ptr, col_scale_ptr, edge_weight_ptr,
    stride_x, stride_history, tiles, key, threshold, o_d, m_d,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EDGES: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Sum of the weighted rows of the edges begin..end, float32 [BLOCK_D]."""
    WEIGHTED: tl.constexpr = (col_scale_ptr is not None) or (edge_weight_ptr is not None)
    SPARSE: tl.constexpr = DROPOUT or not MERGED
    # 32 bits from here on: a row has fewer edges than that, and only the addresses need more.
    n = (end - begin).to(tl.int32)
    o_e = tl.arange(0, EDGES)
    b_acc = tl.zeros([GROUP, BLOCK_D], tl.float32)

    b_col, b_edge = columns(col_ptr, edge_id_ptr, begin, o_e, n)
    b_col_1, b_edge_1 = columns(col_ptr, edge_id_ptr, begin, o_e + EDGES, n)
    b_pos, b_weight = sources(position_ptr, col_scale_ptr, edge_weight_ptr, b_col, b_edge, o_e < n, key, threshold, DROPOUT)
    for k in range(EDGES, n + 1, EDGES):
        b_pos_1, b_weight_1 = sources(
            position_ptr, col_scale_ptr, edge_weight_ptr, b_col_1, b_edge_1, k + o_e < n, key, threshold, DROPOUT,
        )  # fmt: skip
        b_col_1, b_edge_1 = columns(col_ptr, edge_id_ptr, begin, k + EDGES + o_e, n)
        b_x, b_history, b_weight = _locate(x_ptr, history_ptr, stride_x, stride_history, b_pos, b_weight, MERGED)
        # EDGES // K times, as a runtime value: if the loop were unrolled, the loads of a tile would be spread among the
        # sums of the previous one (NVIDIA), or hoisted until registers run out (AMD).
        for _ in range(0, tiles):
            b_acc, b_x, b_history, b_weight = _add_rows(
                b_acc, x_ptr, history_ptr, b_x, b_history, b_weight, EDGES, o_d, m_d,
                False, WEIGHTED, MERGED, SPARSE, ALIGN, D, BLOCK_D, K, GROUP,
            )  # fmt: skip
        b_pos = b_pos_1
        b_weight = b_weight_1

    # Separate from the full blocks, whose masks then need no bounds.
    n = n % EDGES
    b_x, b_history, b_weight = _locate(x_ptr, history_ptr, stride_x, stride_history, b_pos, b_weight, MERGED)
    for k in range(0, n, K):
        b_acc, b_x, b_history, b_weight = _add_rows(
            b_acc, x_ptr, history_ptr, b_x, b_history, b_weight, n - k, o_d, m_d,
            True, WEIGHTED, MERGED, SPARSE, ALIGN, D, BLOCK_D, K, GROUP,
        )  # fmt: skip
    return tl.sum(b_acc, axis=0)


@triton.jit
def _residual(residual_ptr, i, stride_residual, alpha, o_d, m_d, ALIGN: tl.constexpr):
    """alpha * residual[i], or 0 without one."""
    b_residual = tl.zeros_like(o_d).to(tl.float32)
    if residual_ptr is not None:
        p_residual = tl.multiple_of(residual_ptr + i * stride_residual, ALIGN) + o_d
        b_residual = tl.load(p_residual, mask=m_d, other=0.0).to(tl.float32) * alpha
    return b_residual


@triton.jit
def _row_factor(row_scale_ptr, g, scale):
    """scale * row_scale[g]."""
    factor = scale + 0.0
    if row_scale_ptr is not None:
        factor = tl.load(row_scale_ptr + g) * scale
    return factor


@triton.jit
def rightmost(ptr, size, value):
    """The last index h with ptr[h] <= value in the sorted ptr[0..size]; 0 if there is none."""
    low = 0
    high = size
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(ptr + middle) <= value:
            low = middle
        else:
            high = middle
    return low


# Values of these must not cause another compilation. Alignment is passed as ALIGN and OUT_ALIGN instead.
_RUNTIME = [
    "stride_out", "stride_x", "stride_history", "stride_residual", "tiles", "scale", "alpha", "key",
    "threshold",
    "hub_count", "hub_degree", "hub_segment",
]  # fmt: skip
_POINTERS = [
    "out_ptr", "rowptr_ptr", "col_ptr", "edge_id_ptr", "rows_ptr", "position_ptr", "x_ptr", "history_ptr",
    "row_scale_ptr", "col_scale_ptr", "edge_weight_ptr", "residual_ptr", "hub_node_ptr", "hub_first_ptr",
    "hub_row_ptr", "partial_ptr",
]  # fmt: skip


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def spmm_kernel(
    out_ptr, rowptr_ptr, col_ptr, edge_id_ptr, rows_ptr, position_ptr, x_ptr, history_ptr,
    row_scale_ptr, col_scale_ptr, edge_weight_ptr, residual_ptr, hub_node_ptr, hub_row_ptr,
    stride_out: tl.int32, stride_x: tl.int32, stride_history: tl.int32, stride_residual: tl.int32,
    tiles: tl.int32, scale: tl.float32, alpha: tl.float32, key: tl.int64, threshold: tl.int32,
    hub_count: tl.int32, hub_degree: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EDGES: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program per (row, block of features). For a hub, it only records the hub's output row."""
    i = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    g = tl.load(rows_ptr + i)
    begin = tl.load(rowptr_ptr + g)
    end = tl.load(rowptr_ptr + g + 1)
    if hub_node_ptr is not None:
        if end - begin > hub_degree:
            # All blocks of features store the same number.
            tl.store(hub_row_ptr + rightmost(hub_node_ptr, hub_count, g), i.to(tl.int32))
            return
    # Loaded before the loop and used after it, so that short rows do not wait for memory once more.
    factor = _row_factor(row_scale_ptr, g, scale)
    b_residual = _residual(residual_ptr, i, stride_residual, alpha, o_d, m_d, OUT_ALIGN)
    b_out = _aggregate(
        begin, end, col_ptr, edge_id_ptr, position_ptr, x_ptr, history_ptr, col_scale_ptr, edge_weight_ptr,
        stride_x, stride_history, tiles, key, threshold, o_d, m_d,
        DROPOUT, MERGED, ALIGN, D, BLOCK_D, EDGES, K, GROUP,
    )  # fmt: skip
    b_out = b_out * factor + b_residual
    p_out = tl.multiple_of(out_ptr + i * stride_out, OUT_ALIGN) + o_d
    tl.store(p_out, round_to(b_out, out_ptr), mask=m_d)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def spmm_hub_segment_kernel(
    partial_ptr, rowptr_ptr, col_ptr, edge_id_ptr, position_ptr, x_ptr, history_ptr, col_scale_ptr,
    edge_weight_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr,
    stride_x: tl.int32, stride_history: tl.int32, tiles: tl.int32, key: tl.int64, threshold: tl.int32,
    hub_count: tl.int32, hub_segment: tl.int32,
    DROPOUT: tl.constexpr, MERGED: tl.constexpr, ALIGN: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EDGES: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """partial[s] = sum over the edges of segment s, for the hubs among the rows of this launch."""
    s = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    h = rightmost(hub_first_ptr, hub_count, s)
    if tl.load(hub_row_ptr + h) < 0:
        return
    g = tl.load(hub_node_ptr + h)
    begin = tl.load(rowptr_ptr + g) + (s - tl.load(hub_first_ptr + h)) * hub_segment
    end = tl.minimum(begin + hub_segment, tl.load(rowptr_ptr + g + 1))
    b_sum = _aggregate(
        begin, end, col_ptr, edge_id_ptr, position_ptr, x_ptr, history_ptr, col_scale_ptr, edge_weight_ptr,
        stride_x, stride_history, tiles, key, threshold, o_d, m_d,
        DROPOUT, MERGED, ALIGN, D, BLOCK_D, EDGES, K, GROUP,
    )  # fmt: skip
    tl.store(tl.multiple_of(partial_ptr + s * D, 16 if D % 4 == 0 else 4) + o_d, b_sum, mask=m_d)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def spmm_hub_sum_kernel(
    out_ptr, partial_ptr, row_scale_ptr, residual_ptr, hub_node_ptr, hub_first_ptr, hub_row_ptr,
    stride_out: tl.int32, stride_residual: tl.int32, scale: tl.float32, alpha: tl.float32,
    OUT_ALIGN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """out[i] of each hub from its segments, BLOCK_R of them at a time."""
    h = tl.program_id(0)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    i = tl.load(hub_row_ptr + h).to(tl.int64)
    if i < 0:
        return
    first = tl.load(hub_first_ptr + h)
    last = tl.load(hub_first_ptr + h + 1)
    b_acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for s in range(first, last, BLOCK_R):
        o_s = s + tl.arange(0, BLOCK_R)
        p_partial = row_pointers(partial_ptr, o_s, D, o_d, 4 if D % 4 == 0 else 1)
        b_acc += tl.load(p_partial, mask=(o_s < last)[:, None] & m_d[None, :], other=0.0)
    b_out = tl.sum(b_acc, axis=0) * _row_factor(row_scale_ptr, tl.load(hub_node_ptr + h), scale)
    b_out += _residual(residual_ptr, i, stride_residual, alpha, o_d, m_d, OUT_ALIGN)
    p_out = tl.multiple_of(out_ptr + i * stride_out, OUT_ALIGN) + o_d
    tl.store(p_out, round_to(b_out, out_ptr), mask=m_d)


def spmm(
    out: Tensor,
    rowptr: Tensor,
    col: Tensor,
    edge_id: Tensor | None,
    rows: Tensor,
    position: Tensor,
    x: Tensor | None,
    history: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    edge_weight: Tensor | None,
    residual: Tensor | None,
    *,
    scale: float,
    alpha: float,
    edge_dropout: float,
    seed: int,
    hub_node: Tensor | None = None,
    hub_first: Tensor | None = None,
    hub_segments: int = 0,
    hub_degree: int = HUB_DEGREE,
    hub_segment: int = HUB_SEGMENT,
) -> None:
    """Write the aggregate of ``rows`` into ``out`` (see the module's equation). ``rows`` are distinct.

    ``hub_node`` has the sorted ids of all nodes with more than ``hub_degree`` edges, ``hub_first`` the first segment (of
    ``hub_segment`` edges) of each, ``hub_segments`` the number of all segments. Without them, every row is computed by one
    warp, however long.
    """
    width = out.shape[1]
    if out.numel() == 0:
        return
    given = [matrix.dtype for matrix in (x, history) if matrix is not None]
    if not given:
        out.copy_(torch.zeros_like(out) if residual is None else residual.float() * alpha)
        return
    align = row_alignment(x, history)
    settings = spmm_settings(width, align, *given, lanes=lanes())
    blocks = triton.cdiv(width, settings.BLOCK_D)
    hubs = hub_node is not None and hub_segments > 0
    hub_count = hub_node.numel() if hubs else 0
    hub_row = torch.full((hub_count,), -1, dtype=torch.int32, device=out.device) if hubs else None

    walk = dict(
        rowptr_ptr=rowptr, col_ptr=col, edge_id_ptr=edge_id, position_ptr=position, x_ptr=x, history_ptr=history,
        col_scale_ptr=col_scale, edge_weight_ptr=edge_weight, hub_node_ptr=hub_node if hubs else None,
        hub_row_ptr=hub_row, stride_x=_stride(x), stride_history=_stride(history), hub_count=hub_count,
        tiles=settings.EDGES // settings.K, key=seed_key(seed), threshold=threshold(edge_dropout),
        DROPOUT=edge_dropout > 0, MERGED=len(given) == 2 and given[0] == given[1], ALIGN=align, D=width,
    )  # fmt: skip
    finish = dict(
        out_ptr=out, row_scale_ptr=row_scale, residual_ptr=residual, stride_out=out.stride(0),
        stride_residual=_stride(residual), scale=scale * keep_scale(edge_dropout), alpha=alpha,
        OUT_ALIGN=row_alignment(out, residual),
    )  # fmt: skip
    grid = (rows.numel(), blocks)
    launch(spmm_kernel, grid, settings, out.device, **walk, **finish, rows_ptr=rows, hub_degree=hub_degree)
    if hubs:
        partial = torch.empty(hub_segments, width, dtype=torch.float32, device=out.device)
        shared = dict(partial_ptr=partial, hub_first_ptr=hub_first)
        grid = (hub_segments, blocks)
        launch(spmm_hub_segment_kernel, grid, settings, out.device, **walk, **shared, hub_segment=hub_segment)
        settings = hub_sum_settings(width)
        grid = (hub_count, triton.cdiv(width, settings.BLOCK_D))
        finish.update(shared, hub_node_ptr=hub_node, hub_row_ptr=hub_row, D=width)
        launch(spmm_hub_sum_kernel, grid, settings, out.device, **finish)


def _stride(matrix: Tensor | None) -> int:
    return 0 if matrix is None else matrix.stride(0)
