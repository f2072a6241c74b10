"""Refresh with a bounded cache: rows of its table belong to nodes in turn."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.history.slots import Slots
from rest_triton.methods.sampled.cached import NORMS

from ..history.runs import NODES, Run, disk, same_results
from .caches import ALL, CACHE, MODELS, Watched, hits, inputs, stamps
from .plain_sampling import plain


def consistent(slots: Slots) -> dict[int, int]:
    """The slots of nodes. Both maps must say the same."""
    found = {node: slot for node, slot in enumerate(slots.slot_of.tolist()) if slot >= 0}
    assert {slot: node for slot, node in enumerate(slots.node_of.tolist()) if node >= 0} == {s: n for n, s in found.items()}
    return found


def slots_of(run: Run) -> Slots:
    assert run.slots is not None
    return run.slots


def test_slots_are_given_in_turn() -> None:
    slots, draw = Slots(30, 8), torch.Generator().manual_seed(0)
    assert slots.claim(torch.tensor([3, 1, 4])).tolist() == [0, 1, 2] and len(slots) == 8
    assert slots.claim(torch.tensor([9, 1, 5])).tolist() == [3, 1, 4]  # 1 keeps its own
    assert slots.free(torch.tensor([4, 17, 9])).tolist() == [2, 3] and consistent(slots) == {3: 0, 1: 1, 5: 4}
    assert slots.claim(torch.tensor([20, 21, 22, 3])).tolist() == [5, 6, 7, 0]
    assert slots.claim(torch.tensor([3, 1, 11, 12])).tolist() == [0, 1, 2, 3]  # skips those
    assert slots.claim(torch.tensor([13])).tolist() == [4] and consistent(slots).keys() == {3, 1, 11, 12, 13, 20, 21, 22}
    for _ in range(300):
        nodes = torch.randperm(30, generator=draw)
        slots.free(nodes[20 : 20 + int(nodes[0]) % 5])
        count = int(nodes[1]) % 9
        before, places = consistent(slots), slots.claim(nodes[:count])
        after = consistent(slots)
        assert [after[node] for node in nodes[:count].tolist()] == places.tolist()
        assert all(after[node] == before[node] for node in nodes[:count].tolist() if node in before)
    again = Slots(30, 8)
    again.load(slots.state())
    assert consistent(again) == consistent(slots) and again.head == slots.head


@pytest.mark.parametrize("method", ["refresh", "refresh+rest-is"])
@pytest.mark.parametrize("model", MODELS)
def test_with_a_slot_for_each_node_it_is_the_same_cache(model: str, method: str) -> None:
    """If nothing is evicted, slots change no bit."""
    options = CACHE | dict(method=method, gradient_quantile=1.0, stale_steps=8)
    whole, ring = Run(model, **options), Run(model, **options, cache_rows=NODES)
    assert whole.losses(12) == ring.losses(12)
    found = consistent(slots_of(ring))
    nodes, places = torch.tensor(list(found)), torch.tensor(list(found.values()))
    assert len(found) > 50
    for ours, theirs in zip(ring.history.tables, whole.history.tables, strict=True):
        assert torch.equal(ours.rows[places], theirs.rows[nodes]) and torch.equal(ours.stamp[places], theirs.stamp[nodes])


@pytest.mark.parametrize("method", ["refresh", "refresh+rest", "refresh+rest-is"])
@pytest.mark.parametrize("model", MODELS)
def test_slots_hold_the_rows_of_their_nodes(model: str, method: str) -> None:
    """With frozen weights losses stay exact, and rows that leave make room for others."""
    run, expected = Run(model, **(ALL | dict(method=method)), cache_rows=25), plain(model, **ALL)
    watched, read, members = Watched(run), 0, list[set[int]]()
    for _ in range(12):
        assert [float(loss) for loss in run.step()] == pytest.approx(expected.losses(1), rel=1e-5)
        found = consistent(slots_of(run))
        assert {slot for slot, at in enumerate(stamps(run).tolist()) if at >= 0} == set(found.values())
        members.append(set(found))
        read += hits(watched.batches[-1]).numel()
    assert len(run.history.tables[0].rows) == 25 and read > 20
    assert max(map(len, members)) == 25 and len(set().union(*members)) > 40


def test_those_with_the_smallest_gradients_get_the_slots() -> None:
    run = Run("gcn", **(CACHE | dict(gradient_quantile=1.0)), cache_rows=5)
    watched = Watched(run)
    for _ in range(4):
        batch, kept = watched.step()
        smallest = inputs(batch)[kept[NORMS].argsort(stable=True)[:5]]
        assert set(consistent(slots_of(run))) == set(smallest.tolist())


@pytest.mark.parametrize("method", ["refresh", "refresh+rest", "refresh+rest-is"])
@pytest.mark.parametrize("model", MODELS)
def test_bounded_caches_anywhere_give_the_same_bits(model: str, method: str, tmp_path: Path) -> None:
    options: dict[str, Any] = CACHE | dict(method=method, cache_rows=20)
    expected = Run(model, **options)
    losses = expected.losses(12)
    assert losses != Run(model, **(options | dict(cache_rows=0))).losses(12)
    for where in (dict(far=True), disk(tmp_path)):
        other = Run(model, **options, **where)
        assert other.losses(12) == losses and same_results(expected, other)
        other.trainer.close()


def test_without_saved_tables_a_resumed_cache_is_empty() -> None:
    run, other = (Run("gcn", **CACHE, cache_rows=20) for _ in range(2))
    run.losses(6)
    other.trainer.load(run.trainer.state())
    assert consistent(slots_of(other)) == consistent(slots_of(run)) != {}
    other.trainer.begin()
    assert consistent(slots_of(other)) == {}
    assert len(other.losses(3)) == 3
