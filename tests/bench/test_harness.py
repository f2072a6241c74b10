"""The harness: a wrong result has no time, what fails says why, and ours must be right."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.bench_activate import Layer, off_pattern, off_table
from bench.cases import Case, build
from bench.harness import ENOUGH, LEAST, OURS, Bench, Limit, Variant, against, relative_error

CPU = torch.device("cpu")
X = torch.linspace(-1, 1, 100).requires_grad_()
EXACT = X.detach().double()
GRAD = torch.ones(100)


class FakeBenchmark:
    """What the harness uses of pytest-benchmark: each round is one call of setup and one of the target."""

    def __init__(self) -> None:
        self.group, self.extra_info, self.rounds = "", {}, 0

    def pedantic(self, target: Callable, args: tuple, setup: Callable[[], None], rounds: int) -> None:
        self.rounds = rounds
        for _ in range(rounds):
            setup()
            target(*args)


@pytest.fixture
def bench() -> Bench:
    return Bench(FakeBenchmark(), False, "synthetic:arxiv", "data", CPU)


def by(name: str, change: Callable[[Tensor], Tensor]) -> Variant:
    return Variant(name, lambda: change(X), (X,))


def run(bench: Bench, *variants: Variant, grad: Tensor | None = GRAD) -> dict[str, float]:
    bench.op("sin", "100 numbers", variants, against(EXACT.sin(), EXACT.cos()), [Limit("a copy", 800, EXACT.clone)], grad)
    return bench.benchmark.extra_info["seconds"]


class NoChainRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]  # not times cos


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "off": lambda x: x.sin() * 1.001,
    "nan": lambda x: x.sin().index_fill(0, torch.tensor([7]), math.nan),
    "gradient": NoChainRule.apply,
}


@pytest.mark.parametrize("grad", [None, GRAD], ids=["forward", "both"])
def test_what_is_right_is_timed(bench: Bench, grad: Tensor | None) -> None:
    seconds = run(bench, by(OURS, torch.sin), by("torch", lambda x: x.sin()), grad=grad)
    assert list(seconds) == [OURS, "torch"] and min(seconds.values()) > 0
    info = bench.benchmark.extra_info
    assert info["case"] == "100 numbers" and list(info["limits"]) == ["a copy"]
    assert bench.benchmark.group == f"sin, {'forward' if grad is None else 'both'}"
    assert any("x" in line and "torch" in line for line in bench.lines) and any("GB/s" in line for line in bench.lines)


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_wrong_alternative_has_no_time(bench: Bench, change: Callable[[Tensor], Tensor]) -> None:
    assert list(run(bench, by(OURS, torch.sin), by("other", change))) == [OURS]
    assert any("other: WRONG: off by" in line for line in bench.lines)


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_ours_must_be_right(bench: Bench, change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AssertionError, match="sin, 100 numbers: ours is WRONG"):
        run(bench, by(OURS, change))
    assert not bench.benchmark.extra_info


def test_a_wrong_gradient_does_not_matter_forward(bench: Bench) -> None:
    assert list(run(bench, by(OURS, torch.sin), by("other", NoChainRule.apply), grad=None)) == [OURS, "other"]


def test_an_alternative_that_fails_says_why(bench: Bench) -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("no compiler here\nand much more")

    assert list(run(bench, by(OURS, torch.sin), by("other", fails))) == [OURS]
    assert "  other: not run: RuntimeError: no compiler here" in bench.lines
    with pytest.raises(RuntimeError, match="no compiler"):
        run(bench, by(OURS, fails))


def test_runs_take_turns_and_slow_ones_leave_early(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []

    def takes(name: str, seconds: float) -> Callable[[], None]:
        def step() -> None:
            now[0] += seconds
            order.append(name)

        return step

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    best = bench.in_turn("turns", "two", {OURS: takes("ours", 1.0), "slow": takes("slow", ENOUGH)}, rounds=5)
    assert best == {OURS: pytest.approx(1.0), "slow": pytest.approx(ENOUGH)}
    assert order == ["ours", "slow", *["slow", "ours"] * LEAST, "ours", "ours"]  # the first two warm up


def test_errors_are_relative_to_the_largest_value() -> None:
    wanted = torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([1.5, -4.0]), wanted) == pytest.approx(0.125)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.zeros(3), wanted) == math.inf
    assert relative_error(torch.tensor([math.nan, 0.0]), wanted) == math.inf


def test_dropout_is_checked_by_what_passed() -> None:
    _, b = build(Case("uniform", 16), tiny=True, graph="", root="", device=CPU)
    layer = Layer(b)
    inputs, grad = (layer.h, layer.norm.weight, layer.norm.bias), torch.randn_like(b.x)
    check = layer.check(inputs, True, grad)

    def error(y: Tensor) -> float:
        return check([y.detach(), *torch.autograd.grad(y, inputs, grad)])

    assert error(layer.ours_with_moments()) < 1e-5 and error(layer.torchs_with_moments()) < 1e-5
    assert error(layer.torchs_with_moments() * 2) > 0.5
    assert error(layer.torchs_with_moments() * 0) == math.inf  # no element passed
    y = layer.torchs_with_moments()
    assert error(torch.relu(layer.norm(layer.h))) == math.inf  # every element passed
    assert not layer.check(inputs, True, None)([y.detach()]) <= 1.0  # the check before has cleared the table
    z, half = torch.tensor([[1.0, -1.0] * 500]), (torch.arange(1000) % 4 == 0)[None]
    assert off_pattern(z, half) == 0 and off_pattern(z, half.roll(1)) == math.inf  # the negative ones passed
    a = torch.rand(10, 4)
    assert off_table(a.double(), a.bfloat16()) == 0 and off_table(a.double(), a + 0.1) > 0.01
