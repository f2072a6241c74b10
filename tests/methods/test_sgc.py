"""SGC: features are aggregated once, and training reads no edge."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rest_triton.config import Config
from rest_triton.ops import Adjacency, history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.utils.errors import UserError

from ..history.runs import CLASSES, FEATURES, NODES, Run

SGC: dict[str, Any] = dict(method="sgc", batch_nodes=25)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_features_are_exact_aggregates(layers: int, directed: bool) -> None:
    """Bitwise, whatever the pieces."""
    run = Run("gcn", **(SGC | dict(num_layers=layers)), directed=directed)
    x, outside = run.data.x, ~torch.arange(NODES, dtype=torch.int32)
    for layer in range(layers):
        pieces = torch.randperm(NODES).split(17 + layer)
        aggregated = torch.empty_like(x)
        for piece in pieces:
            aggregated[piece] = history_spmm(run.data.adj, piece, outside, None, x)
        x = aggregated
    assert torch.equal(run.engine.inputs.aggregated().rows, x)


def test_training_reads_no_edge() -> None:
    run, cut = Run("gcn", **SGC), Run("gcn", **SGC)
    cut.engine.inputs.adj = Adjacency(torch.zeros(NODES + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    losses = run.losses(10)
    assert cut.losses(10) == losses and torch.equal(cut.engine.exact(), run.engine.exact())


def test_it_is_a_linear_model_of_these_features() -> None:
    """Softmax regression: two parameters, and torch's gradients of them."""
    run = Run("gcn", **SGC, dropout=0.5, hidden_channels=64)
    assert [tuple(p.shape) for p in run.model.parameters()] in (
        [(CLASSES,), (CLASSES, FEATURES)],
        [(CLASSES, FEATURES), (CLASSES,)],
    )
    assert run.graph.y is not None and run.history.all_tables == []
    batch, x = run.trainer.method.batches(1)[0], run.engine.inputs.aggregated().rows
    y = run.graph.y[batch.rows]
    weight, bias = (p.detach().clone().requires_grad_() for p in sorted(run.model.parameters(), key=lambda p: -p.dim()))
    expected = F.cross_entropy(F.linear(x[batch.rows], weight, bias), y)
    expected.backward()
    loss = run.engine.train(batch, 1, run.trainer.method.loss(run.graph, batch, torch.device("cpu")))
    assert loss is not None
    torch.testing.assert_close(loss, expected.detach())
    for ours in run.model.parameters():
        torch.testing.assert_close(ours.grad, weight.grad if ours.dim() == 2 else bias.grad)
    torch.testing.assert_close(run.engine.exact(), F.linear(x, weight, bias).detach())


def test_a_batch_of_all_training_nodes_is_full_batch_training() -> None:
    """Of the same linear model: a GCN of one layer on features that were aggregated before."""
    ours = Run("gcn", **(SGC | dict(num_layers=1, batch_nodes=NODES)))
    full = Run("gcn", method="full", num_layers=1)
    torch.testing.assert_close(ours.losses(6), full.losses(6), rtol=1e-5, atol=1e-6)


def test_it_learns() -> None:
    run = Run("gcn", **SGC, lr=0.2)
    losses = run.losses(60)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    everyone = Batch(NODES, ranges=((0, NODES),))
    torch.testing.assert_close(run.engine.predict(everyone, 1), run.engine.exact())
    assert sorted(node for batch in run.trainer.method.cover() for node in batch.rows.tolist()) == list(range(NODES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(method="sgc+rest"), "method is 'sgc+rest', but sgc has no tables to refresh; give --method sgc, or one of"),
        (
            dict(model="appnp"),
            "model is appnp, but sgc is a linear model of aggregated features; give --model gcn --no-linear",
        ),
        (dict(model="gat"), "model is gat, but sgc is a linear model of aggregated features; give --model gcn --no-linear"),
        (dict(linear=True), "linear is on, but sgc is a linear model of aggregated features; give --model gcn --no-linear"),
        (dict(drop_input=True), "drop_input is True, but sgc aggregates features once; give --no-drop-input"),
        (dict(edge_dropout=0.4), "edge_dropout is 0.4, but sgc aggregates features once; give --edge-dropout 0"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        Config(**(dict(dataset="cora", method="sgc") | options))
    assert str(refusal.value).startswith(message)
