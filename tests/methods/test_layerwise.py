"""FastGCN and LADIES: what is drawn, and that the estimates are unbiased without --row-normalise."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.methods.baselines.layerwise import Layerwise
from rest_triton.sampling.batch import Batch
from rest_triton.utils.errors import UserError

from ..history.runs import FEATURES, NODES, Run
from .test_graphfm import dense
from .test_sage import exact_aggregate, of_last_layer, prepared
from .unbiased import unbiased

METHODS = ["fastgcn", "ladies"]
MODELS = ["gcn", "gcn-linear", "appnp", "gcnii", "gin"]
TARGETS = torch.arange(0, 120, 6)
FEW: dict[str, Any] = dict(layer_nodes=30, batch_nodes=20)


def method_of(run: Run) -> Layerwise:
    assert isinstance(run.trainer.method, Layerwise)
    return run.trainer.method


def probabilities(run: Run, rows: Tensor) -> Tensor:
    """float64 [N]: q by its definition. An edge that is there twice counts as two."""
    adj, column = run.data.adj, torch.zeros(NODES, dtype=torch.float64)
    assert adj.row_scale is not None and adj.col_scale is not None
    for g in range(NODES) if run.config.method == "fastgcn" else rows.tolist():
        for k in range(int(adj.rowptr[g]), int(adj.rowptr[g + 1])):
            column[adj.col[k]] += float(adj.row_scale[g] * adj.col_scale[adj.col[k]]) ** 2
    return column / column.sum()


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_drawn(method: str, directed: bool) -> None:
    """Evenly spaced numbers draw each node as often as its q says, and the method knows q."""
    run, size = Run("gcn", method=method, **FEW, directed=directed), 100_000
    even = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    chosen, times, q = method_of(run).draw(run.data.adj, TARGETS, even)
    expected = probabilities(run, TARGETS)
    assert chosen.tolist() == torch.nonzero(expected).flatten().tolist() and int(times.sum()) == size
    torch.testing.assert_close(q, expected[chosen], rtol=1e-5, atol=0)
    edges = 1 if method == "fastgcn" else int(run.data.adj.rowptr.diff().max())  # LADIES draws a node by its edges
    assert float((times - size * q).abs().max()) <= edges
    ends = method_of(run).draw(run.data.adj, TARGETS, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert bool((ends[2] > 0).all())


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_aggregates_are_unbiased(method: str, directed: bool) -> None:
    """The mean of 1500 draws, for 20 rows of 12 columns. Rows that are normalised have the same sums, with a bias."""
    options: dict[str, Any] = dict(method=method, layer_nodes=60, directed=directed)
    run = Run("gcn", **options)
    h = torch.rand(NODES, FEATURES, generator=torch.Generator().manual_seed(1))
    exact, ones = exact_aggregate(run, TARGETS, h), exact_aggregate(run, TARGETS, torch.ones(NODES, 1))

    def draws(run: Run, h: Tensor) -> Tensor:
        return torch.stack([of_last_layer(prepared(run, TARGETS, step), h) for step in range(1500)])

    assert unbiased(draws(run, h), exact)
    biased = Run("gcn", **options, row_normalise=True)
    found = draws(biased, torch.cat([h, torch.ones(NODES, 1)], 1))
    assert not unbiased(found[..., :-1], exact)
    sums, wanted = found[..., -1:], ones.expand(1500, -1, -1)
    torch.testing.assert_close(sums[sums > 0], wanted[sums > 0])
    assert int((sums > 0).sum()) > 1500 * 10 and (sums[sums <= 0] == 0).all()  # rows without a drawn neighbour


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_rows_of_each_layer(model: str, method: str) -> None:
    """Each layer reads its own rows and at most ``layer_nodes`` others. LADIES draws neighbours of the rows alone."""
    run = Run(model, method=method, **FEW)
    batch = prepared(run, TARGETS, 3)
    assert batch.counts is not None and batch.samples is not None
    layers = run.model.num_layers
    assert len(batch.counts) == layers + 1 and batch.counts[-1] == 20 and len(batch.rows.unique()) == len(batch)
    assert (batch.samples[0] is None) == (not run.model.encodes)
    near = dense(run) != 0
    for layer, sample in enumerate(batch.samples):
        if sample is None:
            assert batch.counts[layer] == batch.counts[layer + 1]
            continue
        rows, source = batch.rows[: batch.counts[layer + 1]], batch.rows[: batch.counts[layer]]
        fresh = source[len(rows) :]
        assert len(fresh) <= 30
        if method == "ladies":
            assert bool(near[rows][:, fresh].any(0).all())
        read = source[sample.adj.col.long()]
        target = rows[torch.repeat_interleave(torch.arange(len(rows)), sample.adj.rowptr.diff())]
        assert bool(near[target, read].all()) and torch.equal(read, sample.by_node.col.long()) and len(read.unique()) <= 30
    assert all(torch.equal(p, ~torch.arange(NODES, dtype=torch.int32)) for p in run.engine.maps["compute"]._free)


@pytest.mark.parametrize("method", METHODS)
def test_samples_depend_on_seed_step_and_layer(method: str) -> None:
    run, other = (Run("gcnii", method=method, **FEW, seed=seed) for seed in (0, 1))
    of = [prepared(r, TARGETS, step).rows.tolist() for r, step in ((run, 1), (run, 1), (run, 2), (other, 1))]
    assert of[0] == of[1] and of[0] != of[2] and of[0] != of[3]


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_a_neighbour(method: str) -> None:
    """GIN has no self-loops: no node can be drawn for isolated rows, and their gradients are finite."""
    run = Run("gin", method=method, **FEW)
    isolated = torch.arange(NODES - 3, NODES)
    batch = method_of(run).prepare(run.engine, Batch(NODES, nodes=isolated), 1)
    loss = run.engine.train(batch, 1, lambda logits: logits.square().sum())
    assert loss is not None and bool(torch.isfinite(loss))
    assert all(bool(torch.isfinite(p.grad).all()) for p in run.model.parameters() if p.grad is not None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_it_learns_and_is_evaluated_exactly(model: str, method: str) -> None:
    run = Run(model, method=method, layer_nodes=200, batch_nodes=40, dropout=0.0, row_normalise=True, lr=0.05)
    losses = run.losses(60)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6]) and run.history.all_tables == []
    full = Run(model, method="full", dropout=0.0)
    full.model.load_state_dict(run.model.state_dict())
    assert torch.equal(run.engine.exact(), full.engine.exact())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_refused(method: str) -> None:
    for options, message in (
        (dict(method=f"{method}+rest-is"), f"method is '{method}+rest-is', but {method} has no tables to refresh"),
        (dict(model="pna"), f"method is {method}, but model pna does not sum over neighbours"),
        (dict(edge_dropout=0.5), f"edge_dropout is 0.5, but method {method} samples neighbours instead"),
        (dict(layer_nodes=0), "layer_nodes is 0; it must be at least 1"),
    ):
        with pytest.raises(UserError) as refusal:
            Config(**(dict(dataset="cora", method=method) | options))
        assert str(refusal.value).startswith(message)
    assert Config(dataset="cora").idle(["layer_nodes"])[0].endswith("method fastgcn or ladies, and method is gas")
