"""The steps from a row's edges to its neighbours' rows, for spmm and edge_grad.

Edges are resolved EDGES at a time, one per lane. Each step needs the loads of the step before: ``columns`` (col, edge_id),
``sources`` (position, scales), ``addresses``. The callers start the first two steps one or two iterations early, so that no
step waits for its loads. ``neighbours`` loads the rows of the first K edges, and ``turn`` moves the next K to the front.
"""

import triton
import triton.language as tl

from .hashing import edge_kept
from .storage import widen

# No source: a dropped edge, or one past the row's end. It is the position of history row 2**31 - 1, which is not used.
NOWHERE = tl.constexpr(-(2**31))


@triton.jit
def columns(col_ptr, edge_id_ptr, begin, o_e, n):
    """Column and edge index of the edges o_e of the n that start at begin."""
    # Read once: evicted first, so that they do not displace rows from the cache.
    b_col = tl.load(col_ptr + begin + o_e, mask=o_e < n, other=0, eviction_policy="evict_first")
    b_edge = begin + o_e
    if edge_id_ptr is not None:
        p_edge = edge_id_ptr + begin + o_e
        b_edge = tl.load(p_edge, mask=o_e < n, other=0, eviction_policy="evict_first").to(tl.int64)
    return b_col, b_edge


@triton.jit
def sources(
    position_ptr, col_scale_ptr, edge_weight_ptr, b_col, b_edge, m_e, key, threshold, DROPOUT: tl.constexpr
):  # fmt: skip
    """Position and weight of edges; of a dropped edge, NOWHERE and 0."""
    if DROPOUT:
        m_e = m_e & edge_kept(key, b_edge, threshold)
    b_pos = tl.load(position_ptr + b_col, mask=m_e, other=NOWHERE)
    b_weight = tl.where(m_e, 1.0, 0.0)
    if col_scale_ptr is not None:
        b_weight = tl.load(col_scale_ptr + b_col, mask=m_e, other=0.0)
    if edge_weight_ptr is not None:
        b_weight *= tl.load(edge_weight_ptr + b_edge, mask=m_e, other=0.0)
    return b_pos, b_weight


@triton.jit
def addresses(x_ptr, history_ptr, stride_x, stride_history, b_pos, MERGED: tl.constexpr):
    """Byte addresses of the rows in x and in history; 0 where the edge's source is not in that matrix.

    MERGED (one dtype, so that one load serves both matrices): the first result is the row's address in either.
    """
    # As int64, because pointers cannot be exchanged between lanes. Strides are int32: one wide multiply each.
    b_x = tl.zeros_like(b_pos).to(tl.int64)
    b_history = b_x
    if x_ptr is not None:
        b_x = tl.where(b_pos >= 0, (x_ptr + b_pos.to(tl.int64) * stride_x).to(tl.int64), 0)
    if history_ptr is not None:
        b_row = (history_ptr + (~b_pos).to(tl.int64) * stride_history).to(tl.int64)
        b_history = tl.where((b_pos < 0) & (b_pos != NOWHERE), b_row, 0)
    if MERGED:
        b_x = tl.where(b_pos >= 0, b_x, b_history)
    return b_x, b_history


@triton.jit
def has_row(b_x, b_history):
    """Whether an edge's source is in one of the matrices."""
    return (b_x | b_history) != 0


@triton.jit
def load_rows(ptr, b_address, o_d, m_k, m_d, MASK_K: tl.constexpr, MASK_D: tl.constexpr, ALIGN: tl.constexpr):
    """Features o_d of the rows at b_address, in ptr's dtype, as float32 [K, BLOCK_D]; zeros where masked."""
    p_row = tl.multiple_of(b_address.to(ptr.dtype)[:, None], [1, ALIGN]) + o_d[None, :]
    if MASK_K and MASK_D:
        b_row = tl.load(p_row, mask=m_k[:, None] & m_d[None, :], other=0.0)
    elif MASK_K:
        b_row = tl.load(p_row, mask=m_k[:, None], other=0.0)
    elif MASK_D:
        b_row = tl.load(p_row, mask=m_d[None, :], other=0.0)
    else:
        b_row = tl.load(p_row)
    return widen(b_row)


@triton.jit
def neighbours(
    x_ptr, history_ptr, b_x, b_history, n, o_d, m_d,
    K: tl.constexpr, TAIL: tl.constexpr, MERGED: tl.constexpr, SPARSE: tl.constexpr, MASK_D: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """Rows of the first K of the resolved edges, float32 [K, BLOCK_D].

    An address is sent from its lane to all lanes by one shuffle per 32 bits, from a lane known at compile time.
    SPARSE: an edge without a row has the address 0. TAIL: edges from number n on have no row.
    """
    o_k = tl.arange(0, K)
    if MERGED:
        b_address = tl.gather(b_x, o_k, axis=0)
        m_k = o_k < n
        if SPARSE:
            m_k = b_address != 0
        b_row = load_rows(x_ptr, b_address, o_d, m_k, m_d, TAIL or SPARSE, MASK_D, ALIGN)
    elif history_ptr is None:
        b_address = tl.gather(b_x, o_k, axis=0)
        b_row = load_rows(x_ptr, b_address, o_d, b_address != 0, m_d, True, MASK_D, ALIGN)
    else:
        b_address = tl.gather(b_history, o_k, axis=0)
        b_row = load_rows(history_ptr, b_address, o_d, b_address != 0, m_d, True, MASK_D, ALIGN)
        if x_ptr is not None:
            b_address = tl.gather(b_x, o_k, axis=0)
            b_row += load_rows(x_ptr, b_address, o_d, b_address != 0, m_d, True, MASK_D, ALIGN)
    return b_row


@triton.jit
def turn(b, K: tl.constexpr):
    """b [EDGES], rotated so that the edges K, K + 1, ... are first."""
    return tl.gather(b, (tl.arange(0, b.shape[0]) + K) % b.shape[0], axis=0)
