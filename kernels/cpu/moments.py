"""Mean and variance of a matrix's columns in one pass, on a CPU. Bytes: h read once."""

import numpy as np
import torch
from numba import njit

from .intrinsics import f32_at, next_ticket
from .pool import Task
from .rowtypes import FLOAT32, code, load_row, row_bytes
from .sums import fixed_chunks, sum_parts

COUNT, CHUNK, WIDTH, H, STRIDE, DTYPE, PARTS = range(1, 8)


@njit(fastmath={"contract"})
def add_moments(first_address, second_address, source_address, pivot_address, width):
    first, second = f32_at(first_address), f32_at(second_address)
    source, pivot = f32_at(source_address), f32_at(pivot_address)
    for d in range(width):
        distance = source[d] - pivot[d]
        first[d] += distance
        second[d] += distance * distance


@Task
def moments_task(block):
    """Per chunk of rows: the column sums of (h - pivot) and of its square. The pivot is the first row, which is about as far
    from the mean as other rows are, so that the squares do not cancel."""
    count, chunk, width = block[COUNT], block[CHUNK], block[WIDTH]
    h, stride, dtype, parts = block[H], block[STRIDE], block[DTYPE], block[PARTS]
    scratch = np.empty(2 * width, np.float32)
    row, pivot = scratch.ctypes.data, scratch.ctypes.data + 4 * width
    load_row(pivot, h, dtype, width)
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        part = parts + 8 * width * ticket
        for i in range(begin, min(begin + chunk, count)):
            source = h + i * stride
            if dtype != FLOAT32:
                load_row(row, source, dtype, width)
                source = row
            add_moments(part, part + 4 * width, source, pivot, width)
    scratch[0] = 0


def column_moments(mean: torch.Tensor, var: torch.Tensor, h: torch.Tensor) -> None:
    """Launch: mean and var = the mean and the biased variance of h's columns, in one pass."""
    count, width = h.shape
    if h.numel() == 0:
        mean.zero_()
        var.zero_()
        return
    chunk, chunks = fixed_chunks(count)
    parts = torch.zeros(chunks, 2, width, dtype=torch.float32)
    moments_task.launch(count, chunk, width, h, row_bytes(h), code(h), parts)
    sums = torch.zeros(2, width, dtype=torch.float32)
    sum_parts(sums, parts)
    first, second = sums.double() / count
    mean.copy_(h[0].double() + first)
    var.copy_((second - first.square()).clamp(min=0))
