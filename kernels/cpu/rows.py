"""Gather rows from a table and scatter rows into it, on a CPU.

    gather_rows:   out[i] = table[index[i]]
    scatter_rows:  table[index[i]] = src[i],  or (1 - blend) * table[index[i]] + blend * src[i];  stamp[index[i]] = step

Bytes: each row read once and written once, 8 per index. The randomly accessed rows are prefetched.
"""

import numpy as np
import torch
from numba import njit

from .edges import prefetch_row
from .intrinsics import double_of_word, f32_at, fence, load_i64, next_ticket, store_i32, store_i64, stream_line, u16_at
from .pool import Task, chunk_size
from .rowtypes import FLOAT32, code, load_row, row_bytes, store_row

(
    COUNT, CHUNK, WIDTH, TABLE, TABLE_STRIDE, TABLE_DTYPE, INDEX, DENSE, DENSE_STRIDE, DENSE_DTYPE,
    STREAM, BLEND, STAMP, STAMP_WIDE, STEP,
) = range(1, 16)  # fmt: skip

AHEAD = 16
LINE = 64  # bytes
STREAM_FROM = 32 << 20  # bytes: smaller results may be needed in the cache next


@njit(forceinline=True)
def stream_row(target, source, nbytes):
    """The row at target = the row at source, in whole lines, bypassing the caches."""
    for at in range(0, nbytes, LINE):
        stream_line(target + at, source + at)


@njit
def copy_row(target, target_dtype, source, source_dtype, scratch, width):
    """The row at target = the row at source, converted; ``scratch`` has room for a float32 row."""
    if source_dtype == FLOAT32:
        store_row(target, target_dtype, source, width)
    elif source_dtype == target_dtype:
        short, out = u16_at(source), u16_at(target)
        for d in range(width):
            out[d] = short[d]
    else:
        load_row(scratch, source, source_dtype, width)
        store_row(target, target_dtype, scratch, width)


@njit
def ask_ahead(i, begin, end, table, index, stride, nbytes):
    """Prefetch the table's row that is needed AHEAD rows later. At the first row, also the AHEAD rows from it on."""
    if i == begin:
        for n in range(begin, min(begin + AHEAD, end)):
            prefetch_row(table + load_i64(index + 8 * n) * stride, nbytes)
    if i + AHEAD < end:
        prefetch_row(table + load_i64(index + 8 * (i + AHEAD)) * stride, nbytes)


@Task
def gather_task(block):
    count, width, table, stride, dtype = (
        block[COUNT],
        block[WIDTH],
        block[TABLE],
        block[TABLE_STRIDE],
        block[TABLE_DTYPE],
    )
    index, dense, dense_stride, dense_dtype = block[INDEX], block[DENSE], block[DENSE_STRIDE], block[DENSE_DTYPE]
    nbytes = width * (4 if dtype == FLOAT32 else 2)
    scratch = np.empty(width, np.float32)
    row = scratch.ctypes.data
    while True:
        begin = next_ticket(block) * block[CHUNK]
        if begin >= count:
            break
        end = min(begin + block[CHUNK], count)
        for i in range(begin, end):
            ask_ahead(i, begin, end, table, index, stride, nbytes)
            source = table + load_i64(index + 8 * i) * stride
            if block[STREAM]:
                stream_row(dense + i * dense_stride, source, nbytes)
            else:
                copy_row(dense + i * dense_stride, dense_dtype, source, dtype, row, width)
    fence()
    scratch[0] = 0  # keeps scratch alive: Numba does not see uses by address


@Task
def scatter_task(block):
    count, width, table, stride, dtype = (
        block[COUNT],
        block[WIDTH],
        block[TABLE],
        block[TABLE_STRIDE],
        block[TABLE_DTYPE],
    )
    index, dense, dense_stride, dense_dtype = block[INDEX], block[DENSE], block[DENSE_STRIDE], block[DENSE_DTYPE]
    new = np.float32(double_of_word(block[BLEND]))
    old = np.float32(1 - double_of_word(block[BLEND]))
    nbytes = width * (4 if dtype == FLOAT32 else 2)
    scratch = np.empty(2 * width, np.float32)
    row_address, before_address = scratch.ctypes.data, scratch.ctypes.data + 4 * width
    row, before = f32_at(row_address), f32_at(before_address)
    while True:
        begin = next_ticket(block) * block[CHUNK]
        if begin >= count:
            break
        end = min(begin + block[CHUNK], count)
        for i in range(begin, end):
            if block[STREAM] == 0:  # streaming reads no line of the table
                ask_ahead(i, begin, end, table, index, stride, nbytes)
            row_id = load_i64(index + 8 * i)
            source, target = dense + i * dense_stride, table + row_id * stride
            if new != 1:
                load_row(row_address, source, dense_dtype, width)
                load_row(before_address, target, dtype, width)
                for d in range(width):
                    row[d] = old * before[d] + new * row[d]
                store_row(target, dtype, row_address, width)
            elif block[STREAM]:
                stream_row(target, source, nbytes)
            else:
                copy_row(target, dtype, source, dense_dtype, row_address, width)
            if block[STAMP] != 0:
                if block[STAMP_WIDE] != 0:
                    store_i64(block[STAMP] + 8 * row_id, block[STEP])
                else:
                    store_i32(block[STAMP] + 4 * row_id, np.int32(block[STEP]))
    fence()
    scratch[0] = 0


def _row_words(
    table: torch.Tensor, index: torch.Tensor, dense: torch.Tensor, written: torch.Tensor, *, whole: bool = True
) -> list:
    """``written`` is the tensor that is written. ``whole``: its old rows are not read."""
    aligned = all(n % LINE == 0 for n in (written.data_ptr(), row_bytes(written), table.shape[1] * table.element_size()))
    stream = whole and table.dtype == dense.dtype and aligned and dense.nbytes >= STREAM_FROM
    return [
        index.numel(), chunk_size(index.numel(), 64, 512), table.shape[1], table, row_bytes(table), code(table),
        index, dense, row_bytes(dense), code(dense), int(stream),
    ]  # fmt: skip


def gather_rows(out: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> None:
    """Launch."""
    if out.numel() > 0:
        gather_task.launch(*_row_words(table, index, out, out))


def scatter_rows(
    table: torch.Tensor,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    blend: float,
    stamp: torch.Tensor | None = None,
    step: int = 0,
) -> None:
    """Launch. With a width of zero, the stamps are still written."""
    if index.numel() > 0:
        wide = int(stamp is not None and stamp.dtype == torch.int64)
        scatter_task.launch(*_row_words(table, index, src, table, whole=blend == 1), float(blend), stamp, wide, step)
