"""Refresh: what is in the cache, what a hit changes, and what leaves the cache."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.methods.cached import HITS, NORMS, _quantile
from rest_triton.methods.slots import Slots
from rest_triton.nn import Context
from rest_triton.ops import history_spmm
from rest_triton.sampling.batch import Batch, node_batch
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import NODES, Run, disk, same_results
from ..training.data import gradients, settings, small
from .killed import killed_and_whole
from .plain_sampling import plain

MODELS = ["gcn", "appnp", "gcnii"]
CACHE: dict[str, Any] = dict(method="refresh", fanout="3", batch_nodes=12, gradient_quantile=0.7, stale_steps=6)
ALL: dict[str, Any] = CACHE | dict(fanout=str(NODES), gradient_quantile=1.0, dropout=0.0, lr=0.0)
EVERYONE = torch.arange(NODES)


class Watched:
    """The prepared batches of a run's steps, and the norms of gradients in each."""

    def __init__(self, run: Run) -> None:
        self.run, self.method = run, run.trainer.method
        self.batches, self.kept = list[Batch](), list[dict[str, Tensor]]()
        prepare, after = self.method.prepare, self.method.after_backward

        def watched(*args: Any, refreshing: bool = False, **options: Any) -> Batch:
            batch = prepare(*args, refreshing=refreshing, **options)
            if not refreshing:
                self.batches.append(batch)
            return batch

        def after_backward(ctx: Context) -> None:
            self.kept.append({name: norms.clone() for name, norms in ctx.kept.items()})
            after(ctx)

        self.method.prepare = watched  # type: ignore[method-assign]
        self.method.after_backward = after_backward  # type: ignore[method-assign]

    def step(self) -> tuple[Batch, dict[str, Tensor]]:
        self.run.step()
        return self.batches[-1], self.kept[-1]


def stamps(run: Run) -> Tensor:
    return run.history.tables[0].stamp.clone()


def hits(batch: Batch) -> Tensor:
    assert batch.samples is not None and batch.samples[-1] is not None and batch.samples[-1].outside is not None
    return batch.samples[-1].outside


def inputs(batch: Batch) -> Tensor:
    """The rows of the last layer's input that the batch computes."""
    assert batch.counts is not None
    return batch.rows[: batch.counts[-2]]


# X1.


@pytest.mark.parametrize("off", [dict(stale_steps=0), dict(gradient_quantile=0.0)])
@pytest.mark.parametrize("model", [*MODELS, "gcn-norm"])
def test_without_a_cache_it_is_neighbour_sampling(model: str, off: dict[str, Any]) -> None:
    ours, expected = Run(model, **(CACHE | off)), plain(model, **(CACHE | off))
    assert ours.losses(12) == expected.losses(12)
    assert all(map(torch.equal, ours.model.state_dict().values(), expected.model.state_dict().values()))
    assert Run(model, **CACHE).losses(12) != expected.losses(12)


# X2, and the norms of gradients: a plain program in float64, in which rows of the cache are leaves.


def dense_sums(run: Run, batch: Batch) -> list[Tensor]:
    """float64 [N, N] for each layer: the sampled adjacency, zero in rows that the layer does not compute."""
    assert batch.samples is not None and batch.counts is not None
    found, outside = [], run.engine.inputs.outside()
    for layer, sample in enumerate(batch.samples):
        rows = batch.rows[: batch.counts[layer + 1]]
        adj, of_adj = (run.data.adj, rows) if sample is None else (sample.by_node, torch.arange(len(rows)))
        found.append(torch.zeros(NODES, NODES, dtype=torch.float64))
        found[-1][rows] = history_spmm(adj, of_adj, outside, None, torch.eye(NODES)).double()
    return found


