"""GraphFM-IB: averages of sampled aggregates, what their mean and variance are, and where they are kept."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.methods.sampled.graphfm_ib import AGGREGATE
from rest_triton.nn import Context
from rest_triton.sampling.batch import node_batch

from ..history.runs import NODES, Run
from .plain_sampling import plain

MODELS = ["gcn", "appnp", "gcnii"]
IB: dict[str, Any] = dict(method="graphfm-ib", fanout="2", batch_nodes=20, ib_momentum=0.3)
EVERYONE = torch.arange(NODES)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Tensor]]:
    """(layer, sampled aggregate) of all forwards that follow."""
    seen, aggregate = list[tuple[int, Tensor]](), Context.aggregate

    def watched(ctx: Context, *args: Any, **options: Any) -> Tensor:
        z = aggregate(ctx, *args, **options)
        seen.append((ctx.layer, z.detach().clone()))
        return z

    monkeypatch.setattr(Context, "aggregate", watched)
    return seen


def averages(run: Run) -> list[Tensor]:
    return [table.rows.clone() for table in run.history.kinds[AGGREGATE]]


def forward(run: Run, nodes: Tensor, step: int) -> Tensor:
    """The result of a training forward of these nodes."""
    batch = run.trainer.method.prepare(run.engine, node_batch(nodes, NODES), step)
    out = run.engine.forward(batch, step).detach()
    run.engine.leave()
    return out


def exact_aggregates(run: Run) -> list[Tensor]:
    """Those of the layers with tables, for all nodes."""
    name = run.config.model + "-linear" * run.config.linear
    full, made = Run(name, method="full", dropout=0.0, num_layers=run.config.num_layers), list[Tensor]()
    full.model.load_state_dict(run.model.state_dict())

    def aggregate(ctx: Context, **mix: Any) -> Tensor:
        made.append(ctx.aggregate().detach())
        return ctx.aggregate(**mix)

    full.trainer.method.aggregate = aggregate  # type: ignore[method-assign]
    full.trainer.method.transforms_first = lambda *of: False  # type: ignore[method-assign]
    full.engine.forward(full.batch(), 1)
    full.engine.leave()
    return made[len(made) - len(run.history.kinds[AGGREGATE]) :]


@pytest.mark.parametrize("model", [*MODELS, "gcn-norm"])
def test_without_momentum_it_is_neighbour_sampling(model: str) -> None:
    ours, expected = Run(model, **(IB | dict(ib_momentum=0.0))), plain(model, **(IB | dict(ib_momentum=0.0)))
    assert ours.losses(6) == expected.losses(6)
    assert all(map(torch.equal, ours.model.state_dict().values(), expected.model.state_dict().values()))
    assert Run(model, **IB).losses(6) != expected.losses(6)


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", ["gcn", "gcn-linear", "appnp", "gcnii"])
def test_with_all_neighbours_averages_are_exact_after_one_visit(model: str, given: str) -> None:
    """With frozen weights; and so are the outputs, from the first visit on."""
    if model == "gcn" and given == "exact":
        given = "cached"
    run = Run(model, **(IB | dict(fanout=str(NODES))), first=given, dropout=0.0)
    exact = run.engine.exact()
    for step, nodes in enumerate(EVERYONE.split(25), start=1):
        torch.testing.assert_close(forward(run, nodes, step), exact[nodes], rtol=1e-4, atol=1e-5)
    assert all(int(table.stamp.min()) >= 1 for table in run.history.kinds[AGGREGATE])
    for step in (6, 7):
        for table, z in zip(averages(run), exact_aggregates(run), strict=True):
            torch.testing.assert_close(table, z, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(forward(run, EVERYONE, step), exact, rtol=1e-4, atol=1e-5)


def drawn(run: Run, sums: list[tuple[int, Tensor]], draws: int, *, same: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(sampled sums [T, N, D], averages [T, N, D], exact [N, D]) of layer 0. same: every step has the sample of step 1."""
    (exact,), kept = exact_aggregates(run), []
    sums.clear()
    with torch.no_grad():
        for step in range(1, draws + 1):
            forward(run, EVERYONE, 1 if same else step)
            kept.append(averages(run)[0])
    few = run.data.adj.rowptr.diff() > 2  # rows that leave neighbours out
    z, e = torch.stack([z for _, z in sums])[:, few].double(), torch.stack(kept)[:, few].double()
    return z, e, exact[few].double()


def off(found: Tensor, exact: Tensor) -> Tensor:
    """How far means over draws are from the truth, in standard errors. Those of averages over steps are the draws'."""
    z, e = found
    varies = z.std(0) > 1e-6
    torch.testing.assert_close(e.mean(0)[~varies], exact[~varies], rtol=1e-4, atol=1e-5)  # a ReLU made all rows zero
    return ((e.mean(0) - exact) / (z.std(0) / len(z) ** 0.5))[varies]


@pytest.mark.parametrize("model", ["gcn-linear", "appnp", "gcnii"])
def test_averages_are_unbiased_and_vary_less(model: str, sums: list[tuple[int, Tensor]]) -> None:
    """1200 draws. The ratio of the variances is (1 - a) / (1 + a), within 0.02: its standard error is about 0.005."""
    run = Run(model, **IB, dropout=0.0, num_layers=1)
    z, e, exact = drawn(run, sums, 1200)
    errors = off(torch.stack([z, e]), exact)
    assert errors.numel() >= 500 and float(errors.square().mean().sqrt()) < 1.25 and float(errors.abs().max()) < 5
    assert float(e[20:].var(0).sum() / z.var(0).sum()) == pytest.approx(0.7 / 1.3, abs=0.02)


