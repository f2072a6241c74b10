"""What is installed, what this machine has, whether every kernel computes what it should here, and how fast memory is.

    python -m rest_triton.doctor

The exit status is 1 if anything is wrong. With a GPU it also runs the tests that need one, where there is a checkout.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .utils.machine import available_memory, readable

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "triton", "numba", "numpy", "torch-geometric", "ogb", "pymetis")
TESTS = Path(__file__).resolve().parent.parent / "tests"


def versions() -> dict[str, str]:
    """Versions by name; what is missing is named as such, and nothing is imported."""
    found = {"python": platform.python_version(), "rest_triton": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpuinfo() -> list[dict[str, str]]:
    """What Linux tells about each thread of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    pairs = [[line.partition(":") for line in block.splitlines()] for block in text.strip().split("\n\n")]
    return [{name.strip(): value.strip() for name, _, value in block} for block in pairs]


def machine() -> dict[str, str]:
    """Processor, cores and memory, for people."""
    threads = _cpuinfo()
    name = next((t["model name"] for t in threads if "model name" in t), platform.processor() or platform.machine())
    cores = len({(t["physical id"], t["core id"]) for t in threads if "physical id" in t and "core id" in t})
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counted = f"{cores or 'unknown number of'} cores, {os.cpu_count()} threads, {usable} of them for this process"
    return {
        "system": platform.platform(),
        "processor": f"{name}; {counted}",
        "memory": f"{readable(available_memory())} available",
    }


def devices() -> "list[torch.device]":
    """The processor and every GPU."""
    import torch

    return [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]


def describe(device: "torch.device") -> str:
    """A device and the kernels that tensors on it are handled by."""
    import torch

    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        target = getattr(p, "gcnArchName", "") or f"sm_{p.major}{p.minor}"
        return f"{p.name}, {readable(p.total_memory)}, {target}: Triton kernels, compiled for it when first used"
    try:
        pool = importlib.import_module("rest_triton.kernels.cpu.pool")
    except ImportError as error:
        return f"no kernels: Numba cannot be imported ({error})"
    team = "torch's OpenMP team" if pool.openmp_entry() else "threads of their own, as this torch has no OpenMP"
    return f"Numba kernels on {team} ({torch.get_num_threads()} threads), compiled into {pool._cache_dir()}"


def examine(device: "torch.device") -> bool:
    """Print the self-test of a device and, if all is well, its bandwidths. Whether it was."""
    from .ops.selftest import selftest
    from .utils.bandwidth import bandwidths

    well = True
    for verdict in selftest(device):
        print(f"  {verdict}", flush=True)
        well = well and not verdict.problem
    if not well:
        print("  bandwidths are not measured: what is wrong comes first")
        return False
    for line in bandwidths(device):
        print(f"  {line}", flush=True)
    return True


def gpu_tests(tests: Path) -> tuple[str, bool]:
    """(what came of the tests marked gpu, whether that is fine)."""
    if not (tests / "conftest.py").is_file():
        return f"the tests that need a GPU are not here ({tests}); run doctor from a checkout to run them", True
    if importlib.util.find_spec("pytest") is None:
        return "the tests that need a GPU were not run: pytest is not installed", True
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(tests)], cwd=tests.parent)
    passed = done.returncode == 0
    return f"the tests that need a GPU: {'ok' if passed else f'WRONG, pytest gave {done.returncode}'}", passed


def _lines(title: str, pairs: dict[str, str]) -> Iterator[str]:
    width = max(map(len, pairs))
    yield title
    yield from (f"  {name:<{width}}  {value}" for name, value in pairs.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.doctor", description="Is everything here, and does every kernel compute what it should?"
    )
    parser.add_argument("--no-tests", action="store_true", help="with a GPU: do not run the tests marked gpu")
    options = parser.parse_args(arguments)
    print("\n".join([*_lines("Versions", versions()), *_lines("Machine", machine())]), flush=True)
    try:
        found = devices()
    except (ImportError, OSError) as error:  # OSError: a library that torch needs
        print(f"WRONG: torch cannot be imported ({error}); install it, nothing works without")
        return 1
    well = True
    for device in found:
        print(f"{str(device).upper()}: {describe(device)}", flush=True)
        well = examine(device) and well
    if len(found) == 1:
        print("no GPU")
    elif not options.no_tests:
        said, fine = gpu_tests(TESTS)
        print(said)
        well = well and fine
    print("All is well." if well else "Something is WRONG, see above.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
