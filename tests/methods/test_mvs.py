"""MVS: how nodes are drawn, what importance is, and what is refreshed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.methods.mvs import MVS, probabilities
from rest_triton.sampling.batch import Batch

from ..history import runs
from ..history.runs import NODES, PTR, Run, same_results

MODELS = ["gcn", "appnp", "gcnii"]
DRAWN: dict[str, Any] = dict(method="mvs", batch_nodes=12, importance_every=3, importance_share=0.6)


def method_of(run: Run) -> MVS:
    assert isinstance(run.trainer.method, MVS)
    return run.trainer.method


def training_nodes(run: Run) -> Tensor:
    assert run.graph.train_mask is not None
    return torch.nonzero(run.graph.train_mask).squeeze(1)


@pytest.mark.parametrize("model", MODELS)
def test_all_training_nodes_are_gas_on_their_batch(model: str) -> None:
    everyone = dict(batch_nodes=NODES, importance_share=1.0, importance_every=100)
    ours, gas = Run(model, method="mvs", **everyone), Run(model, method="gas")
    nodes = training_nodes(gas)
    batch = Batch(NODES, nodes=nodes, weight=torch.full((len(nodes),), 1 / len(nodes)))
    for _ in range(3):
        assert [float(loss) for loss in gas.trainer.update([batch])] == ours.losses(1)
    assert same_results(ours, gas)


@pytest.mark.parametrize("model", MODELS)
def test_if_every_node_is_a_training_node_it_is_full_batch_training(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(runs.graph(), train_mask=torch.ones(NODES, dtype=torch.bool))
    monkeypatch.setattr(runs, "graph", lambda directed: made)
    ours = Run(model, method="mvs", batch_nodes=NODES, importance_share=1.0, importance_every=2)
    full = Run(model, method="full")
    torch.testing.assert_close(ours.losses(5), full.losses(5), rtol=1e-4, atol=1e-5)


HEAVY = torch.rand(60, generator=torch.Generator().manual_seed(0)).pow(-1.5)
IMPORTANCE = {
    "heavy": HEAVY, "equal": torch.ones(60), "almost one": torch.tensor([1e9, *[1.0] * 59]),
    "zeros": torch.cat([HEAVY[:5], torch.zeros(55)]), "nothing": torch.zeros(60), "descending": torch.arange(60.0, 0, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPORTANCE)
@pytest.mark.parametrize("size", [1, 7, 59, 60, 80])
def test_probabilities_sum_up_to_the_size(name: str, size: int) -> None:
    g = IMPORTANCE[name]
    p = probabilities(g, size)
    assert float(p.sum()) == pytest.approx(min(size, 60), abs=1e-6) and float(p.min()) > 0 and float(p.max()) <= 1
    below = p < 1
    if int(below.sum()) > 1 and name != "zeros":
        ratio = p[below] / g.double().clamp_min(1e-30)[below]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
        assert bool((g[~below] >= g[below].max()).all())


def drawn(run: Run, draws: int) -> Tensor:
    """float64 [draws, N]: the weights of the loss, 0 of nodes that are not in the batch."""
    weights = torch.zeros(draws, NODES, dtype=torch.float64)
    for seed in range(draws):
        batch = method_of(run).draw(seed)
        assert batch.weight is not None
        weights[seed, batch.rows] = batch.weight.double()
    return weights


def test_the_loss_is_unbiased() -> None:
    """The mean over 4000 draws, for 200 vectors of losses, in standard errors."""
    run, draws = Run("gcn", **DRAWN), 4000
    method = method_of(run)
    method._draw_from(method.nodes, HEAVY[: len(method.nodes)], 0)
    weights = drawn(run, draws)
    values = torch.rand(NODES, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    estimates, exact = weights @ values, values[method.nodes].mean(0)
    z = (estimates.mean(0) - exact) / (estimates.std(0) / draws**0.5)
    assert float(z.abs().max()) < 4.5 and 0.5 < float(z.square().mean().sqrt()) < 1.6
    p, sizes = method.probabilities, (weights > 0).sum(1).double()
    assert float(p.sum()) == pytest.approx(12) and float(p.min()) < 0.2
    assert float(sizes.mean()) == pytest.approx(12, abs=4 * float((p * (1 - p)).sum().sqrt()) / draws**0.5)
    assert float(sizes.var()) == pytest.approx(float((p * (1 - p)).sum()), rel=0.1)
    assert float(torch.corrcoef((weights[:, method.nodes[:2]] > 0).double().T)[0, 1]) == pytest.approx(0, abs=0.07)


def test_importance_lowers_the_variance() -> None:
    loss = HEAVY.double()

    def variance(p: Tensor) -> float:
        return float((loss.square() * (1 - p) / p).sum())

    uniform = torch.full((60,), 0.25, dtype=torch.float64)
    assert variance(probabilities(loss, 15)) < 0.5 * variance(uniform)
    assert variance(probabilities(torch.full((60,), 3.0), 15)) == pytest.approx(variance(uniform))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", ["gcn", "gcn-linear", "gcnii", "appnp"])
def test_importance_is_the_gradient_of_the_last_linear_layer(model: str, far: bool) -> None:
    """By autograd in the whole graph, node by node; of APPNP, which ends with a propagation, that of the result."""
    run, full = Run(model, **DRAWN, far=far, dropout=0.0), Run(model, method="full", dropout=0.0)
    run.losses(4)
    method = method_of(run)
    run.engine.method.begin(run.engine, 4)
    full.model.load_state_dict(run.model.state_dict())
    logits = full.engine.forward(full.trainer.method.batches(0)[0], 1)
    assert run.graph.y is not None and len(method.nodes) == round(0.6 * len(training_nodes(run)))
    each = F.cross_entropy(logits, run.graph.y, reduction="none")
    last: Any = full.model
    last = {"gcn": lambda: [last.convs[-1].lin.weight, last.convs[-1].bias], "appnp": lambda: [logits]}.get(
        model, lambda: [*last.lins[-1].parameters()]
    )()
    found = [torch.autograd.grad(each[node], last, retain_graph=True) for node in method.nodes]
    expected = torch.stack([sum((g.square().sum() for g in of), torch.tensor(0.0)).sqrt() for of in found])
    full.engine.leave()
    torch.testing.assert_close(method.importance, expected, rtol=1e-3, atol=1e-5)
    assert float(expected.max() / expected.min()) > 1.2


@pytest.mark.parametrize("model", MODELS)
def test_an_exact_pass_fills_all_tables(model: str) -> None:
    run = Run(model, **DRAWN)
    gas, method = Run(model, method="gas"), method_of(run)
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(run.history.tables, gas.history.tables, strict=True))
    nodes = [method.nodes.tolist()]
    for step in range(1, 8):
        before = {name: value.clone() for name, value in run.model.state_dict().items()}
        (batch,) = next(run._batches)
        run.trainer.update([batch])
        stamps = {int(s) for s in run.history.tables[-1].stamp}
        if step % 3 == 0:
            assert stamps == {step} and method.renewed == step
            gas.model.load_state_dict(before)
            gas.engine.fill(step)
            assert all(torch.equal(a.rows, b.rows) for a, b in zip(run.history.tables, gas.history.tables, strict=True))
            nodes.append(method.nodes.tolist())
        else:
            assert stamps <= {step - step % 3, *range(step - step % 3, step + 1)} and method.renewed == step - step % 3
            assert (run.history.tables[-1].stamp[batch.rows] == step).all()
            assert set(batch.rows.tolist()) <= set(method.nodes.tolist())
    assert len({tuple(of) for of in nodes}) == 3
    assert set().union(*nodes) <= set(training_nodes(run).tolist())


def test_draws_depend_on_seed_epoch_and_number() -> None:
    run, other, third = (Run("gcn", **DRAWN, seed=seed) for seed in (0, 0, 1))
    count = -(-len(training_nodes(run)) // 12)
    epochs = [[batch.rows.tolist() for batch in method_of(each).batches(e)] for each in (run, other, third) for e in (1, 2)]
    assert epochs[0] == epochs[2] and epochs[1] == epochs[3] and len(epochs[0]) == count
    assert len({tuple(rows) for epoch in epochs[:2] + epochs[4:] for rows in epoch}) == 4 * count
    batches = method_of(run).batches(1)
    assert [batch.rows.tolist() for batch in batches[1:3]] == epochs[0][1:3] and batches[-1].rows.tolist() == epochs[0][-1]
    few = Run("gcn", **DRAWN, max_steps=1, accumulate=2)
    assert len(method_of(few).batches(1)) == 2 and len(few.step()) == 2


def test_a_batch_without_nodes_changes_no_weight() -> None:
    run = Run("gcn", **DRAWN, batch_norm=True)
    before = [p.clone() for p in run.model.parameters()]
    none = torch.empty(0, dtype=torch.int64)
    assert run.trainer.update([Batch(NODES, nodes=none, weight=none.float())]) == []
    assert all(map(torch.equal, run.model.parameters(), before))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", ["mvs", "mvs+rest", "mvs+rest-is"])
def test_far_tables_give_the_same_bits(model: str, method: str) -> None:
    near, far = (Run(model, **(DRAWN | dict(method=method)), far=far) for far in (False, True))
    losses = near.losses(7)
    assert far.losses(7) == losses and same_results(near, far)
    if method != "mvs":
        assert losses != Run(model, **DRAWN).losses(7)


def test_refreshes_are_of_all_nodes() -> None:
    run = Run("gcn", **(DRAWN | dict(method="mvs+rest", batch_size=3, importance_every=100, frequency=2)))
    refreshed: list[Batch] = []
    refresh = run.engine.refresh
    run.engine.refresh = lambda batch, *a, **o: (refreshed.append(batch), refresh(batch, *a, **o))[1]  # type: ignore[assignment]
    run.losses(5)
    assert [len(batch) for batch in refreshed] == [12] * 10 and all(len(batch.clusters) == 3 for batch in refreshed)
    assert sorted(node for batch in refreshed for node in batch.rows.tolist()) == list(range(NODES))  # one epoch of theirs
    assert sorted(node for batch in run.trainer.method.cover() for node in batch.rows.tolist()) == list(range(NODES))


def test_the_halo_is_refreshed_by_importance_sampling() -> None:
    """REST-IS: with two layers garbage in the table is gone before the batch reads it."""
    options = DRAWN | dict(method="mvs+rest-is", num_layers=2, dropout=0.0, importance_every=100)
    clean, poisoned = Run("gcn", **options), Run("gcn", **options)
    poisoned.history.tables[0].rows.fill_(1e3)
    assert clean.losses(1) == poisoned.losses(1)
    plain = Run("gcn", **(options | dict(method="mvs")))
    plain.history.tables[0].rows.fill_(1e3)
    assert plain.losses(1) != clean.losses(1)


def test_without_labels_it_is_refused() -> None:
    with pytest.raises(ValueError, match="make it with a graph that has labels and a training mask"):
        MVS(Config(dataset="small", method="mvs"), PTR, "cpu")
    assert Config(dataset="small").idle(["batch_nodes", "importance_every"])[1].endswith("method mvs, and method is gas")