class Reference:
    """Loss, gradients of weights, and gradients of rows of the last layer's input, by autograd alone."""

    def __init__(self, run: Run, batch: Batch, table: Tensor) -> None:
        model: Any = copy.deepcopy(run.model).double()
        model.zero_grad()
        x, name, last = run.data.x.double(), run.config.model, model.num_layers - 1
        if name == "appnp":
            h = model.lins[1](F.relu(model.lins[0](x)))
        else:
            h = F.relu(model.lins[0](x)) if model.encodes else x
        h0 = h
        for layer, sums in enumerate(dense_sums(run, batch)):
            if layer == last:
                self.cached = table[hits(batch)].double().requires_grad_()
                self.computed = h[inputs(batch)]
                self.computed.retain_grad()
                known = torch.cat([inputs(batch), hits(batch)])
                h = torch.zeros_like(h).index_put((known,), torch.cat([self.computed, self.cached]))
            p = sums @ h
            if name == "appnp":
                h = (1 - model.alpha) * p + model.alpha * h0
            elif name == "gcnii":
                z, beta = (1 - model.alpha) * p + model.alpha * h0, math.log(model.theta / (layer + 1) + 1)
                h = F.relu((1 - beta) * z + beta * z @ model.convs[layer].weight1)
            else:
                u = model.convs[layer].lin(p) + model.convs[layer].bias
                u = u + h if model.residual else u
                h = u if layer == last and not model.linear else F.relu(u)
        assert batch.counts is not None and run.graph.y is not None
        targets = batch.rows[: batch.counts[-1]]
        self.logits = model.decode(h[targets])
        F.cross_entropy(self.logits, run.graph.y[targets]).backward()
        self.gradients = gradients(model)


@pytest.mark.parametrize("fanout", ["2", str(NODES)])
@pytest.mark.parametrize("model", [*MODELS, "gcn-linear"])
def test_gradients_lose_the_paths_through_the_cache_alone(model: str, fanout: str) -> None:
    """Weights move. Gradients of weights, and the norms of those of computed and of cached rows, are autograd's."""
    run = Run(model, **(CACHE | dict(fanout=fanout)), dropout=0.0)
    watched, seen = Watched(run), 0
    for _ in range(8):
        table, weights = run.history.tables[0].rows.clone(), copy.deepcopy(run.model.state_dict())
        batch, kept = watched.step()
        found, moved = gradients(run.model), copy.deepcopy(run.model.state_dict())
        run.model.load_state_dict(weights)
        expected = Reference(run, batch, table)
        run.model.load_state_dict(moved)
        for ours, theirs in zip(found, expected.gradients, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-6)
        assert expected.computed.grad is not None
        torch.testing.assert_close(kept[NORMS].double(), expected.computed.grad.norm(dim=1), rtol=1e-3, atol=1e-7)
        if hits(batch).numel():
            assert expected.cached.grad is not None
            torch.testing.assert_close(kept[HITS].double(), expected.cached.grad.norm(dim=1), rtol=1e-3, atol=1e-7)
            seen += hits(batch).numel()
    assert seen > 20


@pytest.mark.parametrize("model", [*MODELS, "gcn-linear"])
def test_with_frozen_weights_hits_change_no_forward(model: str) -> None:
    """All neighbours: every cached row is its recomputation, so outputs stay exact. Gradients do not."""
    ours, expected = Run(model, **ALL), plain(model, **ALL)
    exact, seen = ours.engine.exact(), 0
    last: dict[str, Tensor] = {}
    for step in range(1, 7):
        (targets,) = next(ours._batches)
        batch = ours.trainer.method.prepare(ours.engine, targets, step)
        torch.testing.assert_close(ours.engine.forward(batch, step).detach(), exact[targets.rows], rtol=1e-4, atol=1e-5)
        ours.engine.leave()
        assert [float(x) for x in ours.trainer.update([targets])] == pytest.approx(expected.losses(1), rel=1e-6)
        same = [
            torch.allclose(a, b, rtol=1e-3) for a, b in zip(gradients(ours.model), gradients(expected.model), strict=True)
        ]
        assert all(same) == (hits(batch).numel() == 0)
        seen += hits(batch).numel()
    assert seen > 50

    def probe(what: str, h: Tensor) -> None:
        last[what] = h.detach()

    rows = torch.nonzero(stamps(ours) >= 0).squeeze(1)
    full = Run(model, method="full", dropout=0.0)
    full.engine.train(full.batch(), 1, lambda logits: None, probe=probe)
    layer = ours.model.num_layers - 2
    what = f"aggregate of layer {layer}" if model == "appnp" else f"activation of layer {layer}"
    torch.testing.assert_close(ours.history.tables[0].rows[rows], last[what][rows], rtol=1e-4, atol=1e-5)
    assert len(rows) > 50


# X3 and X4: the policy.


