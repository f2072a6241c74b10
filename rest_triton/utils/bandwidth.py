"""How fast rows come and go on a device: about a second of measuring, enough to see that something is amiss.

``pytest bench/`` measures properly, beside what one would use otherwise.
"""

import time
from collections.abc import Callable, Iterator

import torch

from ..ops import Adjacency, gather_rows, history_spmm

NODES, ROWS, DEGREE, WIDTH = 200_000, 16_000, 16, 128  # a table of 100 MB
SECONDS = 0.2  # for each
LEAST = 3  # rounds


def best_seconds(run: Callable[[], object], device: torch.device, seconds: float = SECONDS) -> float:
    """The best time of several rounds, after one that is not counted; on a GPU by its own clock."""
    run()
    best, rounds, begin = float("inf"), 0, time.perf_counter()
    while rounds < LEAST or time.perf_counter() - begin < seconds:
        best = min(best, _timed(run, device))
        rounds += 1
    return best


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize(device)
        return first.elapsed_time(last) / 1e3


def bandwidths(device: torch.device) -> Iterator[str]:
    """A line for each measurement, such as ``copy  12.3 GB/s read and written``."""
    random = torch.Generator().manual_seed(0)
    table = torch.randn(NODES, WIDTH, device=device)
    rows = torch.randperm(NODES, generator=random)[:ROWS].to(device)
    other, out = torch.empty_like(table), torch.empty(ROWS, WIDTH, device=device)
    col = torch.randint(0, NODES, (NODES * DEGREE,), generator=random, dtype=torch.int32).to(device)
    adj = Adjacency(torch.arange(0, NODES * DEGREE + 1, DEGREE, device=device), col)
    position = ~torch.arange(NODES, dtype=torch.int32, device=device)

    def line(what: str, nbytes: int, run: Callable[[], object], remark: str) -> str:
        return f"{what:<22}  {nbytes / best_seconds(run, device) / 1e9:.1f} GB/s {remark}"

    yield line("copy", 2 * table.nbytes, lambda: other.copy_(table), "read and written")
    yield line("gather_rows", 2 * out.nbytes, lambda: gather_rows(table, rows, out=out), "read at random and written")
    aggregated = ROWS * DEGREE * WIDTH * table.itemsize
    yield line("history_spmm", aggregated, lambda: history_spmm(adj, rows, position, None, table), "of rows read")
    if device.type == "cuda":
        pinned = torch.empty(table.shape, pin_memory=True)
        yield line("pinned host to device", table.nbytes, lambda: other.copy_(pinned, non_blocking=True), "over the bus")
