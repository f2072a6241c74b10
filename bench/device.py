"""What depends on where the tensors lie: the clock, and how much memory a call holds. (CPU, or a GPU; the half for a GPU has
never run on one: its tests replace ``torch.cuda``.)

**Clock.** On a CPU the time between two calls. On a GPU the time between two events on its stream, after the second-level
cache has been filled with something else: a training step would not find its rows there either.

**Memory.** On a CPU every allocation and release of torch's allocator from begin to end, by its profiler: exact, whatever
malloc does with freed memory. The results of our kernels, and all that is more than a few KB per thread, come from there as
well. What a library takes from elsewhere (workspace of MKL) is not seen. On a GPU the caching allocator's own maximum.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch

Step = Callable[[], object]

COLD = 256 << 20  # bytes: more than any GPU's second-level cache


def bench_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def laps(steps: Sequence[Step], device: torch.device) -> list[float]:
    """Seconds that each step takes, one run after the other. What they return is dropped when all are done."""
    if device.type == "cuda":
        return _laps_of_gpu(steps, device)
    kept, times = [], [time.perf_counter()]
    for step in steps:
        kept.append(step())
        times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]


def _laps_of_gpu(steps: Sequence[Step], device: torch.device) -> list[float]:
    with torch.cuda.device(device):
        _cold_buffer(device).zero_()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        kept = []
        events[0].record()
        for step, event in zip(steps, events[1:], strict=True):
            kept.append(step())
            event.record()
        torch.cuda.synchronize(device)
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]


@cache
def _cold_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(COLD, dtype=torch.int8, device=device)


def peaks(steps: Sequence[Step], device: torch.device) -> list[int]:
    """The most bytes held during each step beyond those held before the first one. What a step returns is held until all
    are done: what forward leaves for backward counts in backward."""
    return _peaks_of_gpu(steps, device) if device.type == "cuda" else _peaks_of_cpu(steps)


def _peaks_of_cpu(steps: Sequence[Step]) -> list[int]:
    from torch.profiler import ProfilerActivity, profile

    kept: list[object] = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        for step in steps:
            kept.append(step())
            _mark()
    return _highest(profiler.profiler.kineto_results.events(), len(steps))


MARK = 12_347  # bytes, of no tensor here


def _mark() -> None:
    """An allocation that shows in the list of all where a step ends."""
    torch.empty(MARK, dtype=torch.int8)


def _highest(events: Sequence[Any], steps: int) -> list[int]:
    """Of the sum of allocations and releases so far, in each step."""
    held = most = 0
    found: list[int] = []
    for event in events:
        if event.name() != "[memory]":
            continue
        size = event.nbytes()
        if size == MARK and len(found) < steps:
            found.append(most)
            most = held
        held += size
        most = max(most, held) if abs(size) != MARK else most
    if len(found) != steps:
        raise RuntimeError(
            f"torch's profiler shows the ends of {len(found)} of {steps} steps; its list of events has changed"
        )
    return found


def _peaks_of_gpu(steps: Sequence[Step], device: torch.device) -> list[int]:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    kept, found = [], []
    for step in steps:
        torch.cuda.reset_peak_memory_stats(device)
        kept.append(step())
        torch.cuda.synchronize(device)
        found.append(torch.cuda.max_memory_allocated(device) - before)
    return found
