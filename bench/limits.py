"""What this machine can do at best, measured by the simplest loops that do it.

``gather`` reads rows at addresses that are already known, with nothing to translate, weigh or write: the ceiling for
anything that reads the same rows in the same order.
"""

import numpy as np
import torch

from rest_triton.kernels.cpu.edges import prefetch_row
from rest_triton.kernels.cpu.intrinsics import load_i64, next_ticket
from rest_triton.kernels.cpu.pool import Task
from rest_triton.kernels.cpu.rowtypes import FLOAT32, add_four_rows, code

ADDRESSES, COUNT, CHUNK, WIDTH, DTYPE, AHEAD = range(1, 7)


@Task
def gather_task(block):
    addresses, count, chunk, width = block[ADDRESSES], block[COUNT], block[CHUNK], block[WIDTH]
    dtype, ahead = block[DTYPE], block[AHEAD]
    nbytes = width * (4 if dtype == FLOAT32 else 2)
    scratch = np.zeros(width, np.float32)
    one = np.float32(1)
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        for k in range(begin, min(begin + ahead, end)):
            prefetch_row(load_i64(addresses + 8 * k), nbytes)
        for k in range(begin, end - 3, 4):
            for n in range(k + ahead, min(k + ahead + 4, end)):
                prefetch_row(load_i64(addresses + 8 * n), nbytes)
            add_four_rows(
                scratch.ctypes.data, load_i64(addresses + 8 * k), load_i64(addresses + 8 * k + 8),
                load_i64(addresses + 8 * k + 16), load_i64(addresses + 8 * k + 24), dtype, width, one, one, one, one,
            )  # fmt: skip
    scratch[0] = 0


def gather(addresses: torch.Tensor, width: int, like: torch.Tensor, ahead: int) -> None:
    """Read the rows of ``width`` elements at these int64 addresses, a multiple of four of them."""
    gather_task.launch(addresses, addresses.numel(), 3200, width, code(like), ahead)