def test_samples_that_do_not_change_are_biased(sums: list[tuple[int, Tensor]]) -> None:
    """The test above can fail."""
    honest = drawn(Run("appnp", **IB, dropout=0.0, num_layers=1), sums, 200)[0]
    _, e, exact = drawn(Run("appnp", **IB, dropout=0.0, num_layers=1), sums, 200, same=True)
    assert float(off(torch.stack([honest, e]), exact).square().mean().sqrt()) > 5


@pytest.mark.parametrize("momentum", [0.3, 1.0])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_what_a_step_writes(model: str, far: bool, momentum: float, sums: list[tuple[int, Tensor]]) -> None:
    """A first visit takes the sampled sum alone. Others blend; rows that are not computed keep all bits."""
    run = Run(model, **(IB | dict(ib_momentum=momentum)), far=far)
    first, known, blended = run.model.num_layers - len(averages(run)), 0, 0
    for step in (1, 2, 3):
        before, stamps = averages(run), [table.stamp.clone() for table in run.history.kinds[AGGREGATE]]
        (targets,) = next(run._batches)
        batch = run.trainer.method.prepare(run.engine, targets, step)
        sums.clear()
        run.trainer.update([targets])
        assert batch.counts is not None
        for (layer, z), table in zip(sums, run.history.kinds[AGGREGATE], strict=True):
            number, rows = layer - first, batch.rows[: batch.counts[layer + 1]]
            new = stamps[number][rows] == -1
            expected, old = before[number].clone(), before[number][rows]
            expected[rows] = torch.where(new[:, None], z, (1 - momentum) * z + momentum * old)
            torch.testing.assert_close(table.rows, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(table.rows[rows[new]], z[new])
            stamps[number][rows] = step
            assert torch.equal(table.stamp, stamps[number])
            known, blended = known + int(new.sum()), blended + int((~new).sum())
    assert known > 50 and blended > 30


def test_gradients_flow_through_the_sampled_part() -> None:
    """That of a layer's weight is (1 - momentum) times the one without averages, for equal values."""
    found = []
    for momentum in (0.0, 0.3):
        run = Run("gcn", **(IB | dict(ib_momentum=momentum, fanout=str(NODES))), dropout=0.0, num_layers=2)
        for step in (1, 2):  # all averages are exact
            forward(run, EVERYONE, step)
        run.model.zero_grad()
        batch = run.trainer.method.prepare(run.engine, node_batch(EVERYONE, NODES), 3)
        run.engine.train(batch, 3, run.trainer.method.loss(run.graph, batch, run.engine.inputs.device))
        convs: Any = run.model.convs
        found.append([convs[0].lin.weight.grad, convs[1].lin.weight.grad])
    torch.testing.assert_close(found[1][0], 0.7 * found[0][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-6)


# Refreshes.


@pytest.mark.parametrize("model", MODELS)
def test_a_refresh_blends_the_averages_of_its_rows(model: str, sums: list[tuple[int, Tensor]]) -> None:
    """Of all layers, the last one, too; with another sample than the training forward's. Nothing else changes."""
    run = Run(model, **(IB | dict(method="graphfm-ib+rest")))
    run.losses(3)
    tables = {id(t) for table in run.history.all_tables for t in (table.rows, table.stamp)}
    others = [t.clone() for t in run.results() if id(t) not in tables]
    before, batch = averages(run), run.batch(1)
    new = run.history.kinds[AGGREGATE][-1].stamp[batch.rows] == -1
    sums.clear()
    run.engine.refresh(batch, 4)
    assert all(map(torch.equal, others, [t for t in run.results() if id(t) not in tables]))
    assert [len(z) for _, z in sums][-1] == len(batch) < len(sums[0][1]) and len(sums) == len(before)
    for old, table in zip(before, run.history.kinds[AGGREGATE], strict=True):
        written = table.stamp == 4
        assert written[batch.rows].all() and torch.equal(table.rows[~written], old[~written])
        assert (table.rows[batch.rows] != old[batch.rows]).any()
    z = sums[-1][1]
    expected = torch.where(new[:, None], z, 0.7 * z + 0.3 * before[-1][batch.rows])
    torch.testing.assert_close(averages(run)[-1][batch.rows], expected, rtol=1e-5, atol=1e-6)
    assert 0 < int(new.sum()) < len(batch)


@pytest.mark.parametrize("model", ["appnp", "gcnii"])
def test_rest_is_refreshes_what_a_batch_blends(model: str) -> None:
    """All neighbours, frozen weights, and noise of size 1 in the averages: each visit leaves 0.3 of it."""
    left = {}
    for method in ("graphfm-ib", "graphfm-ib+rest-is"):
        run = Run(model, **(IB | dict(method=method, fanout=str(NODES))), dropout=0.0, lr=0.0, num_layers=2)
        forward(run, EVERYONE, 1)
        exact = averages(run)[0]
        noise = torch.randn(exact.shape)
        run.history.kinds[AGGREGATE][0].rows.add_(noise)
        (batch,) = next(run._batches)
        run.trainer.step = 1
        run.trainer.update([batch])
        share = (averages(run)[0] - exact)[batch.rows] / noise[batch.rows]
        left[method] = float(share.median())
    assert left["graphfm-ib"] == pytest.approx(0.3, abs=0.01)
    assert left["graphfm-ib+rest-is"] == pytest.approx(0.09, abs=0.01)


def test_refreshes_change_losses_but_not_samples() -> None:
    losses = {
        method: Run("gcn", **(IB | dict(method=f"graphfm-ib{method}"))).losses(6) for method in ("", "+rest", "+rest-is")
    }
    assert len({tuple(of) for of in losses.values()}) == 3
    none = Run("gcn", **(IB | dict(method="graphfm-ib+rest")))
    none.trainer.refresh.frequency.count = 0  # type: ignore[attr-defined]
    assert none.losses(6) == losses[""]
