"""Column sums that do not depend on the number of threads.

The size of a chunk of rows depends on the number of rows alone. Each chunk is summed by one thread. Then the chunks' sums
are added in order.
"""

import torch
from numba import njit

from .intrinsics import f32_at
from .pool import Task

(PARTS, PARTS_COUNT, PARTS_WIDTH, PARTS_OUT) = range(3, 7)


@njit
def add_to(total_address, a_address, width):
    total, a = f32_at(total_address), f32_at(a_address)
    for d in range(width):
        total[d] += a[d]


@Task
def sum_parts_task(block):
    """out += the sum of all parts, in order. There are few parts, so one thread adds them."""
    for n in range(block[PARTS_COUNT]):
        add_to(block[PARTS_OUT], block[PARTS] + 4 * block[PARTS_WIDTH] * n, block[PARTS_WIDTH])


def fixed_chunks(count: int) -> tuple[int, int]:
    """(size, number) of chunks, which depend on the number of rows alone."""
    chunk = max(64, -(-count // 256))
    return chunk, -(-count // chunk)


def sum_parts(out: torch.Tensor, parts: torch.Tensor) -> None:
    """out += the sum of the float32 parts [chunks, ...] over the chunks, in order."""
    sum_parts_task.launch(1, 1, parts, parts.shape[0], parts[0].numel(), out)
