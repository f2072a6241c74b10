"""The clock and the meter of memory: known allocations, and a made-up GPU."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import device
from bench.device import laps, peaks
from rest_triton.ops import gather_rows, halo, history_spmm

from .batches import scattered

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_peak_of_known_allocations() -> None:
    def goes_up_and_down() -> torch.Tensor:
        first = torch.empty(1000, 250)  # 1 MB
        second = torch.empty(500, 250)  # half a MB: the peak
        del first
        third = torch.empty(750, 250)
        del second
        return third  # three quarters stay

    assert peaks([goes_up_and_down], CPU) == [1_500_000]
    assert peaks([goes_up_and_down], CPU) == [1_500_000]  # malloc may have kept what was freed; it does not matter


def test_what_a_step_leaves_counts_in_the_next() -> None:
    steps = [lambda: torch.empty(1000), lambda: torch.empty(500)]
    assert peaks(steps, CPU) == [4000, 6000]
    dropped = [lambda: torch.empty(1000).numel(), lambda: torch.empty(500)]
    assert peaks(dropped, CPU) == [4000, 2000]


def test_peak_of_ours() -> None:
    b = scattered(width=64)
    assert peaks([lambda: history_spmm(b.adj, b.rows, b.position, b.x, b.table)], CPU) == [b.x.nbytes]
    assert peaks([lambda: gather_rows(b.table, b.rows, dtype=torch.bfloat16)], CPU) == [len(b.rows) * 64 * 2]
    (of_halo,) = peaks([lambda: halo(b.adj, b.rows)], CPU)
    assert 8 * len(b.halo) < of_halo < 8 * len(b.halo) + 4096  # the result and small bitmaps


def test_peak_of_a_backward() -> None:
    x, made = torch.randn(1000, requires_grad=True), []
    forward, backward = peaks([lambda: made.append(x.exp()), lambda: torch.autograd.grad(made.pop().sum(), x)], CPU)
    assert forward == 4000  # exp, which backward needs
    assert backward >= 8000  # and the gradient beside it


AGREES = """
import ctypes, sys, torch
from pathlib import Path
from bench.device import peaks
from bench.shapes import uniform
from rest_triton.ops import history_spmm

def now(what):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(what))

b = uniform(40_000, 5, 100_000, 128, 0.7)
run = lambda: history_spmm(b.adj, b.rows, b.position, b.x, b.table)
run()
(metered,) = peaks([run], torch.device("cpu"))
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = now("VmRSS:")
result = run()
print(metered, now("VmHWM:") - before)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not let its peak be reset")
def test_the_system_sees_as_much() -> None:
    """Nothing of size is taken behind torch's back: not by the kernel, nor by what it calls."""
    found = subprocess.run([sys.executable, "-c", AGREES], capture_output=True, text=True, check=True, cwd=ROOT)
    metered, held = map(int, found.stdout.split())
    assert metered == 40_000 * 128 * 4 and abs(held - metered) < 0.1 * metered


def test_the_meter_says_when_it_sees_nothing() -> None:
    with pytest.raises(RuntimeError, match="0 of 2 steps"):
        device._highest([], 2)


def test_laps_are_those_of_each_step() -> None:
    first, second = laps([lambda: time.sleep(0.02), lambda: None], CPU)
    assert 0.02 <= first < 0.2 and second < 0.01


class FakeGpu:
    """What is used of torch.cuda: a clock that goes on by what steps say, and memory likewise."""

    def __init__(self) -> None:
        self.now, self.held, self.most, self.log = 0.0, 100, 100, []

    def work(self, milliseconds: float, peak: int, kept: int) -> None:
        self.now += milliseconds
        self.most = max(self.most, self.held + peak)
        self.held += kept

    def module(self) -> Any:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now
                gpu.log.append("event")

            def elapsed_time(self, other: "Event") -> float:
                return other.at - self.at

        class Device:
            def __init__(self, which: torch.device) -> None: ...

            def __enter__(self) -> None: ...

            def __exit__(self, *args: object) -> None: ...

        def reset(which: torch.device) -> None:
            gpu.most = gpu.held

        return SimpleNamespace(
            Event=Event, device=Device, synchronize=lambda which: gpu.log.append("synchronize"),
            memory_allocated=lambda which: gpu.held, max_memory_allocated=lambda which: gpu.most,
            reset_peak_memory_stats=reset,
        )  # fmt: skip


def test_a_gpu_is_timed_by_its_events_and_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    cold = SimpleNamespace(zero_=lambda: gpu.log.append("cold"))
    monkeypatch.setattr(torch, "cuda", gpu.module())
    monkeypatch.setattr(device, "_cold_buffer", lambda which: cold)
    steps = [lambda: gpu.work(3.0, 0, 0), lambda: gpu.work(5.0, 0, 0)]
    assert laps(steps, torch.device("cuda")) == pytest.approx([0.003, 0.005])
    assert gpu.log == ["cold", "event", "event", "event", "synchronize"]


def test_memory_of_a_gpu_is_its_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    monkeypatch.setattr(torch, "cuda", gpu.module())
    steps = [lambda: gpu.work(0, 50, 20), lambda: gpu.work(0, 10, 0)]
    assert peaks(steps, torch.device("cuda")) == [50, 30]
