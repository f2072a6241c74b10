"""Settings of malloc that keep freed memory in the process, for commands.

glibc returns a large block to the operating system when it is freed. Every page of the next block causes a page fault. A
training loop frees and allocates the same large tensors thousands of times, so keeping the memory saves these faults. The
settings hold for the whole process: commands call this at their start, libraries must not.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let malloc reuse large blocks instead of returning them. Returns False if the C library does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    switches = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    results = [mallopt(name, value) for name, value in switches]  # set all, also if one fails
    return all(result == 1 for result in results)


def give_back() -> bool:
    """Return freed memory to the system, before another process needs it. Returns False if nothing was returned."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except AttributeError:  # musl
        return False