WHAT = ("hit", "target", "old", "evicted", "evicted target")


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_admission_and_eviction(model: str, far: bool) -> None:
    """A cache as a dictionary, kept by the rules of the paper, agrees with the table at every step."""
    run = Run(model, **(CACHE | dict(stale_steps=3)), far=far)
    watched, cache, count = Watched(run), dict[int, int](), dict.fromkeys(WHAT, 0)
    for step in range(1, 25):
        invalid = torch.ones(NODES, dtype=torch.bool)
        invalid[[node for node, at in cache.items() if step - at <= 3]] = False
        run.history.tables[0].rows[invalid] = torch.nan  # nothing reads these
        batch, kept = watched.step()
        assert batch.counts is not None
        targets, computed, read = (rows.tolist() for rows in (batch.rows[: batch.counts[-1]], inputs(batch), hits(batch)))
        valid = {node for node, at in cache.items() if step - at <= 3}
        assert set(read) <= valid and not set(read) & set(targets) and not set(computed[len(targets) :]) & valid
        count["hit"] += len(read)
        count["target"] += len(valid & set(targets))
        count["old"] += len((cache.keys() - valid) & set(computed))
        norms = torch.cat([kept[NORMS], kept.get(HITS, torch.empty(0))])
        assert len(norms) == len(computed) + len(read)
        limit = norms.sort().values[round(0.7 * len(norms))]
        for node, norm in zip(computed + read, norms, strict=True):
            if norm < limit and node in computed:
                cache[node] = step
            if norm >= limit and node in cache:
                del cache[node]
                count["evicted target" if node in targets else "evicted"] += node in valid
        found = {node: at for node, at in enumerate(stamps(run).tolist()) if at >= 0}
        assert found == cache
        for table in run.history.tables:
            assert not table.rows[[node for node, at in cache.items() if step - at < 3]].isnan().any()
    assert min(count.values()) > 2, count


@pytest.mark.parametrize("model", MODELS)
def test_all_that_is_computed_is_admitted(model: str) -> None:
    run = Run(model, **(CACHE | dict(gradient_quantile=1.0, stale_steps=1000)))
    watched = Watched(run)
    for step in range(1, 8):
        before = stamps(run)
        batch, _ = watched.step()
        before[inputs(batch)] = step
        assert torch.equal(stamps(run), before)


def test_quantiles() -> None:
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    below = [int((values < _quantile(values, share)).sum()) for share in (0.0, 0.2, 0.5, 0.79, 0.9, 1.0)]
    assert below == [0, 1, 2, 4, 4, 5]
    assert _quantile(values[:0], 0.5) == math.inf


@pytest.mark.parametrize("model", MODELS)
def test_hits_save_work(model: str) -> None:
    """Their neighbours are neither sampled nor computed: with all neighbours fields become smaller."""
    run = Run(model, **(ALL | dict(stale_steps=1000, fanout="3")), num_layers=3)
    watched, sizes = Watched(run), list[list[int]]()
    for _ in range(10):
        batch, _ = watched.step()
        assert batch.counts is not None
        if batch.counts[-1] == 12:  # not the last one of an epoch
            sizes.append(list(batch.counts))
    assert len(sizes) > 6
    assert all(late < 0.8 * early for late, early in zip(sizes[-1][:-1], sizes[0][:-1], strict=True))
    assert sizes[-1][-2] < 0.5 * sizes[0][-2]


# Refreshes.


@pytest.mark.parametrize("model", MODELS)
def test_rest_recomputes_the_oldest_rows(model: str) -> None:
    """As many as a refresh has nodes, which are none at first; with current weights, and nothing else changes."""
    run = Run(model, **(CACHE | dict(method="refresh+rest", frequency=2, stale_steps=4)), num_layers=3)
    size, refreshed = len(run.batch(1)), 0
    refresh = run.engine.refresh

    def watched(batch: Batch, step: int, **options: Any) -> None:
        nonlocal refreshed
        before, rows = stamps(run), run.history.tables[0].rows.clone()
        old = [(at, node) for node, at in enumerate(before.tolist()) if at >= 0 and step - 4 <= at < step]
        expected = torch.tensor([node for _, node in sorted(old)[: len(batch)]], dtype=torch.int64)
        refresh(batch, step, **options)
        changed = torch.nonzero((stamps(run) != before) | (run.history.tables[0].rows != rows).any(1)).squeeze(1)
        assert torch.equal(changed, expected.sort().values) and (stamps(run)[changed] == step).all()
        refreshed += len(changed)

    run.engine.refresh = watched  # type: ignore[method-assign]
    run.losses(12)
    assert refreshed > 3 * size


