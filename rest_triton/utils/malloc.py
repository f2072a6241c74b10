"""Keeping freed memory in the process, for command lines.

glibc returns a large block to the operating system as soon as it is freed, and every page of the next one is faulted in
anew. A training loop frees and allocates the same large tensors thousands of times: kept, they cost nothing. This changes
the allocator of the whole process, so it is for programs to call at their start, never for a library at import.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let malloc reuse large blocks instead of returning them. False where the C library has no such switch."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    switches = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    results = [mallopt(name, value) for name, value in switches]  # all of them, also if one is refused
    return all(result == 1 for result in results)


def give_back() -> bool:
    """Return freed memory after all: before another process needs it. False if there was none, or no way to."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except AttributeError:  # musl
        return False
