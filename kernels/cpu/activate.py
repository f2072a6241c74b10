"""BatchNorm's scale and shift, ReLU, write-back and dropout in one pass over the rows, on a CPU.

    z = h * scale + shift;  a = relu(z);  history[history_rows[i]] = a;  y = a / (1 - p) where kept, else 0

Bytes: h read, y and the history rows written, nothing else. Backward reads grad_y and one saved matrix and writes grad_h.
The current row stays in the first-level cache. The steps are a few loops over it, each simple enough to vectorise.
"""

import numpy as np
import torch
from numba import njit

from .._hash import keep_scale, seed_key, threshold
from .hashing import counter_word, feature_bits
from .intrinsics import double_of_word, f32_at, load_i64, next_ticket
from .pool import Task, chunk_size
from .rowtypes import FLOAT32, code, load_row, row_bytes, store_row
from .sums import add_to, fixed_chunks, sum_parts

(COUNT, CHUNK, WIDTH, SCALE, SHIFT, ROWS, RELU, KEY, THRESHOLD, KEEP_SCALE) = range(1, 11)
(Y, Y_STRIDE, Y_DTYPE, H, H_STRIDE, H_DTYPE, HISTORY, HISTORY_STRIDE, HISTORY_DTYPE, HISTORY_ROWS) = range(11, 21)
(
    GRAD_H, GRAD_H_STRIDE, GRAD_H_DTYPE, GRAD_Y, GRAD_Y_STRIDE, GRAD_Y_DTYPE,
    SAVED, SAVED_STRIDE, SAVED_DTYPE, SAVED_IS_OUTPUT, SCALE_PARTS, SHIFT_PARTS, SLOPE, OFFSET,
) = range(11, 25)  # fmt: skip


@njit(fastmath={"contract"})
def normalise(target_address, source_address, scale_address, shift_address, floor, width):
    """target = max(source * scale + shift, floor), scale and shift optional; target may be source.

    The floor is 0 with ReLU and minus infinity without. The comparison is written so that a NaN stays a NaN.
    """
    target, source, scale, shift = (
        f32_at(target_address),
        f32_at(source_address),
        f32_at(scale_address),
        f32_at(shift_address),
    )
    if scale_address != 0 and shift_address != 0:
        for d in range(width):
            z = source[d] * scale[d] + shift[d]
            target[d] = floor if z <= floor else z
    elif scale_address != 0:
        for d in range(width):
            z = source[d] * scale[d]
            target[d] = floor if z <= floor else z
    elif shift_address != 0:
        for d in range(width):
            z = source[d] + shift[d]
            target[d] = floor if z <= floor else z
    else:
        for d in range(width):
            target[d] = floor if source[d] <= floor else source[d]


@njit
def drop(target_address, source_address, width, key, row_id, limit, kept):
    """target = dropout of source, with the mask given by a hash of (key, row_id, feature)."""
    target, source = f32_at(target_address), f32_at(source_address)
    word = counter_word(key, row_id)
    low, high = np.uint32(word), np.uint32(word >> np.uint64(32))
    limit32 = np.uint32(limit)
    for d in range(width):
        target[d] = source[d] * kept if feature_bits(low, high, d) >= limit32 else np.float32(0)


@Task
def activate_task(block):
    width, key, limit = block[WIDTH], block[KEY], block[THRESHOLD]
    count, chunk, scale, shift, rows = block[COUNT], block[CHUNK], block[SCALE], block[SHIFT], block[ROWS]
    h, h_stride, h_dtype = block[H], block[H_STRIDE], block[H_DTYPE]
    y, y_stride, y_dtype = block[Y], block[Y_STRIDE], block[Y_DTYPE]
    history, history_stride, history_dtype = block[HISTORY], block[HISTORY_STRIDE], block[HISTORY_DTYPE]
    history_rows = block[HISTORY_ROWS]
    kept = np.float32(double_of_word(block[KEEP_SCALE]))
    floor = np.float32(0 if block[RELU] != 0 else -np.inf)
    scratch = np.empty(2 * width, np.float32)
    row, dropped = scratch.ctypes.data, scratch.ctypes.data + 4 * width
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        for i in range(begin, min(begin + chunk, count)):
            # float32 rows are read and written in place; other dtypes are converted in the scratch row.
            source, target = h + i * h_stride, y + i * y_stride
            if h_dtype != FLOAT32:
                load_row(row, source, h_dtype, width)
                source = row
            active = target if y_dtype == FLOAT32 and limit == 0 else row
            normalise(active, source, scale, shift, floor, width)
            if history != 0:
                store_row(history + load_i64(history_rows + 8 * i) * history_stride, history_dtype, active, width)
            if limit > 0:
                into = target if y_dtype == FLOAT32 else dropped
                drop(into, active, width, key, load_i64(rows + 8 * i) if rows != 0 else i, limit, kept)
                active = into
            if y_dtype != FLOAT32:
                store_row(target, y_dtype, active, width)
    scratch[0] = 0  # keeps scratch alive: Numba does not see uses by address