@pytest.mark.parametrize("model", MODELS)
def test_rest_is_recomputes_the_rows_that_a_batch_hits(model: str) -> None:
    """Garbage in the cache is gone before it is read. REST-IS then gives the exact result with all neighbours."""
    run = Run(model, **(ALL | dict(method="refresh+rest-is", frequency=2)))
    exact, watched, seen, order = run.engine.exact(), Watched(run), 0, list[Tensor]()
    refresh = run.engine.refresh

    def refreshing(batch: Batch, step: int, **options: Any) -> None:
        order.append(batch.rows)
        refresh(batch, step, **options)

    run.engine.refresh = refreshing  # type: ignore[method-assign]
    for step in range(1, 6):
        run.history.tables[0].rows.fill_(1e3)
        order.clear()
        (targets,) = next(run._batches)
        (loss,) = run.trainer.update([targets])
        assert run.graph.y is not None
        assert float(loss) == pytest.approx(float(F.cross_entropy(exact[targets.rows], run.graph.y[targets.rows])), rel=1e-4)
        read = hits(watched.batches[-1])
        assert torch.equal(torch.cat(order) if order else read[:0], read) and (stamps(run)[read] == step).all()
        seen += len(read)
    assert seen > 50


def test_refreshes_change_losses() -> None:
    losses = {
        method: Run("gcn", **(CACHE | dict(method=f"refresh{method}"))).losses(9) for method in ("", "+rest", "+rest-is")
    }
    assert len({tuple(of) for of in losses.values()}) == 3
    none = Run("gcn", **(CACHE | dict(method="refresh+rest")))
    none.trainer.refresh.frequency.count = 0  # type: ignore[attr-defined]
    assert none.losses(9) == losses[""]


@pytest.mark.parametrize("mode", [dict(refresh_mode="eval"), dict(refresh_norm="running"), {}])
@pytest.mark.parametrize("refresh", ["rest", "rest-is"])
def test_refreshes_of_few_rows_leave_running_statistics(mode: dict[str, Any], refresh: str) -> None:
    """Also of none, and of one, which has no variance."""
    run = Run("gcn-norm", **(CACHE | dict(method=f"refresh+{refresh}", **mode)))
    model: Any = run.model
    for step in range(1, 4):
        run.step()
        before = [b.clone() for b in run.model.buffers()]
        for nodes in (EVERYONE[:0], EVERYONE[5:6], EVERYONE[7:9]):
            run.engine.refresh(node_batch(nodes, NODES), step, training=mode.get("refresh_mode") != "eval")
        assert all(map(torch.equal, before, run.model.buffers()))
        assert int(model.bns[0].num_batches_tracked) == step
    assert not run.history.tables[0].rows.isnan().any()


# Tables: places, number formats, checkpoints, memory.


