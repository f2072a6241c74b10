"""Run a compiled task on torch's own threads.

A task is a C function ``void task(int64_t *block)`` compiled by Numba. It is started once on every thread of torch's
OpenMP team. It takes chunks of work from the ticket counter in ``block[0]`` until none are left.

``numba.prange`` may bring a second thread pool. Torch's workers spin for a while after each op, and on a busy machine the
threads of a second pool wait for them (``bench/bench_spmm.py`` measures a mix of matmuls and kernels). With one team, the
number of threads is torch's, and no parallel Numba function has to be compiled.
"""

import ctypes
import hashlib
import os
import platform
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

import llvmlite.binding
import numba
import torch
from numba import cfunc, types

TASK_SIGNATURE = types.void(types.CPointer(types.int64))
_CTask = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def openmp_entry() -> Callable[..., None] | None:
    """``GOMP_parallel`` of the OpenMP runtime that torch is linked to, or None if it has none.

    It is looked up through libtorch_cpu and its dependencies. So the result is the library of torch's own parallel loops
    (libgomp, or LLVM's with its GNU interface).
    """
    for library in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"):
        try:
            entry = ctypes.CDLL(str(library)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        entry.restype = None
        return entry
    return None


@cache
def _own_threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="rest_triton")


def run(address: int, block: int, threads: int) -> None:
    """Call the C function at ``address`` with ``block`` on ``threads`` threads at once and wait for all of them."""
    if threads == 1:
        _CTask(address)(block)
        return
    entry = openmp_entry()
    if entry is not None:
        entry(address, block, threads, 0)
        return
    # This torch has no OpenMP (macOS, custom builds): use Python threads. ctypes releases the GIL during the call.
    call = _CTask(address)
    others = [_own_threads(threads - 1).submit(call, block) for _ in range(threads - 1)]
    call(block)
    for other in others:
        other.result()


@cache
def _cache_dir() -> str:
    """The cache folder of compiled tasks. Its name has a digest of this package's sources.

    Numba notices a change in a function's own file, but not in the files of the functions that it calls. With the digest,
    an edited kernel is always compiled again. Read-only installations work too.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    here = Path(__file__).parent
    for source in (*sorted(here.glob("*.py")), *sorted(here.parent.glob("_*.py"))):
        digest.update(source.read_bytes())
    base = numba.config.CACHE_DIR or os.path.join(
        os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "rest_triton"
    )
    return os.path.join(base, f"numba-{digest.hexdigest()[:16]}")


@contextmanager
def _numba_cache() -> Iterator[None]:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _cache_dir()
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def missing_features(machine: str, features: dict[str, bool]) -> list[str]:
    """The features that the kernels need and an x86 processor lacks."""
    return [] if machine not in ("x86_64", "AMD64") else [f for f in ("avx2", "fma", "f16c") if not features.get(f)]


@cache
def _check_processor() -> None:
    missing = missing_features(platform.machine(), dict(llvmlite.binding.get_host_cpu_features()))
    if missing:
        raise RuntimeError(
            f"the CPU kernels need {', '.join(missing)}, which this processor does not have (x86 since 2013 does); "
            'run the ops by their definitions: with rest_triton.ops.use_backend("torch"): ...'
        )


class Task:
    """A kernel for the CPU, compiled when it is first launched and cached on disk."""

    def __init__(self, function: Callable) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @cached_property
    def address(self) -> int:
        _check_processor()
        with _numba_cache():
            # "contract" lets the compiler fuse multiply and add. Sums keep their order, so vectorisation does not change
            # results.
            compiled = cfunc(TASK_SIGNATURE, cache=True, fastmath={"contract"}, error_model="numpy")(self.function)
        self._keep_alive = compiled
        return compiled.address

    def launch(self, count: int, chunk: int, *arguments: torch.Tensor | float | None) -> None:
        """Run over ``count`` items in chunks, on at most as many threads as chunks.

        The block is: ticket, count, chunk, arguments. Tensors are passed as addresses (None as 0), floats as the bits of
        a float64.
        """
        words = [0, count, chunk]
        for argument in arguments:
            if argument is None:
                words.append(0)
            elif isinstance(argument, torch.Tensor):
                words.append(argument.data_ptr())
            elif isinstance(argument, float):
                words.append(struct.unpack("q", struct.pack("d", argument))[0])
            else:
                words.append(argument)
        block = (ctypes.c_int64 * len(words))(*words)
        run(self.address, ctypes.addressof(block), team_size(count, chunk))


def team_size(count: int, chunk: int) -> int:
    """The number of threads of a launch: torch's, but at most one per chunk."""
    return min(torch.get_num_threads(), -(-count // chunk))


def chunk_size(count: int, least: int, most: int) -> int:
    """The number of items that a thread takes at a time: large enough to amortise a ticket, small enough to balance."""
    return max(least, min(most, count // (8 * torch.get_num_threads())))
