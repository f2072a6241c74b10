"""VR-GCN's aggregates: exact, unbiased and of small variance, as the tables allow; and rows are recorded late."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.history.streams import COMPUTE
from rest_triton.methods.base import Method
from rest_triton.methods.sampled.vrgcn import VRGCN
from rest_triton.ops import history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.sampling.sample import Sample

from ..history import runs
from ..history.runs import NODES, Run

MODELS = ["gcn", "appnp", "gcnii"]
ALL = str(NODES)  # a fan-out of all neighbours
Draw = Callable[[int], Tensor]


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


def vrgcn(model: str, fanout: str = "2", **options: Any) -> Run:
    return Run(model, **(dict(method="vrgcn", batch_nodes=25, fanout=fanout) | options))


def noise(run: Run, size: float = 1.0) -> Run:
    draw = torch.Generator().manual_seed(7)
    for table in run.history.tables:
        table.rows.copy_(size * torch.randn(table.rows.shape, generator=draw))
    return run


def targets(run: Run) -> Batch:
    batch: Batch = run.trainer.method.batches(1)[0]
    return batch


def sampled(run: Run, step: int = 1) -> Batch:
    """The batch of a step, with its samples."""
    return run.trainer.method.prepare(run.engine, targets(run), step)


def loss_of(run: Run, nodes: Tensor) -> Callable[[Tensor], Tensor]:
    y = run.graph.y
    assert y is not None
    return lambda logits: F.cross_entropy(logits if len(logits) == len(nodes) else logits[nodes], y[nodes])


def gradient(run: Run, batch: Batch, step: int = 1) -> tuple[Tensor, Tensor]:
    """(gradient of all weights, logits) in eval mode. Tables are not written."""
    found = run.engine.gradients(batch, step, loss_of(run, targets(run).rows))
    assert found is not None
    return found


def dense(run: Run) -> Tensor:
    """float64 [N, N]: the normalised adjacency."""
    outside = run.engine.inputs.outside()
    return history_spmm(run.data.adj, torch.arange(NODES), outside, None, torch.eye(NODES)).double()


def unweighted(run: Run, batch: Batch) -> Batch:
    """The same samples without the factor degree / fan-out."""
    scale = run.data.adj.row_scale
    assert batch.samples is not None and batch.counts is not None and scale is not None

    def of(sample: Sample | None, rows: Tensor) -> Sample | None:
        if sample is None:
            return None
        assert sample.adj.reverse is not None
        adj = replace(sample.adj, row_scale=scale[rows], reverse=replace(sample.adj.reverse, col_scale=scale[rows]))
        return replace(sample, adj=adj, by_node=replace(sample.by_node, row_scale=scale[rows]))

    pairs = zip(batch.samples, batch.counts[1:], strict=True)
    return replace(batch, samples=tuple(of(sample, batch.rows[:count]) for sample, count in pairs))


def scores(values: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, str]:
    """(standard scores of the means over draws, where there is variance; where that is; a text that says so)."""
    error = values.std(0) / len(values) ** 0.5
    varies = error > 1e-4 * error.max()
    z = ((values.mean(0) - exact) / error)[varies]
    rms, most = float(z.square().mean().sqrt()), float(z.abs().max())
    text = f"{len(z)} means of K = {len(values)} draws are off by {rms:.2f} standard errors (rms), {most:.2f} at most; "
    return z, varies, text + f"the standard error is {float(error[varies].mean()):.2g} on average"


def unbiased(values: Tensor, exact: Tensor) -> tuple[bool, str]:
    z, _, text = scores(values.double(), exact.double())
    assert len(z) >= 100, text
    return float(z.square().mean().sqrt()) < 1.25 and float(z.abs().max()) < 5, text


# C1: a fan-out of all neighbours.


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", MODELS)
def test_all_neighbours_are_exact_whatever_the_tables_hold(model: str, given: str) -> None:
    run = vrgcn(model, ALL, first=given if model != "gcn" else "cached")
    batch = sampled(run)
    truth, logits = gradient(run, batch)
    torch.testing.assert_close(logits, run.engine.exact()[targets(run).rows], rtol=1e-4, atol=1e-5)
    for value in (1e3, torch.nan):
        for table in run.history.tables:
            table.rows.fill_(value)
        assert all(map(torch.equal, gradient(run, batch), (truth, logits)))
    few = vrgcn(model)
    assert not torch.equal(gradient(noise(few), sampled(few))[1], logits)


@pytest.mark.parametrize("far", [False, True])
def test_a_row_with_all_its_neighbours_in_the_sample_does_not_read_its_table(far: bool) -> None:
    """Bitwise, also where other rows lack some."""
    run = vrgcn("gcn", "5", far=far)
    layer = run.model.num_layers - 1
    degree = run.data.adj.rowptr.diff()[targets(run).rows]
    h = torch.randn(NODES, 16)
    found = [aggregate(noise(run, size), sampled(run), layer, h) for size in (1.0, 30.0)]
    same = (found[0] == found[1]).all(1)
    assert torch.equal(same, degree <= 5) and 0 < int(same.sum()) < len(same)


# C2: exact tables.


def exact_gradient(run: Run) -> Tensor:
    full = Run(run.config.model, method="full", num_layers=run.config.num_layers)
    full.model.load_state_dict(run.model.state_dict())
    found = full.engine.gradients(full.batch(), 1, loss_of(run, targets(run).rows))
    assert found is not None
    return found[0]


@pytest.mark.parametrize("model", MODELS)
def test_exact_tables_give_exact_results_and_unbiased_gradients(model: str) -> None:
    """Samples without their weights have a gradient that is off, and the same test notices."""
    run, draws = vrgcn(model), 400
    exact, truth = run.engine.exact()[targets(run).rows], exact_gradient(run)
    found, wrong = [], []
    for step in range(draws):
        batch = sampled(run, step)
        of_draw, logits = gradient(run, batch, step)
        torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-5)
        found.append(of_draw)
        wrong.append(gradient(run, unweighted(run, batch), step)[0])
    values = torch.stack(found)
    passed, text = unbiased(values, truth)
    assert passed, text
    _, varies, _ = scores(values.double(), truth.double())
    torch.testing.assert_close(values.mean(0)[~varies], truth[~varies], rtol=1e-3, atol=1e-5)
    passed, text = unbiased(torch.stack(wrong), truth)
    assert not passed, f"without weights: {text}"


# C3: stale tables.


def aggregate(run: Run, batch: Batch, layer: int, h: Tensor) -> Tensor:
    """The aggregate of a layer whose input is h [N, D]. Nothing is written."""
    options: dict[str, Any] = dict(step=1, training=False, recording=False)
    with torch.no_grad(), run.engine._context(batch, COMPUTE, **options) as ctx:
        ctx.begin(run.model)
        for before in range(layer):
            ctx.enter(before)
            ctx.leave(h[ctx.block.rows.rows])
        ctx.enter(layer)
        if layer == 0:
            ctx._h = h[ctx.block.source.rows]
        return run.trainer.method.aggregate(ctx)


def variance(a: Tensor, h: Tensor, fanout: int) -> Tensor:
    """Of a sum of ``fanout`` neighbours without replacement, times degree / fan-out."""
    degree = (a != 0).sum(1).double()[:, None]
    spread = (a.square() @ h.square() - (a @ h).square() / degree) / (degree - 1).clamp(min=1)
    return degree.square() / fanout * (1 - fanout / degree).clamp(min=0) * spread


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_stale_tables_give_unbiased_aggregates_of_small_variance(model: str, far: bool) -> None:
    """Given h. Compared with plain sampling the variance is about |h - T|^2 / |h|^2, here 0.01."""
    run, draws = vrgcn(model, far=far), 400
    last, a = run.model.num_layers - 1, dense(run)
    for layer in {last, int(model == "gcn")} if not far else {last}:
        number = run.engine.inputs.number(layer)
        assert number is not None
        table = run.history.tables[number].rows
        g = torch.Generator().manual_seed(layer)
        h = torch.randn(table.shape, generator=g)
        stale = h + 0.1 * torch.randn(table.shape, generator=g)
        rows = sampled(run).block(layer).rows.rows
        if layer < last:  # its rows differ from draw to draw, but for the targets
            rows = targets(run).rows
        values: dict[str, list[Tensor]] = {"ours": [], "plain": [], "wrong": []}
        for step in range(draws):
            batch = sampled(run, step)
            table.copy_(stale)
            values["ours"].append(aggregate(run, batch, layer, h)[: len(rows)])
            values["wrong"].append(aggregate(run, unweighted(run, batch), layer, h)[: len(rows)])
            table.zero_()
            values["plain"].append(aggregate(run, batch, layer, h)[: len(rows)])
        of = {name: torch.stack(each).double() for name, each in values.items()}
        exact = (a @ h.double())[rows]
        for name in ("ours", "plain"):
            passed, text = unbiased(of[name], exact)
            assert passed, f"{name}: {text}"
        passed, text = unbiased(of["wrong"], exact)
        assert not passed, f"without weights: {text}"
        found = {name: float(of[name].var(0).sum()) for name in ("ours", "plain")}
        for name, d in (("ours", (h - stale).double()), ("plain", h.double())):
            assert found[name] == pytest.approx(float(variance(a, d, 2)[rows].sum()), rel=0.1), name
        ratio = float((h - stale).square().sum() / h.square().sum())
        assert found["ours"] / found["plain"] == pytest.approx(ratio, rel=0.3) and 0.008 < ratio < 0.012


# C4: tables of zeros.


@pytest.mark.parametrize("model", MODELS)
def test_tables_of_zeros_are_plain_neighbour_sampling(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bitwise. The sum over the sample, times degree / fan-out, is computed by hand, too."""
    run = noise(vrgcn(model), 0.0)
    batch, layer = sampled(run), run.model.num_layers - 1
    ours = gradient(run, batch)
    monkeypatch.setattr(VRGCN, "aggregate", Method.aggregate)
    assert all(map(torch.equal, ours, gradient(run, batch)))
    monkeypatch.undo()
    assert not torch.equal(gradient(noise(run), batch)[1], ours[1])
    assert batch.samples is not None
    sample = batch.samples[layer]
    assert sample is not None
    a, h = dense(run), torch.randn(NODES, run.history.tables[-1].rows.shape[1])
    z = aggregate(noise(run, 0.0), batch, layer, h)
    for i, row in enumerate(targets(run).rows.tolist()):
        taken = sample.by_node.col[sample.by_node.rowptr[i] : sample.by_node.rowptr[i + 1]].long()
        degree = int((a[row] != 0).sum())
        assert len(set(taken.tolist())) == len(taken) == min(2, degree) and bool((a[row, taken] != 0).all())
        expected = degree / max(1, len(taken)) * a[row, taken] @ h[taken].double()
        torch.testing.assert_close(z[i].double(), expected, rtol=1e-4, atol=1e-5)


