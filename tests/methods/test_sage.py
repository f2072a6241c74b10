"""Neighbour sampling without tables: with all neighbours it is exact, with a few of them unbiased."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.methods.baselines.sage import SAGE
from rest_triton.ops import history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.sampling.sample import Sample
from rest_triton.utils.errors import UserError

from ..history.runs import FEATURES, NODES, PTR, Run
from .unbiased import unbiased

MODELS = ["gcn", "gcn-linear", "appnp", "gcnii", "gin"]
ALL: dict[str, Any] = dict(method="sage", fanout=str(NODES))
FEW: dict[str, Any] = dict(method="sage", fanout="2", batch_nodes=20)


def prepared(run: Run, targets: Tensor, step: int) -> Batch:
    return run.trainer.method.prepare(run.engine, Batch(NODES, nodes=targets), step)


def of_last_layer(batch: Batch, h: Tensor, row_scale: Tensor | None = None) -> Tensor:
    """[R, D]: the aggregate of the last layer, if its input is h. row_scale: instead of the sample's."""
    assert batch.samples is not None and batch.counts is not None
    sample: Sample | None = batch.samples[-1]
    assert sample is not None
    adj = sample.adj if row_scale is None else replace(sample.adj, row_scale=row_scale)
    x = h[batch.rows[: batch.counts[-2]]]
    return history_spmm(adj, sample.rows, sample.position, x, None, x_rows=sample.inside, row_position=sample.row_position)


def exact_aggregate(run: Run, targets: Tensor, h: Tensor) -> Tensor:
    return history_spmm(run.data.adj, targets, run.engine.inputs.outside(), None, h)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("directed", [False, True])
def test_with_all_neighbours_it_is_exact(model: str, directed: bool) -> None:
    """Results and gradients of a few targets are those of the whole graph."""
    run, targets = Run(model, **ALL, directed=directed), torch.tensor([41, 3, 17, 119, 58])
    full = Run(model, method="full", directed=directed)
    assert run.graph.y is not None
    y, everyone = run.graph.y[targets], full.trainer.method.batches(0)[0]
    ours = run.engine.gradients(prepared(run, targets, 1), 1, lambda logits: F.cross_entropy(logits, y))
    exact = full.engine.gradients(everyone, 1, lambda logits: F.cross_entropy(logits[targets], y))
    assert ours is not None and exact is not None
    torch.testing.assert_close(ours[1], exact[1][targets], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[0], exact[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_of_all_training_nodes_is_full_batch_training(model: str) -> None:
    """With dropout: a node drops the same features in every batch of a step."""
    ours, full = Run(model, **ALL, batch_nodes=NODES), Run(model, method="full")
    torch.testing.assert_close(ours.losses(6), full.losses(6), rtol=1e-5, atol=1e-6)
    few = Run(model, method="sage", fanout="2", batch_nodes=NODES)
    assert max(abs(a - b) for a, b in zip(few.losses(6), full.losses(6), strict=True)) > 1e-3


@pytest.mark.parametrize("directed", [False, True])
def test_aggregates_are_unbiased(directed: bool) -> None:
    """The mean of 1000 draws, for 20 rows of 12 columns. Without the factor degree / fan-out it is not the exact one."""
    run = Run("gcn", **FEW, directed=directed)
    targets = torch.arange(0, 120, 6)
    h = torch.rand(NODES, FEATURES, generator=torch.Generator().manual_seed(1))
    batches = [prepared(run, targets, step) for step in range(1000)]
    exact = exact_aggregate(run, targets, h)
    assert unbiased(torch.stack([of_last_layer(batch, h) for batch in batches]), exact)
    assert run.data.adj.row_scale is not None
    plain = run.data.adj.row_scale[targets]
    assert not unbiased(torch.stack([of_last_layer(batch, h, plain) for batch in batches]), exact)


def test_samples_are_those_of_a_loader_without_replacement() -> None:
    """Each neighbour of a row with d of them is drawn with probability ``fanout / d``, and no one twice, as in PyG."""
    run, draws = Run("gcn", **FEW), 1000
    targets = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])
    adj = run.data.adj
    hits: dict[tuple[int, int], int] = {}
    for step in range(draws):
        batch = prepared(run, targets, step)
        assert batch.samples is not None and batch.samples[-1] is not None
        sample = batch.samples[-1].by_node
        for i, g in enumerate(targets.tolist()):
            drawn = sample.col[sample.rowptr[i] : sample.rowptr[i + 1]].tolist()
            neighbours = adj.col[adj.rowptr[g] : adj.rowptr[g + 1]].tolist()
            assert len(drawn) == min(2, len(neighbours)) and set(drawn) <= set(neighbours)
            for v in drawn:
                hits[g, v] = hits.get((g, v), 0) + 1
    for g in targets.tolist():
        neighbours, degree = adj.col[adj.rowptr[g] : adj.rowptr[g + 1]].tolist(), int(adj.rowptr[g + 1] - adj.rowptr[g])
        p = min(1.0, 2 / degree)
        for v in set(neighbours):
            expected = draws * p * neighbours.count(v)
            assert abs(hits[g, v] - expected) <= 5 * (draws * p * (1 - p) * neighbours.count(v)) ** 0.5


def test_batches_are_the_training_nodes() -> None:
    run = Run("gcn", **FEW)
    training = torch.nonzero(run.graph.train_mask).flatten().tolist()
    first, second = ([batch.rows.tolist() for batch in run.trainer.method.batches(epoch)] for epoch in (1, 2))
    assert all(sorted(n for rows in of for n in rows) == training for of in (first, second)) and first != second
    assert all(len(rows) == 20 for rows in first[:-1]) and run.trainer.method.batches(1)[-1].rows.tolist() == first[-1]
    assert len(run.trainer.method.batches(1)[1:]) == len(first) - 1
    assert len(Run("gcn", **FEW, max_steps=1, accumulate=2).trainer.method.batches(1)) == 2


@pytest.mark.parametrize("model", MODELS)
def test_it_learns_and_is_evaluated_exactly(model: str) -> None:
    run = Run(model, **(FEW | dict(fanout="8")), dropout=0.0, lr=0.05, first="exact" if model == "appnp" else "cached")
    losses = run.losses(60)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6]) and run.history.all_tables == []
    full = Run(model, method="full", dropout=0.0)
    full.model.load_state_dict(run.model.state_dict())
    assert torch.equal(run.engine.exact(), full.engine.exact()) and run.trainer.evaluate() == full.trainer.evaluate()


def test_what_is_refused() -> None:
    for options, message in (
        (
            dict(method="sage+rest"),
            "method is 'sage+rest', but sage has no tables to refresh; give --method sage, or one of",
        ),
        (dict(model="gat"), "method is sage, but model gat does not sum over neighbours; give --method gas, or"),
        (dict(edge_dropout=0.5), "edge_dropout is 0.5, but method sage samples neighbours instead; give --edge-dropout 0"),
        (dict(fanout="3,0"), "fanout is '3,0'; it must be a whole number of at least 1"),
    ):
        with pytest.raises(UserError) as refusal:
            Config(**(dict(dataset="cora", method="sage") | options))
        assert str(refusal.value).startswith(message)
    with pytest.raises(ValueError, match="make it with a graph that has a training mask"):
        SAGE(Config(dataset="small", method="sage"), PTR, "cpu")
