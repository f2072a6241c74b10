"""halo(rows): the sorted distinct neighbours of rows that are not in rows.

A flag per node is set for every neighbour and cleared for the rows; then the flags are compacted. Bytes: the rows' columns,
and N flags written once and read once. Several programs may set one flag: they store the same byte.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch, mark_settings

_POINTERS = ["flag_ptr", "rowptr_ptr", "col_ptr", "rows_ptr"]


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def mark_neighbours_kernel(flag_ptr, rowptr_ptr, col_ptr, rows_ptr, EDGES: tl.constexpr):
    """flag[c] = 1 for every neighbour c of one row."""
    g = tl.load(rows_ptr + tl.program_id(0).to(tl.int64))
    end = tl.load(rowptr_ptr + g + 1)
    for first in range(tl.load(rowptr_ptr + g), end, EDGES):
        o_e = first + tl.arange(0, EDGES)
        b_col = tl.load(col_ptr + o_e, mask=o_e < end, other=0, eviction_policy="evict_first")
        tl.store(flag_ptr + b_col, tl.full([EDGES], 1, tl.uint8), mask=o_e < end)


def halo(rowptr: Tensor, col: Tensor, rows: Tensor) -> Tensor:
    """Sorted distinct neighbours of ``rows`` outside of ``rows``, int64. Its size depends on the data: the host waits."""
    flag = torch.zeros(rowptr.numel() - 1, dtype=torch.uint8, device=col.device)
    if rows.numel() and col.numel():
        grid = (rows.numel(),)
        launch(
            mark_neighbours_kernel, grid, mark_settings(), col.device,
            flag_ptr=flag, rowptr_ptr=rowptr, col_ptr=col, rows_ptr=rows,
        )  # fmt: skip
        flag[rows] = 0
    return flag.nonzero().view(-1)
