"""What this machine has, and how to say so."""

import os
import platform
import resource
import sys
from pathlib import Path

from .errors import UserError


def available_memory() -> int:
    """Bytes that can be had without swapping, within what a container is allowed."""
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
    return min(free, int(limit) - int(used) + sum(map(int, cache)))  # files that are only remembered give way


def most_memory() -> int:
    """Bytes that this process has held at the most. Of getrusage's figure it may have inherited a part: that one survives
    the change of program from a parent that was larger."""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def readable(size: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def device_of(asked: str, *, must_exist: bool = True) -> str:
    """``cpu`` or ``cuda``: what was asked for, or for ``auto`` a GPU where there is one.

    Args:
        must_exist: refuse a GPU that is not there. A plan can do without.
    """
    import torch  # takes a second: not for those who only ask for memory

    there = torch.cuda.is_available()
    if asked == "cuda" and must_exist and not there:
        raise UserError("device is cuda, but torch finds no GPU; python -m rest_triton.doctor says what there is")
    return asked if asked != "auto" else "cuda" if there else "cpu"


def processor() -> str:
    """Its name, and how many of its cores this process may use."""
    names = [line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"
