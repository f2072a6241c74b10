"""What this machine can do at best, measured by the simplest loops that do it.

``read_rows`` reads rows whose addresses are already known, with nothing to translate, weigh or write: no index, no
position map, no scale. It is the ceiling for anything that reads the same rows in the same order. It comes twice: as a
plain loop, and asking for rows ahead as the kernels do.
"""

import numpy as np
import torch
from torch import Tensor

from rest_triton.kernels.cpu.edges import prefetch_row
from rest_triton.kernels.cpu.intrinsics import load_i64, next_ticket
from rest_triton.kernels.cpu.pool import Task
from rest_triton.kernels.cpu.rowtypes import FLOAT32, add_four_rows, code

COUNT, CHUNK, ADDRESSES, WIDTH, DTYPE, AHEAD = range(1, 7)


@Task
def read_rows_task(block):
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
            if ahead > 0:
                for n in range(k + ahead, min(k + ahead + 4, end)):
                    prefetch_row(load_i64(addresses + 8 * n), nbytes)
            add_four_rows(
                scratch.ctypes.data, load_i64(addresses + 8 * k), load_i64(addresses + 8 * k + 8),
                load_i64(addresses + 8 * k + 16), load_i64(addresses + 8 * k + 24), dtype, width, one, one, one, one,
            )  # fmt: skip
    scratch[0] = 0  # in use until here: it is reached by address only


def read_rows(addresses: Tensor, width: int, like: Tensor, ahead: int) -> None:
    """Read the rows of ``width`` elements at these addresses, a multiple of four of them, ``ahead`` asked for in advance."""
    read_rows_task.launch(addresses.numel(), 3200, addresses, width, code(like), ahead)


def row_addresses(position: Tensor, columns: Tensor, x: Tensor | None, table: Tensor) -> Tensor:
    """The addresses that history_spmm reads, in its order."""
    p = position[columns].long()
    outside = table.data_ptr() + ~p * table.stride(0) * table.element_size()
    if x is None:
        return outside
    return torch.where(p >= 0, x.data_ptr() + p * x.stride(0) * x.element_size(), outside)
