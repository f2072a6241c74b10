"""The runner: who is wrong gets no time, who fails says why, and what was found can be read again."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.limits import Limit
from bench.measure import ENOUGH, LEAST, Report, Timing, in_turn
from bench.moved import Moved, with_both
from bench.results import read, write
from bench.runner import (
    MORE,
    MOST,
    OURS,
    ROUNDINGS,
    Found,
    Job,
    Variant,
    against,
    bound,
    ceiling_of,
    examine,
    relative_error,
    run,
)

CPU = torch.device("cpu")
EPS = torch.finfo(torch.float32).eps


def nothing() -> None: ...


def job(*others: Variant, ours: Callable[[Tensor], Tensor] = torch.sin, limits: tuple[Limit, ...] = ()) -> Job:
    """sin and its gradient, by ours and by torch, and by others."""
    x = torch.linspace(-1, 1, 100).requires_grad_()
    exact = x.detach().double()
    variants = [Variant(OURS, lambda: ours(x), (x,)), Variant("torch", lambda: x.sin(), (x,))]
    grad = torch.ones(100)
    return Job(
        "sin", "100 numbers", "sin", [*variants, *others], against(exact.sin(), exact.cos()),
        with_both(Moved(800), Moved(1200)), limits, grad,
    )  # fmt: skip


def by(change: Callable[[Tensor], Tensor]) -> Variant:
    x = torch.linspace(-1, 1, 100).requires_grad_()
    return Variant("other", lambda: change(x), (x,))


def test_every_mode_of_every_variant_has_a_record() -> None:
    report = Report()
    found = run(job(), report, rounds=2)
    assert list(found) == [(what, mode) for what in (OURS, "torch") for mode in ("forward", "backward", "both")]
    assert list(found.values()) == report.records and not report.wrong
    for (_, mode), record in found.items():
        assert record.seconds and record.seconds > 0 and record.noise is not None and record.note == ""
        assert record.error is not None and record.error < 1e-6
        assert record.bytes == {"forward": 800, "backward": 1200, "both": 2000}[mode]
        # sin's result; in backward, cos and the gradient beside it
        assert record.memory is not None and (record.memory == 400 if mode == "forward" else 800 <= record.memory <= 1600)
    both = found[OURS, "both"].seconds, found[OURS, "backward"].seconds
    assert both[0] > both[1]


@pytest.mark.parametrize(
    "change",
    [lambda x: x.sin() * 1.001, lambda x: x.sin().index_fill(0, torch.tensor([7]), math.nan), lambda x: x.sin()[:50]],
    ids=["off", "nan", "shape"],
)
def test_a_wrong_variant_has_no_time(change: Callable[[Tensor], Tensor]) -> None:
    report = Report()
    found = run(job(by(change)), report, rounds=1)
    assert found["torch", "forward"].seconds and found[OURS, "both"].seconds
    for mode in ("forward", "backward", "both"):
        assert found["other", mode].seconds is None and found["other", mode].gbps is None
    text = "\n".join(report.lines)
    assert report.wrong and "WRONG" in text and "is allowed" in report.wrong[0].note
    if change(torch.ones(100)).shape != (100,):
        assert "not run" in text  # the gradient of ones does not fit its result


def test_a_wrong_gradient_leaves_forward_its_time() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad  # not times cos

    report = Report()
    found = run(job(by(Bad.apply)), report, rounds=1)
    assert found["other", "forward"].seconds and found["other", "forward"].error == found["torch", "forward"].error
    assert [r.mode for r in report.wrong] == ["backward", "both"]
    assert all(r.seconds is None and "backward is off" in r.note for r in report.wrong)


def test_ours_wrong_is_reported_and_fails() -> None:
    report = Report()
    with pytest.raises(AssertionError, match="sin on 100 numbers: ours has no right result: WRONG"):
        run(job(ours=lambda x: x.sin() + 1e-3), report, rounds=1)
    assert [r.what for r in report.wrong] == [OURS] * 3


def test_others_that_are_all_wrong_do_not_excuse_ours() -> None:
    wrong = job(ours=lambda x: x.sin() + 0.01)
    wrong = replace(wrong, variants=[wrong.variants[0], by(lambda x: x.sin() + 0.01)])
    with pytest.raises(AssertionError, match="no right result"):
        run(wrong, Report(), rounds=1)
    assert MOST + ROUNDINGS * EPS < 0.01 and MORE >= 1


def test_what_fails_says_why_and_stops_nobody() -> None:
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("no compiler here\nand much more")

    report = Report()
    found = run(job(by(fails)), report, rounds=1)
    assert found["other", "forward"].note == "not run: RuntimeError: no compiler here"
    assert found["other", "both"].seconds is None and found["torch", "both"].seconds
    assert not report.wrong  # it is not wrong, it is not there


def test_torch_compile_that_cannot_is_such_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise OSError("no C++ compiler")

    x = torch.linspace(-1, 1, 100).requires_grad_()
    variant = Variant("torch", lambda: x.sin(), (x,)).compiled(broken)  # type: ignore[arg-type]
    assert variant.what == "torch.compile: torch"
    found = examine(variant, job())
    assert found.note.startswith("not run: ") and not found.errors


def test_an_op_without_gradient_has_only_forward() -> None:
    whole = job()
    forward = replace(whole, variants=[Variant(v.what, v.forward) for v in whole.variants])
    assert {mode for _, mode in run(forward, Report(), rounds=1)} == {"forward"}


def test_results_are_held_to_torchs_own() -> None:
    for_scale = Variant("for scale", torch.ones, errors=lambda got: [0.0])
    whole = job(by(torch.sin))
    whole = replace(whole, variants=[whole.variants[0], for_scale, *whole.variants[1:]])
    found = {"for scale": 0.0, OURS: 1e-3, "torch": 1e-6, "other": 1e-9}
    as_found = {what: Found({"forward": error}) for what, error in found.items()}
    assert bound(whole, as_found, "forward") == pytest.approx(MORE * 1e-6 + ROUNDINGS * EPS)
    as_found["torch"] = Found({"forward": 0.5})
    assert bound(whole, as_found, "forward") == pytest.approx(MOST + ROUNDINGS * EPS)
    assert bound(whole, as_found | {"torch": Found(note="not run")}, "forward") == ROUNDINGS * EPS


def test_a_variant_for_scale_has_errors_and_bytes_of_its_own() -> None:
    other = Variant("for scale", lambda: torch.ones(3), errors=lambda got: [0.0], moved={"forward": Moved(77)})
    limit = Limit("copy", "", 800, nothing)
    whole = job(limits=(limit,))
    found = run(replace(whole, variants=[whole.variants[0], other, whole.variants[1]]), Report(), rounds=1)
    assert found["for scale", "forward"].bytes == 77 and found["for scale", "forward"].of_ceiling is None


def test_ceilings() -> None:
    def limit(mode: str, nbytes: int, seconds: float) -> tuple[Limit, Timing]:
        return Limit(f"{mode} {seconds}", mode, nbytes, nothing), Timing((seconds, 2 * seconds))

    ways = [limit("forward", 4 * 10**9, 4.0), limit("forward", 4 * 10**9, 2.0), limit("backward", 10**9, 1.0)]
    assert ceiling_of("forward", ways) == ("forward 2.0", 2.0)
    assert ceiling_of("backward", ways) == ("backward 1.0", 1.0)
    assert ceiling_of("both", ways) == ("forward 2.0", pytest.approx(5 / 3))  # 5 GB in 3 s
    assert ceiling_of("both", ways[:2]) == ("", None)
    assert ceiling_of("both", [limit("", 10**9, 1.0)]) == (" 1.0", 1.0)


def test_limits_are_records_and_shares_of_them_are_shown() -> None:
    report = Report()
    limits = (Limit("copy", "", 800, lambda: torch.ones(100)),)
    found = run(job(limits=limits), report, rounds=1)
    assert found["limit: copy", "any"].seconds and found[OURS, "forward"].ceiling_name == "copy"
    share = found[OURS, "forward"].of_ceiling
    assert share is not None and any(f"{100 * share:.0f} %" in line for line in report.lines)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    report = Report()
    run(job(by(lambda x: x.cos()), limits=(Limit("copy", "", 800, nothing),)), report, rounds=1)
    as_json, _ = write(tmp_path / "found", {"processor": "this one"}, report.records)
    assert read(as_json) == ({"processor": "this one"}, report.records)


def test_the_slow_leave_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.measure.laps", lambda steps, device: [step() for step in steps])
    times = in_turn({"fast": [lambda: 0.001, lambda: 0.002], "slow": [lambda: ENOUGH]}, CPU, rounds=10)
    first, second, whole = times["fast"]
    assert (first.best, second.best, whole.best) == pytest.approx((0.001, 0.002, 0.003))
    assert len(whole.rounds) == 10 and len(times["slow"][0].rounds) == LEAST


def test_errors_are_relative_to_the_largest() -> None:
    wanted = torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([1.5, -4.0]), wanted) == pytest.approx(0.125)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.zeros(3), wanted) == math.inf
    assert relative_error(torch.tensor([math.nan, 0.0]), wanted) == math.inf