@njit(fastmath={"contract"})
def mask_by_input(grad_address, h_address, scale_address, shift_address, width):
    """grad = 0 where h * scale + shift is not positive."""
    grad, h, scale, shift = f32_at(grad_address), f32_at(h_address), f32_at(scale_address), f32_at(shift_address)
    if scale_address != 0 and shift_address != 0:
        for d in range(width):
            grad[d] = np.float32(0) if h[d] * scale[d] + shift[d] <= 0 else grad[d]
    elif scale_address != 0:
        for d in range(width):
            grad[d] = np.float32(0) if h[d] * scale[d] <= 0 else grad[d]
    elif shift_address != 0:
        for d in range(width):
            grad[d] = np.float32(0) if h[d] + shift[d] <= 0 else grad[d]
    else:
        for d in range(width):
            grad[d] = np.float32(0) if h[d] <= 0 else grad[d]


@njit
def mask_by_output(target_address, grad_address, y_address, factor, width):
    """target = grad * factor, and 0 where y is 0: there the value was dropped or negative."""
    target, grad, y = f32_at(target_address), f32_at(grad_address), f32_at(y_address)
    for d in range(width):
        target[d] = np.float32(0) if y[d] <= 0 else grad[d] * factor


@njit(fastmath={"contract"})
def add_product(total_address, a_address, b_address, width):
    total, a, b = f32_at(total_address), f32_at(a_address), f32_at(b_address)
    for d in range(width):
        total[d] += a[d] * b[d]


@njit
def multiply(target_address, a_address, b_address, width):
    target, a, b = f32_at(target_address), f32_at(a_address), f32_at(b_address)
    for d in range(width):
        target[d] = a[d] * b[d]


@njit(fastmath={"contract"})
def multiply_and_correct(target_address, grad_address, scale_address, h_address, slope_address, offset_address, width):
    """target = grad * scale + h * slope + offset: the gradient through a BatchNorm's scale, and through its moments."""
    target, grad, scale = f32_at(target_address), f32_at(grad_address), f32_at(scale_address)
    h, slope, offset = f32_at(h_address), f32_at(slope_address), f32_at(offset_address)
    for d in range(width):
        target[d] = grad[d] * scale[d] + (h[d] * slope[d] + offset[d])