# C5: all nodes as targets.


@pytest.mark.parametrize("model", [*MODELS, "gcn-norm"])
@pytest.mark.parametrize("method", ["vrgcn", "vrgcn+rest", "vrgcn+rest-is"])
def test_all_nodes_as_targets_are_full_batch_training(model: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(runs.graph(), train_mask=torch.ones(NODES, dtype=torch.bool))
    monkeypatch.setattr(runs, "graph", lambda directed: made)
    ours, full = vrgcn(model, ALL, method=method, batch_nodes=NODES), Run(model, method="full")
    torch.testing.assert_close(ours.losses(4), full.losses(4), rtol=1e-4, atol=1e-5)
    for a, b in zip(ours.model.parameters(), full.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


# Write after read.


def step_of(run: Run) -> tuple[Tensor, Tensor]:
    """(the logits of a training step, and those of the same forward if nothing is written)."""
    batch = sampled(run)
    with run.engine._context(batch, COMPUTE, step=1, recording=False) as ctx, torch.no_grad():
        expected = run.model(ctx)
    found: list[Tensor] = []
    run.engine.train(batch, 1, lambda logits: found.append(logits.detach()))
    return found[0], expected


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_reads_the_tables_of_the_steps_before(model: str, far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are recorded where they are computed make h - T zero, and the same test notices."""
    assert torch.equal(*step_of(noise(vrgcn(model, far=far))))
    monkeypatch.setattr(VRGCN, "records_late", False)
    ours, expected = step_of(noise(vrgcn(model, far=far)))
    assert float((ours - expected).norm() / expected.norm()) > 0.01
