"""``--trim``: rows that no training node depends on are neither stored nor computed. Losses do not change."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData, with_named_edges
from rest_triton.data.graph import Graph
from rest_triton.sampling.batch import Batch, ClusterBatches
from rest_triton.sampling.reach import Reach
from rest_triton.training.checkpoint import read, write
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

NODES, TRAINING, CLASSES = 240, 9, 4
PTR = torch.tensor([0, 40, 75, 120, 160, 200, 240])
MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(num_layers=3),
    "gcn, directed": dict(num_layers=3, directed=True),
    "gcn, features dropped": dict(num_layers=2, drop_input=True, dropout=0.4),
    "gcn, linear": dict(num_layers=2, linear=True, dropout=0.4, edge_dropout=0.2),
    "gin": dict(model="gin", num_layers=3),
    "appnp": dict(model="appnp", num_layers=4, dropout=0.4),
    "gcnii": dict(model="gcnii", num_layers=4, dropout=0.4, directed=True),
}

DROPPED = "gcn, features dropped", "exact"  # refused: the first layer would read dropped features two edges away
CASES = [(case, first) for case in MODELS for first in ("cached", "exact") if (case, first) != DROPPED]


@cache
def data(directed: bool, normalise: Any, dropped: bool) -> ClusterData:
    """A sparse graph with few training nodes, none of them in the last two clusters."""
    g = torch.Generator().manual_seed(3)
    edges = torch.randint(0, NODES - 3, (2, 260), generator=g)  # three nodes are isolated
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    chosen = torch.randperm(160, generator=g)
    masks = torch.zeros(3, NODES, dtype=torch.bool)
    for mask, nodes in zip(masks, (chosen[:TRAINING], chosen[20:30], chosen[30:40]), strict=True):
        mask[nodes] = True
    x = torch.randn(NODES, 6, generator=g)
    graph = Graph.from_edges(
        edges, NODES, symmetrise=not directed, x=x, y=y, train_mask=masks[0], val_mask=masks[1], test_mask=masks[2]
    )
    adj = graph.adjacency(normalise)
    adj = with_named_edges(adj) if dropped else adj
    return ClusterData(graph, adj, x, PTR, torch.arange(NODES), graph.fingerprint, "sparse")


def trainer(case: str, folder: Path | None = None, **changes: Any) -> Trainer:
    made = dict(model="gcn") | MODELS[case] | changes
    directed = bool(made.pop("directed", False))
    config = Config(
        **(dict(dataset="sparse", device="cpu", num_parts=6, batch_size=2, hidden_channels=8, lr=0.02) | made)
    )  # fmt: skip
    normalise = "sum" if config.model == "gin" else "gcn"
    return Trainer(config, data(directed, normalise, config.edge_dropout > 0), folder=folder)


def losses(run: Trainer, epochs: int = 3) -> list[float]:
    run.begin()
    return [run.epoch(number)["loss"] for number in range(epochs)]


def distances(adj: Any, targets: Tensor, hops: int) -> Tensor:
    """By relaxing each edge as often as there are hops."""
    found = torch.where(targets, 0, hops + 1)
    for _ in range(hops):
        for row in range(NODES):
            for v in adj.col[adj.rowptr[row] : adj.rowptr[row + 1]].long():
                found[v] = torch.minimum(found[v], found[row] + 1)
    return found


@pytest.mark.parametrize("directed", [False, True])
def test_distances(directed: bool) -> None:
    made = data(directed, "gcn", False)
    targets = made.graph.train_mask
    assert targets is not None
    reach = Reach.of(made.adj, targets, 3)
    truth = distances(made.adj, targets, 3)
    assert torch.equal(reach.distance.long(), truth) and len(set(truth.tolist())) == 5
    assert reach.sizes == tuple(int((truth <= hops).sum()) for hops in range(4))
    for hops, size in enumerate(reach.sizes):
        assert torch.equal(reach.numbers < size, truth <= hops)
    assert torch.equal(reach.within(40, 130, 2), 40 + (truth[40:130] <= 2).nonzero().squeeze(1))
    with pytest.raises(ValueError, match="hops is 255"):
        Reach.of(made.adj, targets, 255)


def test_rows_of_a_batch() -> None:
    made = data(False, "gcn", False)
    assert made.graph.train_mask is not None
    reach = Reach.of(made.adj, made.graph.train_mask, 3)
    batch = ClusterBatches(PTR, 2).batch([3, 0])
    trimmed = reach.trimmed(batch)
    assert trimmed.counts is not None and trimmed.clusters == (0, 3)
    for layer, count in enumerate(trimmed.counts):
        wanted = batch.rows[reach.distance[batch.rows] <= 3 - layer]
        assert torch.equal(trimmed.rows[:count].sort().values, wanted)
    assert 0 < trimmed.counts[-1] < trimmed.counts[0] < len(batch)
    everything = Reach.of(made.adj, torch.ones(NODES, dtype=torch.bool), 3)
    assert everything.trimmed(batch) is batch


@pytest.mark.parametrize("method", ["gas", "gas+rest"])
@pytest.mark.parametrize(
    ("case", "first"),
    [
        (case, first)
        for case in MODELS
        for first in ("cached", "exact")
        if (case, first) != ("gcn, features dropped", "exact")
    ],
)
def test_losses_scores_and_rows_are_the_same(case: str, first: str, method: str) -> None:
    """Weights, too: rows are summed in another order, so they are equal but for rounding."""
    plain, trimmed = (trainer(case, first=first, method=method, trim=trim) for trim in (False, True))
    assert losses(trimmed) == pytest.approx(losses(plain), rel=2e-5)
    for ours, theirs in zip(trimmed.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-5)
    assert trimmed.evaluate() == plain.evaluate()
    reach = trimmed.method.reach
    assert reach is not None
    layers = plain.model.num_layers
    tables = zip(trimmed.history.tables, plain.history.tables, strict=True)
    for layer, (ours, theirs) in enumerate(tables, trimmed.method.first_table(plain.model)):
        kept = (reach.distance <= layers - layer).nonzero().squeeze(1)
        assert len(ours.rows) == len(kept) < NODES
        torch.testing.assert_close(ours.rows[reach.numbers[kept].long()], theirs.rows[kept], rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("method", ["gas", "gas+rest", "gas+rest-is"])
@pytest.mark.parametrize("first", ["cached", "exact"])
@pytest.mark.parametrize("case", ["gcn", "appnp", "gcnii"])
def test_other_rows_are_never_read(case: str, first: str, method: str) -> None:
    """Features are NaN where no training node depends on them: losses stay as they are."""
    made, poisoned = (trainer(case, first=first, method=method, trim=True) for _ in range(2))
    reach, features = poisoned.method.reach, poisoned.engine.inputs.features
    assert reach is not None
    x = features.rows
    assert isinstance(x, Tensor)
    features.rows = torch.where((reach.distance <= reach.hops)[:, None], x, torch.nan)
    poisoned.engine.inputs._aggregated = None
    assert losses(poisoned) == losses(made)


def test_rest_is_refreshes_what_the_batch_reads() -> None:
    made = trainer("gcn", method="gas+rest-is", trim=True)
    made.begin()
    for batch in made.method.batches(0):
        trimmed = made.method.prepare(made.engine, batch, 1)
        assert trimmed.counts is not None
        adj, computed = made.loaded.adj, trimmed.rows[: trimmed.counts[2]]
        around = torch.cat([adj.col[adj.rowptr[v] : adj.rowptr[v + 1]] for v in computed.tolist()] or [computed]).long()
        wanted = set(around.tolist()) - set(batch.rows.tolist())
        assert set(made.method.reads(made.engine, trimmed).tolist()) == wanted
        made.update([batch])
        stamps = made.history.stamp(0, torch.tensor(sorted(wanted), dtype=torch.int64))
        assert bool((stamps == made.step).all())


@pytest.mark.parametrize("place", ["pinned", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["gas+rest", "gas+rest-is"])
def test_places_give_the_same_bits(place: str, dtype: str, method: str, tmp_path: Path) -> None:
    here = trainer("appnp", method=method, dtype=dtype, trim=True)
    there = trainer("appnp", tmp_path, method=method, dtype=dtype, history=place, trim=True)
    assert losses(there) == losses(here)
    there.history.streams.finish()
    for ours, theirs in zip(there.history.tables, here.history.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows) and torch.equal(ours.stamp, theirs.stamp)
    assert there.evaluate() == here.evaluate()
    there.close()


def test_a_batch_without_rows_moves_nothing() -> None:
    """The last two clusters are far from all training nodes."""
    made = trainer("gcn, directed", trim=True)
    made.begin()
    reach = made.method.reach
    assert reach is not None
    far = ClusterBatches(PTR, 2).batch([4, 5])
    trimmed = reach.trimmed(replace(far))
    assert trimmed.counts is not None and trimmed.counts[-1] == 0
    before = [p.clone() for p in made.model.parameters()]
    assert made.update([far]) == []
    assert all(map(torch.equal, before, made.model.parameters()))
    empty = Batch(NODES, nodes=torch.tensor([NODES - 1]), clusters=())
    assert len(reach.trimmed(empty)) == 0 and made.update([empty]) == []


def test_batch_norm_and_running_statistics() -> None:
    """Statistics are of fewer rows: another model, which also learns."""
    plain, trimmed = (trainer("gcn", batch_norm=True, trim=trim) for trim in (False, True))
    ours, theirs = losses(trimmed, 8), losses(plain, 8)
    assert ours != pytest.approx(theirs, rel=1e-3) and ours[-1] < ours[0]


def test_ages_are_of_rows_that_are_kept() -> None:
    made = trainer("gcn", trim=True)
    made.begin()
    record = [made.epoch(number) for number in range(4)][-1]
    assert 0 < record["age"] <= 2 * record["steps"]
    assert len(made.history.stamp(0)) == len(made.history.tables[0].rows) < NODES


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    made = trainer("appnp", method="gas+rest", trim=True)
    losses(made, 2)
    write(tmp_path / "2.pt", made.state(), made.config, "sparse")
    other = trainer("appnp", method="gas+rest", trim=True)
    other.load(read(tmp_path / "2.pt", other.config, "sparse")[0])
    for ours, theirs in zip(other.history.tables, made.history.tables, strict=True):
        ours.rows.copy_(theirs.rows)
        ours.stamp.copy_(theirs.stamp)
    assert other.epoch(2)["loss"] == made.epoch(2)["loss"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(method="lmc"), "trim is on, but method lmc also reads or writes rows"),
        (dict(method="graphfm+rest"), "give --no-trim, or --method gas, gas"),
        (dict(model="gat"), "trim is on, but model gat does not sum over neighbours"),
        (dict(eval_updates_history=True), "eval_updates_history is True, but with trim"),
        (dict(error_every=2), "error_every is 2, but with trim"),
        (dict(method="gas+rest", frequency="auto", target_drift=0.1), "target_drift is 0.1, but with trim"),
    ],
)  # fmt: skip
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**(dict(dataset="sparse", trim=True) | given))
