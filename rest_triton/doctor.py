"""Print versions, devices and memory bandwidth, and run a self-test of every kernel on every device.

    python -m rest_triton.doctor

The exit status is 1 if a kernel is wrong.
"""

import argparse
import importlib.metadata
import platform
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import __version__
from .utils.machine import available_memory, processor, readable

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "triton", "numba", "numpy", "torch-geometric", "ogb", "kaminpar", "pymetis")
COPIED = 1 << 28  # bytes; larger than caches


def versions() -> dict[str, str]:
    """Versions of packages by name. Nothing is imported."""
    versions = {"python": platform.python_version(), "rest_triton": __version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def devices() -> "list[torch.device]":
    """The CPU and every GPU."""
    import torch

    return [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]


def describe(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        return f"{p.name}, {getattr(p, 'gcnArchName', '') or f'sm_{p.major}{p.minor}'}, {readable(p.total_memory)}"
    return f"{processor()}, {readable(available_memory())} available, {torch.get_num_threads()} threads"


def bandwidth(device: "torch.device") -> float:
    """Bytes that the fastest of several copies reads and writes per second."""
    import torch

    source = torch.ones(COPIED // 4, device=device)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * COPIED / min(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.doctor", description="Check the installation and its kernels."
    )
    parser.add_argument("--no-tests", action="store_true", help=argparse.SUPPRESS)  # of version 0.1; it changes nothing
    parser.parse_args(arguments)
    for name, value in versions().items():
        print(f"{name:<17}  {value}", flush=True)
    try:
        present = devices()
    except (ImportError, OSError) as error:  # OSError: a library that torch needs is missing
        print(f"WRONG: torch cannot be imported ({error}); install it")
        return 1
    from .ops.selftest import selftest

    wrong = []
    for device in present:
        print(f"{str(device).upper()}: {describe(device)}")
        print(f"  copies {bandwidth(device) / 1e9:.1f} GB/s, read and written", flush=True)
        for op, problem in selftest(device):
            print(f"  {op:<17}  {f'WRONG  {problem}' if problem else 'ok'}", flush=True)
            wrong += [f"{op} on {device}"] if problem else []
    print(f"WRONG: {', '.join(wrong)}" if wrong else "All kernels are right.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
