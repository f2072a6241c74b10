"""BatchNorm's scale and shift, ReLU, write-back and dropout in one pass over the rows, on a CPU.

    z = h * scale + shift;  a = relu(z);  history[history_rows[i]] = a;  y = a / (1 - p) where kept, else 0

Bytes: h read, y and the history rows written, nothing else. Backward reads grad_y and one saved matrix and writes grad_h.
The row at hand stays in the first-level cache: the steps are separate loops over it, each simple enough to vectorise.
"""

import numpy as np
import torch
from numba import njit

from .._hash import keep_scale, seed_key, threshold
from .hashing import counter_word, feature_bits
from .intrinsics import double_of_word, f32_at, load_i64, next_ticket
from .pool import Task, chunk_size
from .rowtypes import code, load_row, row_bytes, store_row

(COUNT, CHUNK, WIDTH, SCALE, SHIFT, ROWS, RELU, KEY, THRESHOLD, KEEP_SCALE) = range(1, 11)
(Y, Y_STRIDE, Y_DTYPE, H, H_STRIDE, H_DTYPE, HISTORY, HISTORY_STRIDE, HISTORY_DTYPE, HISTORY_ROWS) = range(11, 21)
(
    GRAD_H, GRAD_H_STRIDE, GRAD_H_DTYPE, GRAD_Y, GRAD_Y_STRIDE, GRAD_Y_DTYPE,
    SAVED, SAVED_STRIDE, SAVED_DTYPE, SAVED_IS_OUTPUT, SCALE_PARTS, SHIFT_PARTS,
) = range(11, 23)  # fmt: skip
(PARTS, PARTS_COUNT, PARTS_WIDTH, PARTS_OUT) = range(3, 7)


@njit(fastmath={"contract"})
def normalise(row_address, scale_address, shift_address, width):
    """row = row * scale + shift, each optional."""
    row = f32_at(row_address)
    if scale_address != 0 and shift_address != 0:
        scale, shift = f32_at(scale_address), f32_at(shift_address)
        for d in range(width):
            row[d] = row[d] * scale[d] + shift[d]
    elif scale_address != 0:
        scale = f32_at(scale_address)
        for d in range(width):
            row[d] *= scale[d]
    elif shift_address != 0:
        shift = f32_at(shift_address)
        for d in range(width):
            row[d] += shift[d]


@njit
def drop(row_address, width, key, row_id, limit, kept):
    """Dropout on the row: what a hash of (key, row_id, feature) says."""
    row = f32_at(row_address)
    word = counter_word(key, row_id)
    low, high = np.uint32(word), np.uint32(word >> np.uint64(32))
    limit32 = np.uint32(limit)
    for d in range(width):
        row[d] = row[d] * kept if feature_bits(low, high, d) >= limit32 else np.float32(0)


@Task
def activate_task(block):
    width, key, limit = block[WIDTH], block[KEY], block[THRESHOLD]
    kept = np.float32(double_of_word(block[KEEP_SCALE]))
    scratch = np.empty(width, np.float32)
    row_address = scratch.ctypes.data
    row = f32_at(row_address)
    while True:
        begin = next_ticket(block) * block[CHUNK]
        if begin >= block[COUNT]:
            break
        for i in range(begin, min(begin + block[CHUNK], block[COUNT])):
            load_row(row_address, block[H] + i * block[H_STRIDE], block[H_DTYPE], width)
            normalise(row_address, block[SCALE], block[SHIFT], width)
            if block[RELU] != 0:
                for d in range(width):
                    row[d] = np.float32(0) if row[d] <= 0 else row[d]  # this way round a NaN stays a NaN
            if block[HISTORY] != 0:
                target = block[HISTORY] + load_i64(block[HISTORY_ROWS] + 8 * i) * block[HISTORY_STRIDE]
                store_row(target, block[HISTORY_DTYPE], row_address, width)
            if limit > 0:
                drop(row_address, width, key, load_i64(block[ROWS] + 8 * i) if block[ROWS] != 0 else i, limit, kept)
            store_row(block[Y] + i * block[Y_STRIDE], block[Y_DTYPE], row_address, width)
    scratch[0] = 0  # in use until here: it is reached by address only, which Numba does not see


@njit(fastmath={"contract"})
def add_product(total_address, a_address, b_address, width):
    total, a, b = f32_at(total_address), f32_at(a_address), f32_at(b_address)
    for d in range(width):
        total[d] += a[d] * b[d]


