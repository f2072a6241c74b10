"""Times the launches that are estimated, where one of the estimated GPUs is at hand, and sets both side by side.

Each launch is timed by itself and with cold caches, as the estimates assume: before every run a buffer larger than the
cache is overwritten. Who keeps the time is handed in, so all but ``EventTimer`` is tested without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from .gpu_shapes import Shape, make
from .gpus import Gpu
from .launches import Recorded, record
from .roofline import Estimate
from .streams import Precision

WARMUP, ROUNDS = 3, 11
# Clocks of events tick in half microseconds, and a boost clock may exceed what the data sheet says.
TOLERANCE = 0.05


class Timer(Protocol):
    """Runs something once and says how many seconds that took."""

    def __call__(self, run: Callable[[], None]) -> float: ...


class EventTimer:
    """By the device's own events, caches overwritten before. That takes long enough for the host to have launched what is
    timed by the time it is done: the device never waits for Python between the two events."""

    def __init__(self, device: torch.device, cache_bytes: int) -> None:
        self.device = device
        self.buffer = torch.empty(max(2 * cache_bytes, 1 << 30), dtype=torch.uint8, device=device)

    def __call__(self, run: Callable[[], None]) -> float:
        with torch.cuda.device(self.device):
            self.buffer.zero_()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            torch.cuda.synchronize(self.device)
            return first.elapsed_time(last) / 1e3


def median_seconds(run: Callable[[], None], timer: Timer, warmup: int = WARMUP, rounds: int = ROUNDS) -> float:
    """The median of several runs, after some that do not count: the first compiles."""
    for _ in range(warmup):
        timer(run)
    return median(timer(run) for _ in range(rounds))


def fits(shape: Shape, width: int, p: Precision, free: int) -> bool:
    """Whether the tensors of a batch are surely within ``free`` bytes: the table, x, y, their gradients and the halo."""
    nodes = 2 * (shape.rows + shape.halo) + shape.graph_hubs
    matrices = nodes * p.table.itemsize + (4 * shape.rows + shape.halo) * p.x.itemsize
    return matrices * width + 8 * shape.edges + 32 * nodes < 0.8 * free


Key = tuple[str, int, str, str]  # shape, width, precision, kernel
Launches = Callable[[Shape, int, Precision], dict[str, Recorded]]


def measure(
    cells: Iterable[tuple[Shape, int, Precision]], timer: Timer, launches: Launches, kernels: Iterable[str]
) -> Iterator[tuple[Key, float]]:
    """Seconds of every kernel in every cell. Launches run once in order before any is timed: some read what others wrote."""
    wanted = set(kernels)
    for shape, width, p in cells:
        found = launches(shape, width, p)
        for launch in found.values():
            launch.run()
        for name, launch in found.items():
            if name in wanted:
                yield (shape.name, width, p.name, name), median_seconds(launch.run, timer)
        del found, launch  # before the next cell's tensors are made


def launches_on(device: torch.device, gpu: Gpu) -> Launches:
    """Launches on ``device``. A shape's graph is kept until another one's is asked for."""
    held: dict[str, object] = {}

    def launches(shape: Shape, width: int, p: Precision) -> dict[str, Recorded]:
        if shape.name not in held:
            held.clear()
            held[shape.name] = make(shape, device)
        return record(held[shape.name], width, p, gpu.lanes)

    return launches


@dataclass(frozen=True)
class Comparison:
    """A measurement beside its estimate."""

    key: Key
    estimate: Estimate
    seconds: float

    @property
    def verdict(self) -> str:
        if self.seconds < self.estimate.floor * (1 - TOLERANCE):
            return "IMPOSSIBLE: faster than its bytes can move; a formula or the device's numbers are wrong"
        if self.seconds < self.estimate.low:
            return f"{self.seconds / self.estimate.low:.2f} of the low estimate"
        if self.seconds > self.estimate.high:
            return f"{self.seconds / self.estimate.high:.2f} of the high estimate"
        return "between"

    @property
    def line(self) -> str:
        e = self.estimate
        shape, width, precision, kernel = self.key
        times = f"{1e6 * e.low:9.1f} to {1e6 * e.high:9.1f} us estimated, {1e6 * self.seconds:9.1f} us measured"
        return (
            f"{shape:<10} {width:>4} {precision:<10} {kernel:<18} {times}, ratio {self.seconds / e.low:5.2f}  {self.verdict}"
        )


def compare(estimates: dict[Key, Estimate], measured: Iterable[tuple[Key, float]]) -> Iterator[Comparison]:
    for key, seconds in measured:
        yield Comparison(key, estimates[key], seconds)
