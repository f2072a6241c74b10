"""BatchNorm as the activation applies it is torch's BatchNorm1d."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d

from rest_triton.nn import GCN
from rest_triton.nn.norm import batch_moments, track
from rest_triton.sampling.batch import Batch

from ..history.runs import CLASSES, FEATURES, NODES, Run


def dense(run: Run) -> Tensor:
    """[N, N]: the normalised adjacency."""
    adj, matrix = run.data.adj, torch.zeros(NODES, NODES)
    target = torch.repeat_interleave(torch.arange(NODES), adj.rowptr.diff())
    assert adj.row_scale is not None
    matrix[target, adj.col.long()] = adj.row_scale[target] * adj.row_scale[adj.col.long()]
    return matrix


def test_statistics_and_gradients_in_a_model() -> None:
    run = Run("gcn-norm", dropout=0.0, batch_size=6, lr=0.0)
    norms = [BatchNorm1d(16), BatchNorm1d(16)]
    lins = [torch.nn.Linear(conv.lin.in_features, conv.lin.out_features) for conv in run.model.convs]
    for ours, theirs in zip(run.model.convs, lins, strict=True):
        torch.nn.init.uniform_(ours.bias, -1, 1)
        theirs.load_state_dict({"weight": ours.lin.weight, "bias": ours.bias})
    matrix, chosen = dense(run), run.graph.train_mask
    h = norms[0](lins[0](matrix @ run.data.x)).relu()
    h = (norms[1](lins[1](matrix @ h)) + h).relu()
    expected = F.cross_entropy(lins[2](matrix @ h)[chosen], run.graph.y[chosen])
    expected.backward()
    (loss,) = run.step()
    torch.testing.assert_close(loss, expected.detach())
    for ours, theirs in zip(run.model.bns, norms, strict=True):
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        assert ours.num_batches_tracked == 1
    for ours, theirs in zip(run.model.convs, lins, strict=True):
        torch.testing.assert_close(ours.lin.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [None, 0.3])
def test_running_statistics_over_three_batches(momentum: float | None) -> None:
    """Without momentum they are the mean over all batches."""
    ours, theirs = BatchNorm1d(4, momentum=momentum), BatchNorm1d(4, momentum=momentum)
    bias = torch.randn(4)
    for rows in (5, 2, 9):
        h = torch.randn(rows, 4)
        theirs(h + bias)
        track(ours, batch_moments(h), rows, bias)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        assert torch.equal(ours.num_batches_tracked, theirs.num_batches_tracked)


def test_a_training_batch_of_one_row_uses_running_statistics() -> None:
    """One row has no variance. The statistics stay as they are."""
    model = GCN(FEATURES, 16, CLASSES, 2, batch_norm=True)
    run = Run(model)
    (norm,) = model.bns
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    one = Batch(NODES, ranges=((3, 4),))
    results: list[Tensor] = []
    run.engine.fill(1)
    run.engine.train(one, 1, lambda logits: results.append(logits.detach()))
    torch.testing.assert_close(results[0], run.engine.exact()[3:4])
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
