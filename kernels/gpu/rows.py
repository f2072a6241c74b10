"""Gather and scatter rows with conversion: out[i] = table[index[i]], and table[index[i]] = src[i].

The table may be page-locked host memory, which the kernel reads and writes over the bus without a staging copy or a host
thread. Then at most REMOTE_PROGRAMS programs share the rows: enough for the bus, and few for the GPU. Bytes: every row once
on either side, 8 per index, and the old row if values are blended.
"""

import triton
import triton.language as tl
from torch import Tensor

from .launch import REMOTE_PROGRAMS, copy_settings, launch, row_vector
from .storage import round_to, row_pointers, widen

_RUNTIME = ["stride_out", "stride_table", "stride_src", "count", "blend", "step"]
_POINTERS = ["out_ptr", "table_ptr", "index_ptr", "src_ptr", "stamp_ptr"]


@triton.jit
def _convert(b, ptr):
    """b as elements of ptr: unchanged if it has that dtype, else converted through float32, which is exact."""
    if b.dtype == ptr.dtype.element_ty:
        return b
    else:
        return round_to(widen(b), ptr)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def gather_rows_kernel(
    out_ptr, table_ptr, index_ptr, stride_out: tl.int32, stride_table: tl.int32, count: tl.int32,
    VECTOR: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program p takes the tiles p, p + programs, ..."""
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    for first in range(tl.program_id(0) * BLOCK_R, count, tl.num_programs(0) * BLOCK_R):
        o_r = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        m_r = o_r < count
        m = m_r[:, None] & m_d[None, :]
        b_index = tl.load(index_ptr + o_r, mask=m_r, other=0)
        p_table = row_pointers(table_ptr, b_index, stride_table, o_d, VECTOR)
        p_out = row_pointers(out_ptr, o_r, stride_out, o_d, VECTOR)
        tl.store(p_out, _convert(tl.load(p_table, mask=m, other=0.0), out_ptr), mask=m)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def scatter_rows_kernel(
    table_ptr, index_ptr, src_ptr, stamp_ptr, stride_table: tl.int32, stride_src: tl.int32, count: tl.int32,
    blend: tl.float32, step: tl.int64,
    BLEND: tl.constexpr, VECTOR: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program p takes the tiles p, p + programs, ..."""
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    for first in range(tl.program_id(0) * BLOCK_R, count, tl.num_programs(0) * BLOCK_R):
        o_r = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        m_r = o_r < count
        m = m_r[:, None] & m_d[None, :]
        b_index = tl.load(index_ptr + o_r, mask=m_r, other=0)
        p_table = row_pointers(table_ptr, b_index, stride_table, o_d, VECTOR)
        p_src = row_pointers(src_ptr, o_r, stride_src, o_d, VECTOR)
        b_row = tl.load(p_src, mask=m, other=0.0)
        if BLEND:
            b_row = widen(b_row) * blend + widen(tl.load(p_table, mask=m, other=0.0)) * (1.0 - blend)
        tl.store(p_table, _convert(b_row, table_ptr), mask=m)
        if stamp_ptr is not None:
            # All blocks of features store the same number.
            b_step = tl.zeros_like(b_index) + step
            tl.store(stamp_ptr + b_index, b_step.to(stamp_ptr.dtype.element_ty), mask=m_r)


def gather_rows(out: Tensor, table: Tensor, index: Tensor) -> None:
    """out[i] = table[index[i]], converted to out's dtype."""
    if out.numel() == 0:
        return
    count, width = out.shape
    vector = row_vector(out, table)
    settings = copy_settings(width, vector)
    blocks = triton.cdiv(width, settings.BLOCK_D)
    launch(
        gather_rows_kernel,
        (_programs(count, settings.BLOCK_R, blocks, remote=table.device != out.device), blocks),
        settings,
        out.device,
        out_ptr=out,
        table_ptr=table,
        index_ptr=index,
        stride_out=out.stride(0),
        stride_table=table.stride(0),
        count=count,
        VECTOR=vector,
        D=width,
    )


def scatter_rows(
    table: Tensor, index: Tensor, src: Tensor, *, blend: float, stamp: Tensor | None = None, step: int = 0
) -> None:
    """table[index[i]] = (1 - blend) * table[index[i]] + blend * src[i], and stamp[index[i]] = step.

    ``index`` holds distinct rows. With blend = 1 the old rows are not read.
    """
    if index.numel() == 0:
        return
    count, width = src.shape
    vector = row_vector(table, src)
    settings = copy_settings(width, vector)
    # A table of width 0 has only stamps.
    blocks = max(triton.cdiv(width, settings.BLOCK_D), 1)
    launch(
        scatter_rows_kernel,
        (_programs(count, settings.BLOCK_R, blocks, remote=table.device != src.device), blocks),
        settings,
        src.device,
        table_ptr=table,
        index_ptr=index,
        src_ptr=src,
        stamp_ptr=stamp,
        stride_table=table.stride(0),
        stride_src=src.stride(0),
        count=count,
        blend=blend,
        step=step,
        BLEND=blend != 1.0,
        VECTOR=vector,
        D=width,
    )


def _programs(count: int, block_r: int, blocks: int, *, remote: bool) -> int:
    """Programs along the rows: one per tile, or REMOTE_PROGRAMS in all if the table is in host memory."""
    tiles = triton.cdiv(count, block_r)
    return min(tiles, max(REMOTE_PROGRAMS // blocks, 1)) if remote else tiles