@Task
def activate_backward_task(block):
    width, key, limit, relu = block[WIDTH], block[KEY], block[THRESHOLD], block[RELU]
    count, chunk, scale, shift, rows = block[COUNT], block[CHUNK], block[SCALE], block[SHIFT], block[ROWS]
    grad_h, grad_h_stride, grad_h_dtype = block[GRAD_H], block[GRAD_H_STRIDE], block[GRAD_H_DTYPE]
    grad_y, grad_y_stride, grad_y_dtype = block[GRAD_Y], block[GRAD_Y_STRIDE], block[GRAD_Y_DTYPE]
    saved, saved_stride, saved_dtype = block[SAVED], block[SAVED_STRIDE], block[SAVED_DTYPE]
    scale_parts, shift_parts, slope, offset = block[SCALE_PARTS], block[SHIFT_PARTS], block[SLOPE], block[OFFSET]
    kept = np.float32(double_of_word(block[KEEP_SCALE]))
    by_output = block[SAVED_IS_OUTPUT] != 0
    scratch = np.empty(3 * width, np.float32)
    grad, saved_row, upstream = scratch.ctypes.data, scratch.ctypes.data + 4 * width, scratch.ctypes.data + 8 * width
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        for i in range(begin, min(begin + chunk, count)):
            source = grad_y + i * grad_y_stride
            if grad_y_dtype != FLOAT32:
                load_row(upstream, source, grad_y_dtype, width)
                source = upstream
            kept_row = saved + i * saved_stride
            if saved != 0 and saved_dtype != FLOAT32:
                load_row(saved_row, kept_row, saved_dtype, width)
                kept_row = saved_row
            if relu != 0 and by_output:
                mask_by_output(grad, source, kept_row, kept if limit > 0 else np.float32(1), width)
            else:
                if limit > 0:
                    drop(grad, source, width, key, load_i64(rows + 8 * i) if rows != 0 else i, limit, kept)
                else:
                    load_row(grad, source, FLOAT32, width)
                if relu != 0:
                    mask_by_input(grad, kept_row, scale, shift, width)
            if scale_parts != 0:
                add_product(scale_parts + 4 * width * ticket, grad, kept_row, width)
            if shift_parts != 0:
                add_to(shift_parts + 4 * width * ticket, grad, width)
            if grad_h != 0:
                target = grad_h + i * grad_h_stride
                into = target if grad_h_dtype == FLOAT32 else grad
                if slope != 0:
                    multiply_and_correct(into, grad, scale, kept_row, slope, offset, width)
                elif scale != 0:
                    multiply(into, grad, scale, width)
                if into == grad or (slope == 0 and scale == 0):
                    store_row(target, grad_h_dtype, grad, width)
    scratch[0] = 0


def _common_words(
    count: int,
    chunk: int,
    width: int,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    rows: torch.Tensor | None,
    relu: bool,
    dropout: float,
    seed: int,
) -> list:
    return [
        count, chunk, width, scale, shift, rows, int(relu), seed_key(seed), threshold(dropout), keep_scale(dropout),
    ]  # fmt: skip


def activate(
    y: torch.Tensor,
    h: torch.Tensor,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    rows: torch.Tensor | None,
    history: torch.Tensor | None,
    history_rows: torch.Tensor | None,
    *,
    relu: bool,
    dropout: float,
    seed: int,
) -> None:
    """Launch the forward pass."""
    count, width = h.shape
    if h.numel() == 0:
        return
    activate_task.launch(
        *_common_words(count, chunk_size(count, 32, 256), width, scale, shift, rows, relu, dropout, seed),
        y, row_bytes(y), code(y), h, row_bytes(h), code(h),
        history, row_bytes(history), code(history), history_rows,
    )  # fmt: skip


def activate_backward(
    grad_h: torch.Tensor | None,
    grad_scale: torch.Tensor | None,
    grad_shift: torch.Tensor | None,
    grad_y: torch.Tensor,
    saved: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    rows: torch.Tensor | None,
    slope: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    *,
    saved_is_output: bool,
    relu: bool,
    dropout: float,
    seed: int,
) -> None:
    """Launch the backward pass; ``slope`` and ``offset`` add h * slope + offset to grad_h.

    Column sums are taken per chunk and then over chunks in order; the size of a chunk depends on the number of rows alone,
    so the sums do not depend on the number of threads.
    """
    count, width = grad_y.shape
    for grad in (grad_scale, grad_shift):
        if grad is not None:
            grad.zero_()
    if grad_y.numel() == 0:
        return
    chunk, chunks = fixed_chunks(count)
    scale_parts, shift_parts = (
        None if grad is None else torch.zeros(chunks, width, dtype=torch.float32) for grad in (grad_scale, grad_shift)
    )
    activate_backward_task.launch(
        *_common_words(count, chunk, width, scale, shift, rows, relu, dropout, seed),
        grad_h, row_bytes(grad_h), code(grad_h), grad_y, row_bytes(grad_y), code(grad_y),
        saved, row_bytes(saved), code(saved), int(saved_is_output), scale_parts, shift_parts, slope, offset,
    )  # fmt: skip
    for grad, parts in ((grad_scale, scale_parts), (grad_shift, shift_parts)):
        if grad is not None:
            sum_parts(grad, parts)
