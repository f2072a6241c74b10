"""Scores and losses, compared with values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from rest_triton.data.graph import Graph
from rest_triton.methods.loss import mean_loss
from rest_triton.sampling.batch import Batch, ClusterBatches, node_batch
from rest_triton.training.metrics import score, scores

CPU = torch.device("cpu")


def logits_for(*classes: int) -> Tensor:
    """Rows of logits with the largest at these classes."""
    return torch.tensor([[3.0 if c == wanted else float(c) / 10 for c in range(3)] for wanted in classes])


def surprise(row: list[float], wanted: int) -> float:
    """Cross entropy of one row."""
    return math.log(sum(map(math.exp, row))) - row[wanted]


def value(loss: Tensor | None) -> float:
    assert loss is not None
    return float(loss.detach())


def masks(train: list[int], val: list[int], test: list[int], nodes: int) -> dict[str, Tensor]:
    return {
        f"{name}_mask": torch.tensor([i in which for i in range(nodes)])
        for name, which in (("train", train), ("val", val), ("test", test))
    }


def graph(y: Tensor, **others: Tensor) -> Graph:
    return Graph.from_edges(torch.tensor([[0], [1]]), len(y), symmetrise=True, y=y, **others)


def test_accuracy() -> None:
    assert score(logits_for(0, 1, 2, 2), torch.tensor([0, 1, 2, 0])) == 0.75
    assert score(logits_for(0, 1), torch.tensor([1, 0])) == 0.0


def test_labels_that_are_not_known_do_not_count() -> None:
    assert score(logits_for(0, 1, 2, 0), torch.tensor([0, -1, 1, -1])) == 0.5
    assert score(logits_for(0, 1), torch.tensor([-1, -1])) == 0.0
    y = torch.tensor([[1, 0, 0], [-1, -1, -1], [1, 1, -1]], dtype=torch.int8)
    assert score(torch.tensor([[1.0, -1.0, -1.0], [5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]), y) == 1.0  # of the first row alone


def test_micro_f1() -> None:
    y = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.int8)
    logits = torch.tensor([[0.1, 2.0, -1.0], [-3.0, 0.5, -0.1], [1.0, 0.0, 4.0]])
    right, predicted, wanted = 1 + 1 + 2, 2 + 1 + 2, 2 + 1 + 3  # 0.0 is not positive
    precision, recall = right / predicted, right / wanted
    assert score(logits, y) == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-15)
    assert score(-torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.int8)) == 0.0  # nothing there, nothing said


def test_each_part_of_the_split() -> None:
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    logits = logits_for(0, 1, 0, 1, 1, 0)
    assert scores(logits, graph(y, **masks([0, 1], [2, 3], [4, 5], 6))) == {"train": 1.0, "val": 0.0, "test": 0.5}
    some = masks([0, 1], [2, 3], [4, 5], 6)
    del some["test_mask"]
    assert list(scores(logits, graph(y, **some))) == ["train", "val"]


def test_only_training_nodes_are_learnt_from() -> None:
    y = torch.tensor([0, 2, 1, -1, 1, 0])
    made = graph(y, **masks([1, 4], [0], [2], 6))
    batch = node_batch(torch.tensor([1, 3, 4, 5]), 6)
    logits = torch.tensor([[0.0, 1.0, 2.0], [9.0, 9.0, 9.0], [0.5, -1.0, 0.0], [7.0, 0.0, 0.0]], requires_grad=True)
    loss = mean_loss(made, batch, CPU)(logits)
    node_1, node_4 = surprise([0.0, 1.0, 2.0], 2), surprise([0.5, -1.0, 0.0], 1)
    assert value(loss) == pytest.approx((node_1 + node_4) / 2, rel=1e-6)
    assert loss is not None
    loss.backward()
    assert logits.grad is not None and logits.grad.any(1).tolist() == [True, False, True, False]


def test_batches_of_clusters() -> None:
    """The rows of cluster batches are ranges, in the order of their ids."""
    y = torch.arange(6) % 3
    made = graph(y, **masks([0, 4, 5], [1], [2], 6))
    batch = ClusterBatches(torch.tensor([0, 2, 4, 6]), 2).batch([0, 2])
    assert batch.rows.tolist() == [0, 1, 4, 5]
    loss = mean_loss(made, batch, CPU)(logits_for(0, 0, 1, 0))
    each = [surprise([3.0, 0.1, 0.2], 0), surprise([0.0, 3.0, 0.2], 1), surprise([3.0, 0.1, 0.2], 2)]
    assert value(loss) == pytest.approx(sum(each) / 3, rel=1e-6)


def test_all_of_a_batch_are_training_nodes() -> None:
    y = torch.tensor([0, 1, 2])
    loss = mean_loss(graph(y, **masks([0, 1], [2], [], 3)), Batch(3, ranges=((0, 2),)), CPU)(logits_for(0, 0))
    each = [surprise([3.0, 0.1, 0.2], wanted) for wanted in (0, 1)]
    assert value(loss) == pytest.approx(sum(each) / 2, rel=1e-6)


def test_a_batch_without_training_nodes_has_no_loss() -> None:
    made = graph(torch.tensor([0, 1, 2]), **masks([0], [1], [2], 3))
    assert mean_loss(made, Batch(3, ranges=((1, 3),)), CPU)(logits_for(1, 2)) is None


def test_several_labels() -> None:
    """Several labels: binary cross entropy per label, the mean over nodes and labels."""
    y = torch.tensor([[1, 0], [0, 1], [-1, -1]], dtype=torch.int8)
    made = graph(y, **masks([0], [1], [], 3))
    logits = torch.tensor([[0.5, -2.0], [8.0, 8.0], [8.0, 8.0]], requires_grad=True)
    loss = mean_loss(made, Batch(3, ranges=((0, 3),)), CPU)(logits)
    assert value(loss) == pytest.approx((math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(-2.0))) / 2, rel=1e-6)
    assert loss is not None
    loss.backward()
    assert logits.grad is not None and logits.grad.any(1).tolist() == [True, False, False]
