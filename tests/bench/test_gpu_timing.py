"""Measuring against estimates: the bookkeeping with a clock that is made up, the rest where there is a GPU."""

from collections.abc import Callable

import pytest
import torch

from bench import estimate as command
from bench.binaries import stored
from bench.gpu_shapes import SHAPES, Shape, make
from bench.gpu_timing import Comparison, compare, fits, launches_on, measure, median_seconds
from bench.gpus import GPUS
from bench.launches import record, tiny
from bench.roofline import Estimate
from bench.streams import PRECISIONS
from bench.traffic import KERNELS, binary_of
from rest_triton.ops import Adjacency, history_spmm

SMALL = Shape("small", "for running", 6, 60, 5, 6, 0.6, 20)


class FakeTimer:
    """Takes the times it is given, one after the other, and runs nothing."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.asked = seconds, 0

    def __call__(self, run: Callable[[], None]) -> float:
        self.asked += 1
        return self.seconds[(self.asked - 1) % len(self.seconds)]


def expected(low: float, high: float, floor: float) -> Estimate:
    return Estimate(low, high, "memory", "memory", floor, {}, 1, 1)


def test_the_median_counts_after_warming_up() -> None:
    timer = FakeTimer([100.0, 100.0, 3.0, 1.0, 2.0])
    assert median_seconds(lambda: None, timer, warmup=2, rounds=3) == 2.0
    assert timer.asked == 5


class Fake:
    """A launch that only notes that it ran."""

    def __init__(self, log: list[str], name: str) -> None:
        self.run = lambda: log.append(name)


def test_everything_runs_once_before_anything_is_timed() -> None:
    """The hub kernels read what spmm wrote."""
    log: list[str] = []
    launches = {name: Fake(log, name) for name in ("spmm", "spmm_hub_segment", "other")}
    shape, p = SHAPES[0], PRECISIONS[0]
    found = list(measure([(shape, 128, p)], FakeTimer([2.0]), lambda *cell: launches, ["spmm", "spmm_hub_segment"]))
    assert log == ["spmm", "spmm_hub_segment", "other"]
    assert found == [(("arxiv", 128, "fp32", name), 2.0) for name in ("spmm", "spmm_hub_segment")]


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(0.5, "IMPOSSIBLE"), (1.0, "0.50 of the low estimate"), (3.0, "between"), (8.0, "2.00 of the high estimate")],
)
def test_a_measurement_is_judged_by_its_estimate(seconds: float, verdict: str) -> None:
    key = ("arxiv", 128, "fp32", "spmm")
    (comparison,) = compare({key: expected(2.0, 4.0, 0.9)}, [(key, seconds)])
    assert comparison.verdict.startswith(verdict)
    assert f"ratio {seconds / 2:5.2f}" in comparison.line


def test_the_command_compares_on_a_gpu_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """All of it but the GPU: times half as long as bytes allow give an exit status of 1."""
    gpu = GPUS[1]
    factor = 0.5

    def measured(here, estimates, shapes=SHAPES) -> list[Comparison]:
        return list(compare(estimates, [(key, factor * e.floor) for key, e in estimates.items()]))

    monkeypatch.setattr(command, "at_hand", lambda: gpu)
    monkeypatch.setattr(command, "measured", measured)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert command.main(["--stored", "--gpu", "H100"]) == 1
    assert "Measured on NVIDIA H100 80GB HBM3" in capsys.readouterr().out
    factor = 3.0
    assert command.main(["--stored", "--gpu", "H100"]) == 0
    assert command.main(["--stored", "--gpu", "A100"]) == 0, "nothing is measured for another GPU than the one at hand"
    assert "Measured" not in capsys.readouterr().out.split("# The Triton kernels")[-1]


def test_every_kernel_is_recorded_by_its_name() -> None:
    assert set(tiny(128, PRECISIONS[0], 32)) == {binary_of(kernel) for kernel in KERNELS}


def test_what_does_not_fit_is_left_out() -> None:
    shape, p = SHAPES[3], PRECISIONS[0]
    assert fits(shape, 256, p, 80 << 30)
    assert not fits(shape, 256, p, 8 << 30)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU kernels are compiled, not interpreted")
def test_a_recorded_launch_computes_what_the_op_computes() -> None:
    """Under the interpreter, so on few rows."""
    graph = make(SMALL)
    launch = record(graph, 4, PRECISIONS[0], 32)["spmm"]
    x = launch.arguments["x_ptr"].normal_()
    history = launch.arguments["history_ptr"].normal_()
    launch.run()
    scale = torch.ones(graph.nodes)
    adj = Adjacency(graph.rowptr, graph.col, row_scale=scale, col_scale=scale)
    wanted = history_spmm(adj, graph.rows, graph.position, x, history)
    torch.testing.assert_close(launch.arguments["out_ptr"], wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU kernels are compiled, not interpreted")
def test_every_kernel_can_be_run_by_itself() -> None:
    """As on a GPU, but interpreted, on few rows, without hubs and without far tables."""
    launches = launches_on(torch.device("cpu"), GPUS[1])
    found = dict(measure([(SMALL, 4, PRECISIONS[0])], FakeTimer([1.0]), launches, KERNELS))
    away = {kernel for kernel in KERNELS if "hub" in kernel or "far" in kernel}
    assert {key[3] for key in found} == set(KERNELS) - away


@pytest.mark.gpu
def test_no_kernel_is_faster_than_its_bytes_can_move(capsys: pytest.CaptureFixture) -> None:
    gpu = command.at_hand()
    if gpu is None:
        pytest.skip(f"{torch.cuda.get_device_name()} is not in bench/gpus.py")
    _, binaries = stored()
    with capsys.disabled():
        print()
        found = command.measured(gpu, command.estimates(gpu, binaries, SHAPES[:1]), SHAPES[:1])
    assert {comparison.key[3] for comparison in found} == set(KERNELS)
    impossible = [comparison.line for comparison in found if comparison.verdict.startswith("IMPOSSIBLE")]
    assert not impossible, "\n".join(impossible)
