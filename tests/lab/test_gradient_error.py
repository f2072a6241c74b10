"""Gradient errors of methods: by hand in plain torch, and what is known of them without a computation."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.methods.engine import Engine
from rest_triton.methods.mvs import MVS
from rest_triton.sampling.batch import Batch
from rest_triton.training.gradient_error import Estimate, full_gradient, full_gradients, gradient_error
from rest_triton.training.staleness import history_error
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import NODES, Run, disk

DRAWN: dict[str, Any] = dict(batch_nodes=20, importance_every=2, importance_share=0.5)
BASES = ("gas", "lmc", "lmc-coded", "graphfm", "graphfm-ib", "vrgcn", "mvs", "refresh")


def made(model: str, method: str, steps: int = 0, **settings: Any) -> Run:
    sampled = dict(fanout="3") if method.partition("+")[0] in ("graphfm-ib", "vrgcn", "refresh") else {}
    run = Run(model, method=method, **(DRAWN | sampled | settings))
    run.losses(steps)
    return run


def error_of(run: Run, training: bool = False, **more: Any) -> Estimate:
    found = gradient_error(run.engine, run.graph, run.trainer.step, run.trainer.refresh, training=training, **more)
    assert found is not None
    return found


def dense(run: Run) -> Tensor:
    adj = run.data.adj
    row, col = torch.repeat_interleave(torch.arange(NODES), adj.rowptr.diff()), adj.col.long()
    assert adj.row_scale is not None and adj.col_scale is not None
    return torch.zeros(NODES, NODES).index_put_((row, col), adj.row_scale[row] * adj.col_scale[col])


def by_hand(run: Run, rows: Tensor, chosen: Tensor) -> Tensor:
    """The gradient of the mean loss of ``chosen`` by a GCN of three layers that computes ``rows`` and reads tables."""
    weights = list(run.model.parameters())
    a, h, u = dense(run), run.data.x, torch.empty(0)
    for layer, conv in enumerate(run.model.convs):
        if layer > 0:
            h = u.relu() if not run.history.tables else run.history.tables[layer - 1].rows.index_put((rows,), u.relu())
        u = F.linear(a[rows] @ h, conv.lin.weight, conv.bias)
    logits = torch.zeros(NODES, u.shape[1]).index_put((rows,), u)
    loss = F.cross_entropy(logits[chosen], run.graph.y[chosen])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])


def test_errors_of_gas_by_hand() -> None:
    """Means over batches are weighted by their training nodes; expectations are corrected by the spread of epochs."""
    run = made("gcn", "gas", 10)
    train = torch.nonzero(run.graph.train_mask).squeeze(1)
    full = Run("gcn", method="full")
    full.model.load_state_dict(run.model.state_dict())
    truth = by_hand(full, torch.arange(NODES), train).double()
    torch.testing.assert_close(full_gradient(run.engine, run.graph).double(), truth, rtol=1e-4, atol=1e-6)
    epochs = []
    for number in (run.config.epochs + 1, run.config.epochs + 2):
        of_epoch = []
        for batch in run.trainer.method.batches(number):
            chosen = batch.rows[run.graph.train_mask[batch.rows]]
            of_epoch.append(by_hand(run, batch.rows, chosen).double() * 3 * len(chosen) / len(train))
        epochs.append(torch.stack(of_epoch))
    size, each = truth.norm(), torch.cat(epochs)
    first, second = (of_epoch.mean(0) for of_epoch in epochs)
    found = error_of(run)
    # For two epochs the corrected square is the product of both differences.
    assert found.bias == pytest.approx(float((((first - truth) @ (second - truth)) ** 0.5) / size), rel=1e-3)
    assert found.standard_error == pytest.approx(float((first - second).norm() / 2 / size), rel=1e-3)
    assert found.noise == pytest.approx(float(((each - each.mean(0)).square().sum() / 5) ** 0.5 / size), rel=1e-3)
    assert found.norm == pytest.approx(float((first @ second) ** 0.5 / size), rel=1e-3)
    assert found.cosine == pytest.approx(float((first + second) / 2 @ truth / (first @ second) ** 0.5 / size), rel=1e-3)
    assert found.batch_cosine == pytest.approx(float(F.cosine_similarity(each, truth[None]).mean()), rel=1e-3)


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_lmc_has_no_bias_once_its_tables_are_exact(model: str) -> None:
    """With frozen weights. GAS has one, also from exact tables. Each batch alone is far off for both."""
    errors = {}
    for method in ("lmc", "gas", "full"):
        run = made(model, method, dropout=0.0, lr=0.0)
        run.losses(3 * 2 * (run.model.num_layers + 1))
        errors[method] = error_of(run)
    assert errors["lmc"].bias < 1e-3 and errors["lmc"].cosine > 1 - 1e-6 and errors["lmc"].noise > 0.1
    assert errors["gas"].bias > 0.1 and errors["gas"].noise > 0.1
    assert errors["full"].bias < 1e-5 and errors["full"].noise < 1e-5


@pytest.mark.parametrize("refresh", ["+rest", "+rest-is"])
@pytest.mark.parametrize("base", BASES)
def test_nothing_of_a_run_moves(base: str, refresh: str) -> None:
    """Weights, statistics, tables, stamps and states: the run goes on as if nothing was measured."""
    ours, theirs = (made("gcnii-norm", base + refresh, 4, far=base == "lmc") for _ in range(2))
    before = [t.clone() for t in ours.results()]
    for training in (False, True):
        found = error_of(ours, training, epochs=2, most=2, draws=2)
        assert all(value == value for value in asdict(found).values()) and found.noise > 0
    ours.history.streams.finish()
    assert all(map(torch.equal, before, ours.results()))
    assert ours.losses(4) == theirs.losses(4)


def test_a_sample_of_all_neighbours_has_no_bias() -> None:
    """Nothing is cut off: batches differ in their targets alone. With few neighbours there is more noise."""
    many, few = (error_of(made("gcn", "vrgcn", fanout=fanout)) for fanout in ("1000", "2"))
    assert many.bias < 1e-3 < many.noise < few.noise


def test_the_full_batch_has_no_bias_in_training_mode() -> None:
    """Its draws differ by dropout alone."""
    found = error_of(made("gcn", "full", 5), training=True, epochs=100, draws=100)
    assert 0.05 < found.standard_error < 0.3 and found.bias < 2 * found.standard_error and found.noise > 0.5
    run = made("gcn", "full", dropout=0.5)
    a, b, again = full_gradients(run.engine, run.graph, [1, 2, 1], training=True)
    assert torch.equal(a, again) and not torch.equal(a, b)


def test_dropout_of_batches_is_not_that_of_the_full_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = made("gcn", "gas", 2), dict[bool, list[int]]({True: [], False: []})
    gradients = Engine.gradients

    def seeing(engine: Engine, batch: Batch, step: int, *of: Any, **more: Any) -> Any:
        seen[len(batch) == NODES].append(step)
        return gradients(engine, batch, step, *of, **more)

    monkeypatch.setattr(Engine, "gradients", seeing)
    error_of(run, training=True, draws=5)
    assert len(set(seen[True])) == 5 and len(set(seen[False])) == 6 and not set(seen[True]) & set(seen[False])


def test_pushes_are_part_of_a_gradient() -> None:
    """GraphFM's batches move the rows that they read next, GraphFM-IB's aggregates are averages with those in tables."""
    for method, option in (("graphfm", "push_momentum"), ("graphfm-ib", "ib_momentum")):
        runs = [made("gcn", method, 6, **{option: momentum}) for momentum in (0.9, 0.9)]
        object.__setattr__(runs[1].trainer.config, option, 0.0)
        assert error_of(runs[0]).bias != pytest.approx(error_of(runs[1]).bias, rel=1e-3)


def test_mvs_draws_from_other_nodes_each_time() -> None:
    """And each node with the weight that makes the expected loss the mean over all training nodes."""
    run = made("gcn", "mvs", 3, batch_nodes=15)
    method, weights = run.trainer.method, torch.zeros(NODES, dtype=torch.float64)
    assert isinstance(method, MVS)
    known, draws, values = set(method.nodes.tolist()), list[Batch](), []
    state = {name: value.clone() if isinstance(value, Tensor) else value for name, value in method.state().items()}
    for epoch in range(100):
        draws += method.draws(run.engine, epoch, 4)
    score = torch.randn(NODES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for batch in draws:
        assert batch.weight is not None
        weights[batch.rows] += batch.weight.double()
        values.append(float((batch.weight.double() * score[batch.rows]).sum()))
    found, truth = torch.tensor(values), float(score[run.graph.train_mask].mean())
    assert abs(float(found.mean()) - truth) < 4 * float(found.std()) / len(values) ** 0.5 < 0.2
    assert not set(torch.nonzero(weights).squeeze(1).tolist()) <= known
    method.load(state)


@pytest.mark.parametrize("base", BASES)
def test_error_of_tables(base: str) -> None:
    """None after they were filled exactly, some after training; none of rows that were never written.

    GraphFM and LMC as published change rows by incomplete sums.
    """
    run = made("gcnii", base, dropout=0.0)
    filled = history_error(run.engine)
    assert (filled is None) if base in ("graphfm-ib", "refresh") else filled is not None and filled < 1e-5
    run.losses(6)
    error = history_error(run.engine)
    assert error is not None and error > 1e-3
    frozen = made("gcnii", base, dropout=0.0, lr=0.0, **(dict(fanout="1000") if base in ("graphfm-ib", "refresh") else {}))
    frozen.losses(3)
    error = history_error(frozen.engine)
    assert error is not None and error < (0.2 if base in ("graphfm", "lmc-coded") else 1e-5)
    assert history_error(made("gcn", "full").engine) is None


def test_tables_on_disk_are_refused(tmp_path: Path) -> None:
    run = Run("gcn", **disk(tmp_path))
    with pytest.raises(UserError, match=r"history is disk, .* give --history device"):
        error_of(run)
    run.history.close()


def test_a_batch_without_training_nodes_counts() -> None:
    """Its gradient is zero: the mean over all batches is still weighted by training nodes."""
    from ..training.data import settings, small

    trainer = Trainer(settings(batch_size=1), small(only=3))
    trainer.begin()
    found = gradient_error(trainer.engine, trainer.loaded.graph, trainer.step)
    assert found is not None and found.noise > 1 and 0 < found.norm < 2
