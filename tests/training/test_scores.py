"""Scores and losses, compared with values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from rest_triton.data.graph import Graph
from rest_triton.methods.loss import mean_loss
from rest_triton.sampling.batch import Batch, ClusterBatches, node_batch
from rest_triton.training.metrics import Scores, counts

from . import data

CPU = torch.device("cpu")


def logits_for(*classes: int) -> Tensor:
    """Rows of logits with the largest at these classes."""
    return torch.tensor([[3.0 if c == wanted else float(c) / 10 for c in range(3)] for wanted in classes])


def score(logits: Tensor, y: Tensor) -> float:
    right, of = counts(logits, y).tolist()
    return right / max(1, of)


def scores(logits: Tensor, graph: Graph, size: int = 2) -> dict[str, float]:
    """In pieces of ``size`` rows, the last one by ids."""
    found, nodes = Scores(graph), len(logits)
    for begin in range(0, nodes, size):
        end = min(begin + size, nodes)
        ids = torch.arange(begin, end).flip(0)
        piece = Batch(nodes, ranges=((begin, end),)) if end < nodes else node_batch(ids, nodes)
        found.add(piece, piece.take(logits))
    return found.by_split()


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


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_scores_in_pieces_are_those_of_all_results_at_once(size: int, several: bool) -> None:
    g = torch.Generator().manual_seed(size)
    shape, most = ((100, 3), 2) if several else ((100,), 3)
    y = torch.randint(0, most, shape, generator=g, dtype=torch.int8 if several else torch.int64)
    part = torch.randint(0, 4, (100,), generator=g)  # some are in no split
    y[(part != 0) & (torch.rand(100, generator=g) < 0.3)] = -1
    made = graph(y, train_mask=part == 0, val_mask=part == 1, test_mask=part == 2)
    logits = torch.randn(100, 3, generator=g)
    assert scores(logits, made, size) == data.scores(logits, made)


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