@pytest.mark.parametrize(
    ("model", "method", "dtype"),
    [("gcn", "refresh", "float32"), ("appnp", "refresh+rest", "bfloat16"), ("gcnii", "refresh+rest-is", "float16"),
     ("gcnii", "refresh+rest", "float32"), ("gcn-norm", "refresh+rest-is", "float32")],
)  # fmt: skip
def test_tables_anywhere_give_the_same_bits(model: str, method: str, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = CACHE | dict(method=method, dtype=dtype)
    expected = Run(model, **options)
    losses = expected.losses(12)
    for where in (dict(far=True), disk(tmp_path)):
        other = Run(model, **options, **where)
        assert other.losses(12) == losses and same_results(expected, other)
        other.trainer.close()


@pytest.mark.parametrize(("model", "place"), [("gcn", "device"), ("appnp", "disk"), ("gcnii", "device")])
def test_a_run_that_was_killed_is_the_same_run(
    model: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_and_whole(tmp_path, monkeypatch, **CACHE | dict(method="refresh+rest", model=model, history=place))
    if place == "disk":
        (tmp_path / "bounded").mkdir()
        killed_and_whole(tmp_path / "bounded", monkeypatch, **CACHE | dict(model=model, history=place, cache_rows=9))


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("model", [*MODELS, "gin"])
@pytest.mark.parametrize("rows", [0, 30])
def test_the_plan_counts_the_table(model: str, layers: int, given: str, rows: int) -> None:
    given = given if model in ("appnp", "gcnii") else "cached"
    config = settings(model=model, dtype="bfloat16", input=given, num_layers=layers, cache_rows=rows, **CACHE)
    sizes = Sizes(nodes=small().graph.num_nodes, edges=3000, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    trainer = Trainer(config, small())
    assert len(trainer.history.all_tables) == int(layers > 1 or (model in ("appnp", "gcnii") and given == "cached"))
    assert planned.get("history tables", 0) == sum(table.rows.nbytes for table in trainer.history.tables)
    assert planned.get("stamps", 0) == sum(table.stamp.nbytes for table in trainer.history.tables)
    slots = trainer.method.slots  # type: ignore[attr-defined]
    assert planned.get("slots", 0) == (0 if slots is None else slots.slot_of.nbytes + slots.node_of.nbytes)
    trainer.begin()
    assert trainer.epoch(1)["loss"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_evaluation_is_exact_and_writes_nothing(model: str) -> None:
    run, full = Run(model, **CACHE), Run(model, method="full")
    run.losses(3)
    full.model.load_state_dict(run.model.state_dict())
    rows, before = run.history.tables[0].rows.clone(), stamps(run)
    assert run.trainer.evaluate(error=True) == full.trainer.evaluate()
    assert torch.equal(run.engine.exact(), full.engine.exact())
    assert torch.equal(run.history.tables[0].rows, rows) and torch.equal(stamps(run), before)


# A bounded cache.


def consistent(slots: Slots) -> dict[int, int]:
    """The slots of nodes. Both maps must say the same."""
    found = {node: slot for node, slot in enumerate(slots.slot_of.tolist()) if slot >= 0}
    assert {slot: node for slot, node in enumerate(slots.node_of.tolist()) if node >= 0} == {s: n for n, s in found.items()}
    return found


def slots_of(run: Run) -> Slots:
    slots: Slots = run.trainer.method.slots  # type: ignore[attr-defined]
    return slots


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


@pytest.mark.parametrize("method", ["refresh", "refresh+rest", "refresh+rest-is"])
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
        assert torch.equal(slots_of(other).node_of, slots_of(expected).node_of)
        other.trainer.close()


def test_without_saved_tables_a_resumed_cache_is_empty() -> None:
    run, other = (Run("gcn", **CACHE, cache_rows=20) for _ in range(2))
    run.losses(6)
    other.trainer.load(run.trainer.state())
    assert consistent(slots_of(other)) == consistent(slots_of(run)) != {}
    other.trainer.begin()
    assert consistent(slots_of(other)) == {}
    assert len(other.losses(3)) == 3


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(model=model), f"method is refresh, but model {model} does not sum over neighbours"
    yield dict(edge_dropout=0.1), "edge_dropout is 0.1, but method refresh samples neighbours instead"
    yield dict(history_dropout=True), "rows that method refresh reads from tables have no dropout"
    yield (
        dict(eval_updates_history=True),
        "method refresh writes rows where it trains alone; leave --eval-updates-history out",
    )
    rest = dict(method="refresh+rest")
    yield (
        rest | dict(refresh_batch="full"),
        "refresh_batch is full, but method refresh.rest writes rows where it trains alone",
    )
    yield rest | dict(frequency="auto"), "frequency is auto, but method refresh.rest refreshes the oldest rows of a cache"
    yield dict(gradient_quantile=1.5), "gradient_quantile is 1.5; it must be 0 to 1"
    yield dict(stale_steps=-1), "stale_steps is -1; it must be at least 0"
    yield dict(fanout="3,x,3"), "fanout is '3,x,3'; it must be a whole number of at least 1, or one for each of the 3 layers"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**(dict(dataset="small", method="refresh") | given))


def test_settings_of_other_methods_change_nothing() -> None:
    lines = Config(dataset="small").idle(["gradient_quantile", "stale_steps", "cache_rows"])
    assert len(lines) == 3 and lines[0].endswith("method refresh, and method is gas")
    assert Config(dataset="small", method="refresh+rest").idle(["gradient_quantile", "stale_steps", "fanout"]) == []
