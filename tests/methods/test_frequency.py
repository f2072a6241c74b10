"""How many refreshes a step gets, where that is not fixed."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.history.history import History
from rest_triton.methods.frequency import Frequency, TargetAge, TargetDrift, frequency_for
from rest_triton.sampling.batch import ClusterBatches
from rest_triton.training.trainer import Trainer

from ..training.data import PTR, settings, small
from .test_rest import asked, rest_of


def auto(**changes: Any) -> Config:
    return settings(**(dict(method="gas+rest", frequency="auto", batch_size=1) | changes))


def begun(config: Config) -> Trainer:
    trainer = Trainer(config, small())
    trainer.begin()
    return trainer


def test_kinds() -> None:
    assert type(frequency_for(settings(method="gas+rest", frequency=3), 8)) is Frequency
    assert type(frequency_for(auto(), 8)) is TargetAge
    assert type(frequency_for(auto(target_drift=0.1), 8)) is TargetDrift


@pytest.mark.parametrize("order", ["uniform", "oldest"])
@pytest.mark.parametrize("target", [0.0, 0.5, 1.5])
def test_age_is_kept_by_no_more_refreshes_than_it_takes(order: str, target: float) -> None:
    """After every step the mean age of the rows, by their stamps, is within the target; one refresh less, and it was not."""
    trainer: Any = begun(auto(target_age=target, refresh_order=order))
    refresh, before = trainer.engine.refresh, []

    def watched(*args: Any, **options: Any) -> None:
        before.append(trainer.refresh._age(args[1], range(8)))
        refresh(*args, **options)

    trainer.engine.refresh = watched
    for number in (1, 2, 3):
        for batch in trainer.method.batches(number):
            trainer.update([batch])
            assert trainer.history.ages(0, trainer.step).mean <= target + 1e-6
    assert before and all(age > target for age in before)


def test_oldest_first_takes_fewer_refreshes() -> None:
    taken = {}
    for order in ("uniform", "oldest"):
        engine, _ = asked(rest_of(auto(target_age=1.5, refresh_order=order)), 60, batch_size=1)
        taken[order] = len(engine.refreshed)
    assert 0 < taken["oldest"] < taken["uniform"]


def test_nothing_to_do_where_rows_are_young_anyway() -> None:
    engine, _ = asked(rest_of(auto(target_age=100.0)), 20, batch_size=1)
    assert engine.refreshed == []


def test_an_evaluation_that_writes_the_tables_makes_rows_young() -> None:
    trainer: Any = begun(auto(target_age=2.0, eval_updates_history=True))
    trainer.epoch(1)
    assert trainer.refresh._age(trainer.step, range(8)) > 0
    trainer.evaluate()
    assert trainer.refresh._age(trainer.step, range(8)) == 0 == trainer.history.ages(0, trainer.step).mean


class Moving:
    """An engine whose rows move by ``pace`` of their size in every step that they wait for."""

    def __init__(self, pace: float) -> None:
        self.history = self.inputs = History(int(PTR[-1]), [3])  # of the inputs only the device is asked for
        self.history.tables[0].rows.fill_(1.0)
        self.pace, self.written = pace, [0] * 8

    def write(self, batch: Any, step: int) -> None:
        for k in batch.clusters:
            rows = self.history.tables[0].rows[int(PTR[k]) : int(PTR[k + 1])]
            rows *= 1 + self.pace * (step - self.written[k])
            self.written[k] = step

    def refresh(self, batch: Any, step: int, **options: Any) -> None:
        self.write(batch, step)


@pytest.mark.parametrize("pace", [0.001, 0.02])
def test_drift_is_kept_by_refreshing_as_often_as_rows_move(pace: float) -> None:
    engine: Any = Moving(pace)
    refresh = rest_of(auto(target_drift=0.05, refresh_order="oldest"))
    drifts, batches = [], ClusterBatches(PTR, 1, seed=3)
    for step in range(1, 241):
        batch = batches.epoch(step // 8)[step % 8]
        refresh.before(engine, batch, step)
        drifts.append(pace * max(step - at for at in engine.written))
        engine.write(batch, step)
    refreshes = refresh.refreshes / 240
    if pace == 0.001:
        assert refreshes < 0.05  # they never move by the target
    else:
        # Rows reach the target in two and a half steps. No row waits much longer, and none is refreshed at every step.
        assert 0.5 < refreshes < 5.0
        assert sum(drifts[-80:]) / 80 < 0.12  # of the oldest rows; 0.2 without refreshes


def test_drift_settles_between_nothing_and_everyone() -> None:
    trainer = begun(auto(target_drift=0.2, lr=0.05))
    found = [trainer.epoch(number)["frequency"] for number in range(1, 12)]
    assert 0 < found[-1] < 7
    wide = begun(auto(target_drift=1e6, lr=0.05))
    assert [wide.epoch(number)["frequency"] for number in (1, 2)] == [0, 0]


@pytest.mark.parametrize("changes", [dict(target_age=1.0), dict(target_drift=0.1)], ids=["age", "drift"])
def test_it_goes_on_where_it_was(changes: dict[str, Any]) -> None:
    """Taken up from its state, a run refreshes as it would have."""
    config = auto(**changes, lr=0.05)
    whole, first = begun(config), begun(config)
    for number in (1, 2, 3):
        whole.epoch(number)
    for number in (1, 2):
        first.epoch(number)
    second = begun(config)
    second.load(deepcopy(first.state()))
    for mine, theirs in zip(second.history.tables, first.history.tables, strict=True):
        mine.rows.copy_(theirs.rows)
        mine.stamp.copy_(theirs.stamp)
    assert second.epoch(3) == first.epoch(3)
    for mine, theirs in zip(second.history.tables, whole.history.tables, strict=True):
        assert torch.equal(mine.rows, theirs.rows)


def test_drift_goes_on_from_a_checkpoint_where_the_tables_are_elsewhere() -> None:
    """A checkpoint is loaded on the CPU: the rows that it remembers are moved to the run's device."""
    engine: Any = Moving(0.02)
    first = frequency_for(auto(target_drift=0.05), 8)
    batch = ClusterBatches(PTR, 1).batch([2])
    first.observe(engine, batch, 1, 1.0)
    moved = frequency_for(auto(target_drift=0.05), 8)
    moved.load(deepcopy(first.state()))
    asked_for: list[torch.device] = []

    class Elsewhere:
        """A history on another device: it refuses nodes of this one, as the ops do."""

        tables = engine.history.tables

        def read(self, table: int, nodes: torch.Tensor) -> torch.Tensor:
            asked_for.append(nodes.device)
            assert nodes.device.type == "meta"
            return torch.empty(nodes.numel(), 3, device="meta")

    elsewhere: Any = Moving(0.02)
    elsewhere.history, elsewhere.inputs = Elsewhere(), torch.empty(0, device="meta")
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta"):  # by float() of the drift, after all
        moved.observe(elsewhere, batch.on("meta"), 2, 1.0)
    assert asked_for == [torch.device("meta")]
