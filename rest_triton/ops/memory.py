"""Memory for results.

A large tensor on a CPU is fresh from the operating system, and each of its 4 KiB pages is faulted in when first
written: for one pass over a matrix that costs more than the pass. Asking for 2 MiB pages makes it 512 times fewer
faults. It is a hint about this range of addresses only; nothing of the process's allocator is changed.
"""

import ctypes
import sys
from functools import cache

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14


@cache
def _madvise() -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def new_rows(count: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised [count, width] matrix."""
    rows = torch.empty(count, width, dtype=dtype, device=device)
    if device.type == "cpu" and rows.nbytes >= 2 * HUGE_PAGE and (madvise := _madvise()) is not None:
        first = -(-rows.data_ptr() // HUGE_PAGE) * HUGE_PAGE
        length = (rows.data_ptr() + rows.nbytes - first) // HUGE_PAGE * HUGE_PAGE
        madvise(first, length, _MADV_HUGEPAGE)  # a refusal only means ordinary pages
    return rows
