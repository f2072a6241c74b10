"""REST: what is refreshed before which batch."""

from collections import Counter
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.methods.full_refresh import FullRefresh
from rest_triton.methods.registry import ClusterRefresh, HaloRefresh, Refresh, method_for, refresh_for
from rest_triton.sampling.batch import Batch, ClusterBatches
from rest_triton.training.trainer import Trainer

from ..training.data import PTR, settings, small


class Watched:
    """An engine that only notes what it is asked to refresh."""

    def __init__(self) -> None:
        self.refreshed: list[Batch] = []
        self.modes: list[bool] = []
        self.draws: list[int] = []

    def refresh(self, batch: Batch, step: int, *, draw: int, training: bool, running: bool, backward: bool) -> None:
        assert not backward and not running
        self.refreshed.append(batch)
        self.modes.append(training)
        self.draws.append(draw)


def rest_of(config: Config) -> Any:
    """What a configuration refreshes, on the small graph."""
    return refresh_for(config, method_for(config, PTR))


def asked(refresh: Any, steps: int, batch_size: int = 2) -> tuple[Watched, list[Batch]]:
    engine, batches = Watched(), ClusterBatches(PTR, batch_size, seed=9)
    trained = [batch for epoch in range(steps) for batch in batches.epoch(epoch)][:steps]
    for step, batch in enumerate(trained, start=1):
        refresh.before(engine, batch, step)
    return engine, trained


@pytest.mark.parametrize("frequency", [1, 3])
def test_uniform_takes_all_clusters_equally_often(frequency: int) -> None:
    refresh = rest_of(settings(method="gas+rest", frequency=frequency))
    engine, trained = asked(refresh, 40)
    assert len(engine.refreshed) == 40 * frequency
    times = Counter(cluster for batch in engine.refreshed for cluster in batch.clusters)
    assert len(times) == 8 and max(times.values()) - min(times.values()) <= 5 * frequency
    assert engine.draws[:frequency] == list(range(1, frequency + 1)) and all(engine.modes)
    assert [b.clusters for b in engine.refreshed[::frequency]] != [b.clusters for b in trained]


def test_uniform_is_never_the_training_batch() -> None:
    refresh = rest_of(settings(method="gas+rest", batch_size=1))
    engine, trained = asked(refresh, 200, batch_size=1)
    assert all(a.clusters != b.clusters for a, b in zip(engine.refreshed, trained, strict=True))


def test_oldest_takes_those_that_waited_longest() -> None:
    refresh = rest_of(settings(method="gas+rest", batch_size=1, frequency=2, refresh_order="oldest"))
    written = [0] * 8
    engine, trained = Watched(), ClusterBatches(PTR, 1, seed=9)
    batches = [batch for epoch in range(10) for batch in trained.epoch(epoch)]
    for step, batch in enumerate(batches, start=1):
        engine.refreshed.clear()
        refresh.before(engine, batch, step)
        written[batch.clusters[0]] = step
        assert len(engine.refreshed) == 2
        for other in engine.refreshed:
            (chosen,) = other.clusters
            assert written[chosen] == min(at for at in written if at < step)
            written[chosen] = step
        if step > 8:
            # Eight clusters, two of them refreshed at each step, and one trained on that may be any.
            assert max(step - at for at in written) <= 4
    assert refresh.state()["written"] == written


def test_oldest_has_nothing_to_do_where_everyone_is_trained_on() -> None:
    refresh = rest_of(settings(method="gas+rest", batch_size=8, refresh_order="oldest"))
    engine, _ = asked(refresh, 3, batch_size=8)
    assert engine.refreshed == []


@pytest.mark.parametrize(("size", "clusters"), [("same", 2), ("half", 4)])
def test_sizes(size: str, clusters: int) -> None:
    engine, _ = asked(rest_of(settings(method="gas+rest", refresh_batch=size, refresh_mode="eval")), 5)
    assert {len(batch.clusters) for batch in engine.refreshed} == {clusters} and not any(engine.modes)


def test_kinds() -> None:
    kinds = {
        "gas": Refresh, "gas+rest": ClusterRefresh, "gas+rest-is": HaloRefresh, "full": Refresh,
    }  # fmt: skip
    for method, kind in kinds.items():
        assert type(rest_of(settings(method=method))) is kind
    assert type(rest_of(settings(method="gas+rest", refresh_batch="full"))) is FullRefresh


def test_full_refresh_is_the_exact_pass() -> None:
    trainer = Trainer(settings(method="gas+rest", refresh_batch="full", dropout=0.5, batch_norm=True), small())
    trainer.begin()
    trainer.epoch(1)
    trainer.refresh.before(trainer.engine, trainer.method.batches(2)[0], 5)
    tables = [table.rows.clone() for table in trainer.history.tables]
    assert trainer.history.ages(1, 5).mean == 0
    trainer.engine.fill(5)
    assert all(torch.equal(a, b.rows) for a, b in zip(tables, trainer.history.tables, strict=True))


@pytest.mark.parametrize("order", ["uniform", "oldest"])
def test_refreshes_go_on_where_it_was(order: str) -> None:
    config = settings(method="gas+rest", refresh_order=order, frequency=2)
    whole, first, second = (rest_of(config) for _ in range(3))
    expected, trained = asked(whole, 12)
    engine = Watched()
    for step, batch in enumerate(trained, start=1):
        if step == 6:
            second.load(first.state())
            first = second
        first.before(engine, batch, step)
    assert [b.clusters for b in engine.refreshed] == [b.clusters for b in expected.refreshed]
