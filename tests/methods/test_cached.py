"""Refresh: what is in the cache, what a hit changes, and what leaves the cache."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.methods.sampled.cached import HITS, NORMS, _quantile
from rest_triton.ops import history_spmm
from rest_triton.sampling.batch import Batch, node_batch

from ..history.runs import NODES, Run
from ..training.data import gradients
from .caches import ALL, CACHE, MODELS, Watched, hits, inputs, stamps
from .plain_sampling import plain

EVERYONE = torch.arange(NODES)

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
