"""Memory, devices and processor of this machine."""

import os
import platform
import re
import resource
import sys
from pathlib import Path

from .errors import UserError


def available_memory() -> int:
    """Bytes that can be allocated without swapping, within the limit of a container."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return free
    cache = [
        line.split()[1] for line in _read("/sys/fs/cgroup/memory.stat").splitlines() if line.startswith("inactive_file ")
    ]
    return min(free, int(limit) - int(used) + sum(map(int, cache)))  # cached files can be evicted


def most_memory() -> int:
    """The largest number of bytes that this process has held.

    The figure of getrusage is the fallback: it may be that of a larger parent process before exec.
    """
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def bytes_of(text: str, what: str = "the size") -> int:
    """The bytes of a size such as ``48GiB``, ``500MB`` or ``1024``. UserError that names ``what`` for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B)?", text.strip().upper())
    size = 0 if match is None else int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " "))
    if size < 1:
        raise UserError(f"{what} is {text!r}; it must be a size, such as 48GiB, 500MB or a number of bytes")
    return size


def readable(size: float) -> str:
    """Bytes as text with a unit, such as ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def device_of(asked: str, *, must_exist: bool = True) -> str:
    """``cpu`` or ``cuda``. For ``auto`` it is ``cuda`` if torch finds a GPU.

    Args:
        must_exist: raise UserError if there is no GPU for ``cuda``. Plans do not need one.
    """
    import torch  # takes a second, which callers of the other functions do not pay

    available = torch.cuda.is_available()
    if asked == "cuda" and must_exist and not available:
        raise UserError("device is cuda, but torch finds no GPU; python -m rest_triton.doctor lists the devices")
    return asked if asked != "auto" else "cuda" if available else "cpu"


def processor() -> str:
    """The processor's name and the number of cores that this process may use."""
    names = [line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"
