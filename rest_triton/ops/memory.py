"""Memory for results and tables.

A large tensor on a CPU is fresh from the operating system, and each of its 4 KiB pages is faulted in when first
written: for one pass over a matrix that costs more than the pass. Asking for 2 MiB pages makes it 512 times fewer
faults. It is a hint about this range of addresses only; nothing of the process's allocator is changed.
"""

import ctypes
import sys
from functools import cache

import torch
from torch import Tensor

from . import check

HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14


@cache
def _madvise() -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _advise_huge_pages(rows: Tensor) -> None:
    if rows.device.type == "cpu" and rows.nbytes >= 2 * HUGE_PAGE and (madvise := _madvise()) is not None:
        first = -(-rows.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        length = (rows.data_ptr() + rows.nbytes - first) // HUGE_PAGE * HUGE_PAGE
        madvise(first, length, _MADV_HUGEPAGE)  # a refusal only means ordinary pages


def new_rows(count: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised [count, width] matrix, for a result."""
    rows = torch.empty(count, width, dtype=dtype, device=device)
    _advise_huge_pages(rows)
    return rows


def new_table(count: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A [count, width] table of zeros in ordinary memory, in 2 MiB pages where the system grants them.

    Rows are read from it at random: with 4 KiB pages nearly each one costs a walk through the page table as well.

    Example::

        table = new_table(num_nodes, 256, torch.bfloat16)
    """
    if dtype not in check.ROW_DTYPES:
        raise TypeError(f"dtype is {dtype}; it must be {check.names(check.ROW_DTYPES)}")
    if count < 0 or width < 0:
        raise ValueError(f"a table of {count} rows of {width} cannot be; both must be at least 0")
    table = torch.zeros(count, width, dtype=dtype)  # fresh from the system, a large one is not touched by this
    _advise_huge_pages(table)
    return table
