"""Batches that a thread prepares while others are computed: the same results, and no error is lost."""

import threading
from typing import Any

import pytest
import torch

from rest_triton.sampling.batch import Batch
from rest_triton.training.ahead import one_ahead
from rest_triton.training.diagnosis import NotFinite

from ..history.runs import NODES, Run, same_results

METHODS: dict[str, dict[str, Any]] = {
    "sage": dict(batch_nodes=7, fanout="2"),
    "vrgcn": dict(batch_nodes=7, fanout="2"),
    "vrgcn+rest": dict(batch_nodes=7, fanout="2"),
    "graphfm-ib": dict(batch_nodes=7, fanout="2"),
    "graphfm-ib+rest-is": dict(batch_nodes=7, fanout="2"),
    "fastgcn": dict(batch_nodes=7, layer_nodes=30),
    "ladies": dict(batch_nodes=7, layer_nodes=30),
    "cluster": dict(),
    "saint-node": dict(subgraph_nodes=20, coverage=2.0),
    "saint-edge": dict(subgraph_nodes=10, coverage=2.0),
    "saint-walk": dict(subgraph_nodes=8, coverage=2.0),
    "sgc": dict(batch_nodes=7),
}


def made(method: str, *, ahead: bool, **more: Any) -> Run:
    run = Run("gcn", method=method, **(METHODS[method] | more))
    assert run.trainer.method.ahead
    run.trainer.ahead = ahead
    return run


def trained(run: Run, *epochs: int) -> list[float]:
    return [run.trainer.epoch(number)["loss"] for number in epochs]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rest_triton ahead")]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_results_are_bitwise_the_same(method: str, accumulate: int) -> None:
    plain, ahead = (made(method, ahead=on, accumulate=accumulate) for on in (False, True))
    before = torch.random.get_rng_state()
    assert trained(plain, 1, 2, 3) == trained(ahead, 1, 2, 3) and same_results(plain, ahead)
    assert torch.equal(torch.random.get_rng_state(), before) and not threads()
    free = [position for maps in ahead.engine.maps.values() for position in maps._free]
    assert all(torch.equal(position, ~torch.arange(NODES, dtype=torch.int32)) for position in free)


@pytest.mark.parametrize("method", ["sage", "cluster", "saint-walk"])
def test_a_resumed_run_goes_on_the_same(method: str) -> None:
    whole, first, second = (made(method, ahead=True) for _ in range(3))
    losses = trained(whole, 1, 2)
    assert trained(first, 1) == losses[:1]
    second.trainer.load(first.trainer.state())
    assert trained(second, 2) == losses[1:] and same_results(whole, second)


def test_batches_that_depend_on_the_last_step_are_not_prepared_ahead() -> None:
    for method in ("gas", "lmc", "mvs", "refresh", "full"):
        assert not Run("gcn", method=method).trainer.method.ahead


@pytest.mark.parametrize(("count", "on"), [(1, False), (2, False), (3, True), (8, True)])
def test_it_is_on_where_there_are_cores(monkeypatch: pytest.MonkeyPatch, count: int, on: bool) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert Run("gcn", method="sgc", **METHODS["sgc"]).trainer.ahead is on
    assert not Run("gcn", method="mvs", batch_nodes=20).trainer.ahead


def test_an_error_is_raised_at_its_batch() -> None:
    """The steps before it have been done, in both ways."""
    steps = []
    for on in (False, True):
        run = made("sage", ahead=on)
        prepare, count = run.trainer.method.prepare, iter(range(100))

        def fails(*arguments: Any, prepare: Any = prepare, count: Any = count) -> Batch:
            if next(count) == 3:
                raise RuntimeError("no memory for the fourth batch")
            made: Batch = prepare(*arguments)
            return made

        run.trainer.method.prepare = fails  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="no memory for the fourth batch"):
            run.trainer.epoch(1)
        steps.append(run.trainer.step)
        assert not threads()
    assert steps == [3, 3]


def test_a_loss_that_is_not_finite_ends_the_thread() -> None:
    run = made("sage", ahead=True)
    with torch.no_grad():
        next(run.model.parameters()).fill_(torch.nan)
    with pytest.raises(NotFinite):
        run.trainer.epoch(1)
    assert not threads() and run.trainer.step == 0


def test_one_is_made_ahead_and_not_two() -> None:
    asked, wanted = list[int](), threading.Event()

    def make(index: int) -> tuple[int, str]:
        asked.append(index)
        if index == 1:
            wanted.set()
        return index, threading.current_thread().name

    results = one_ahead(make, 4)
    assert asked == []
    first = next(results)
    assert wanted.wait(10), "the next one is made before it is asked for"
    assert asked == [0, 1]
    found = [first, *results]
    assert [index for index, _ in found] == [0, 1, 2, 3] and all(name.startswith("rest_triton ahead") for _, name in found)
    assert list(one_ahead(make, 0)) == []