@njit
def add_to(total_address, a_address, width):
    total, a = f32_at(total_address), f32_at(a_address)
    for d in range(width):
        total[d] += a[d]


@Task
def activate_backward_task(block):
    width, key, limit, relu = block[WIDTH], block[KEY], block[THRESHOLD], block[RELU]
    kept = np.float32(double_of_word(block[KEEP_SCALE]))
    by_output = block[SAVED_IS_OUTPUT] != 0
    scratch = np.empty(3 * width, np.float32)
    grad_address = scratch.ctypes.data
    saved_address, z_address = grad_address + 4 * width, grad_address + 8 * width
    grad, saved, z = f32_at(grad_address), f32_at(saved_address), f32_at(z_address)
    while True:
        ticket = next_ticket(block)
        begin = ticket * block[CHUNK]
        if begin >= block[COUNT]:
            break
        scale_part = block[SCALE_PARTS] + 4 * width * ticket if block[SCALE_PARTS] != 0 else 0
        shift_part = block[SHIFT_PARTS] + 4 * width * ticket if block[SHIFT_PARTS] != 0 else 0
        for i in range(begin, min(begin + block[CHUNK], block[COUNT])):
            load_row(grad_address, block[GRAD_Y] + i * block[GRAD_Y_STRIDE], block[GRAD_Y_DTYPE], width)
            if block[SAVED] != 0:
                load_row(saved_address, block[SAVED] + i * block[SAVED_STRIDE], block[SAVED_DTYPE], width)
            if relu != 0 and by_output:
                # y is zero where the element was dropped and where ReLU cut it: both pass no gradient, no hash is needed.
                factor = kept if limit > 0 else np.float32(1)
                for d in range(width):
                    grad[d] = np.float32(0) if saved[d] <= 0 else grad[d] * factor
            else:
                if limit > 0:
                    row_id = load_i64(block[ROWS] + 8 * i) if block[ROWS] != 0 else i
                    drop(grad_address, width, key, row_id, limit, kept)
                if relu != 0:
                    for d in range(width):
                        z[d] = saved[d]
                    normalise(z_address, block[SCALE], block[SHIFT], width)
                    for d in range(width):
                        grad[d] = np.float32(0) if z[d] <= 0 else grad[d]
            if scale_part != 0:
                add_product(scale_part, grad_address, saved_address, width)
            if shift_part != 0:
                add_to(shift_part, grad_address, width)
            if block[GRAD_H] != 0:
                normalise(grad_address, block[SCALE], 0, width)
                store_row(block[GRAD_H] + i * block[GRAD_H_STRIDE], block[GRAD_H_DTYPE], grad_address, width)
    scratch[0] = 0


@Task
def sum_parts_task(block):
    """out = the sum of all parts, from the first to the last. There are few of them: one item of work, one thread."""
    for n in range(block[PARTS_COUNT]):
        add_to(block[PARTS_OUT], block[PARTS] + 4 * block[PARTS_WIDTH] * n, block[PARTS_WIDTH])


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
    *,
    saved_is_output: bool,
    relu: bool,
    dropout: float,
    seed: int,
) -> None:
    """Launch the backward pass. Column sums are taken per chunk and then over chunks in order; the size of a chunk depends
    on the number of rows alone, so the sums do not depend on the number of threads."""
    count, width = grad_y.shape
    for grad in (grad_scale, grad_shift):
        if grad is not None:
            grad.zero_()
    if grad_y.numel() == 0:
        return
    chunk = max(64, -(-count // 256))
    chunks = -(-count // chunk)
    scale_parts, shift_parts = (
        None if grad is None else torch.zeros(chunks, width, dtype=torch.float32) for grad in (grad_scale, grad_shift)
    )
    activate_backward_task.launch(
        *_common_words(count, chunk, width, scale, shift, rows, relu, dropout, seed),
        grad_h, row_bytes(grad_h), code(grad_h), grad_y, row_bytes(grad_y), code(grad_y),
        saved, row_bytes(saved), code(saved), int(saved_is_output), scale_parts, shift_parts,
    )  # fmt: skip
    for grad, parts in ((grad_scale, scale_parts), (grad_shift, shift_parts)):
        if grad is not None:
            sum_parts_task.launch(1, 1, parts, chunks, width, grad)
