"""Dropout of the rows that training reads from tables: PyGAS's dropout of all rows, wherever the tables are."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, ModuleList

from rest_triton.config import Config
from rest_triton.nn import Context, HistoryGNN
from rest_triton.nn.inputs import Inputs
from rest_triton.nn.pyg import edges_of
from rest_triton.sampling.batch import node_batch

from ..history.runs import CLASSES, FEATURES, NODES, Run, disk, same_results
from ..history.runs import MODELS as KINDS
from .pygas import MODELS, PyGAS, kept

DRAWN: dict[str, Any] = dict(batch_nodes=15, importance_every=2, importance_share=0.8)
METHODS: dict[str, dict[str, Any]] = {
    "gas": dict(method="gas"),
    "rest": dict(method="gas+rest", frequency=2),
    "rest-is": dict(method="gas+rest-is", frequency=2),
    "lmc": dict(method="lmc+rest", frequency=2, gradient_frequency=1),
    "graphfm": dict(method="graphfm+rest-is", push_momentum=0.5),
    "mvs": dict(method="mvs+rest", **DRAWN),
}
SUMMING = ["gcn", "gcn-norm", "gcn-linear", "gcnii", "gin"]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_result_and_gradients_are_those_of_pygas(name: str, far: bool, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch and halo concatenated, all rows dropped by one mask, in either order of product and aggregate."""
    monkeypatch.setattr(Inputs, "transforms_first", lambda *of: first)
    found = []
    for drops in (True, False):
        run = Run(**MODELS[name], history_dropout=drops, far=far)
        run.losses(2)
        run.model.train()
        run.model.zero_grad()
        batch = run.batch(1, 4)
        chosen, y = batch.take(run.graph.train_mask), batch.take(run.graph.y)
        expected = PyGAS(run, batch, 9, drops=drops)()
        of_batch = F.cross_entropy(expected[chosen], y[chosen])
        parameters = list(run.model.parameters())
        gradients = torch.autograd.grad(of_batch, parameters)
        results: list[Tensor] = []

        def loss(logits: Tensor, results: list[Tensor] = results, chosen: Tensor = chosen, y: Tensor = y) -> Tensor:
            results.append(logits.detach())
            return F.cross_entropy(logits[chosen], y[chosen])

        run.engine.train(batch, 9, loss)
        torch.testing.assert_close(results[0], expected.detach(), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(parameters, gradients, strict=True):
            grad = torch.zeros_like(ours) if ours.grad is None else ours.grad  # None: a bias that BatchNorm cancels out
            torch.testing.assert_close(grad, theirs, rtol=1e-4, atol=1e-5)
        found.append(results[0])
    assert torch.equal(*found) == ("appnp" in name)  # which drops nothing that a table holds


class Neighbours(HistoryGNN):
    """Keeps what it reads by ``ctx.neighbourhood()``."""

    normalise = "sum"

    def __init__(self) -> None:
        super().__init__([16, 8])
        self.lins, self.seen = ModuleList(Linear(a, b) for a, b in ((FEATURES, 16), (16, 8), (8, CLASSES))), list[Tensor]()

    def layer(self, layer: int, ctx: Context) -> Tensor:
        x = ctx.neighbourhood()
        self.seen.append(x.detach())
        source, target = edges_of(ctx)
        h = self.lins[layer](x.new_zeros(len(ctx.h), x.shape[1]).index_add(0, target, x[source]))
        return h if layer == 2 else ctx.output(h, dropout=0.3)


@pytest.mark.parametrize("far", [False, True])
def test_a_neighbourhood_has_one_mask(far: bool) -> None:
    model = Neighbours()
    run = Run(model, history_dropout=True, far=far)
    run.losses(2)
    batch = run.batch(1, 4)
    halo = batch.halo(run.data.adj)
    before = [table.rows[halo].clone() for table in run.history.tables]
    model.seen.clear()
    run.engine.train(batch, 9, lambda logits: None)
    nodes = torch.cat([batch.rows, halo])
    for number, (table, outside) in enumerate(zip(run.history.tables, before, strict=True), 1):
        rows = torch.cat([table.rows[batch.rows], outside])
        expected = torch.where(kept(run, 9, number, nodes, rows.shape[1]), rows / 0.7, 0)
        torch.testing.assert_close(model.seen[number], expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", SUMMING)
def test_same_losses_wherever_the_tables_are(model: str, method: str, tmp_path: Path) -> None:
    dtype = "bfloat16" if model == "gcnii" else "float32"
    options: dict[str, Any] = dict(model=model, **METHODS[method], history_dropout=True, dtype=dtype)
    expected = Run(**options)
    losses = expected.losses(5)
    assert losses != Run(**(options | dict(history_dropout=False))).losses(5)
    for where in (dict(far=True), disk(tmp_path / "tables")):
        other = Run(**options, **where)
        assert other.losses(5) == losses and same_results(expected, other)
        other.trainer.close()


@pytest.mark.parametrize("model", ["gat", "pna"])
def test_models_that_attend(model: str) -> None:
    near, far = (Run(model, method="gas+rest-is", history_dropout=True, far=far) for far in (False, True))
    losses = near.losses(4)
    assert far.losses(4) == losses and same_results(near, far)
    assert losses != Run(model, method="gas+rest-is").losses(4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", KINDS)
def test_without_dropout_nothing_changes(model: str, method: str) -> None:
    if model in ("gat", "pna") and method in ("lmc", "graphfm"):
        method = "gas"
    without, given = (Run(model, **METHODS[method], dropout=0.0, history_dropout=on) for on in (False, True))
    assert without.losses(3) == given.losses(3) and same_results(without, given)


def test_a_halo_of_no_rows() -> None:
    run = Run("gcn", history_dropout=True)
    batch = node_batch(torch.arange(NODES - 3, NODES), NODES)
    assert batch.halo(run.data.adj).numel() == 0
    run.engine.train(batch, 1, lambda logits: logits.sum())
    full, ours = Run("gcn", method="full"), Run("gcn", batch_size=6, history_dropout=True)
    assert full.losses(3) == ours.losses(3)


@pytest.mark.parametrize("training", [True, False])
def test_forwards_without_dropout_read_rows_as_they_are(training: bool) -> None:
    """Refreshes drop what a training forward drops. Those in eval mode, and results in eval mode, do not."""
    tables, results = [], []
    for on in (False, True):
        run = Run("gcnii", history_dropout=on)
        results.append(run.engine.predict(run.batch(2), 1))
        run.engine.refresh(run.batch(0, 3), 1, training=training)
        tables.append(run.history.tables[-1].rows)
    assert torch.equal(*results) and torch.equal(*tables) != training


@pytest.mark.parametrize("method", ["full", "lmc-coded"])  # the latter has dropout of these rows in any case
def test_methods_on_which_it_has_no_effect(method: str) -> None:
    said = f"--history-dropout changes nothing: it belongs to method gas or lmc or graphfm or mvs, and method is {method}"
    assert Config(dataset="small", method=method, history_dropout=True).idle(["history_dropout"]) == [said]
    assert Config(dataset="small", history_dropout=True).idle(["history_dropout"]) == []
