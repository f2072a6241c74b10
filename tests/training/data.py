"""A small graph as the data of a run, without files."""

from typing import Any

import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData, with_named_edges
from rest_triton.data.graph import MASKS, Graph, Normalisation

NODES, FEATURES, CLASSES = 240, 12, 5
PTR = torch.tensor([0, 30, 61, 95, 120, 150, 181, 215, 240])


def small(
    *, seed: int = 0, directed: bool = False, only: int | None = None, normalise: Normalisation = "gcn"
) -> ClusterData:
    """Eight clusters. only: all training nodes are in this one."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    edges = torch.randint(0, NODES - 3, (2, 3000), generator=g)  # three nodes are isolated
    alike = y[edges[0]] == y[edges[1]]
    edges = edges[:, alike | (torch.rand(3000, generator=g) < 0.1)]  # neighbours tell something of each other
    x = torch.randn(NODES, FEATURES, generator=g) + torch.eye(CLASSES, FEATURES)[y]
    part = torch.rand(NODES, generator=g)
    train = part < 0.5
    if only is not None:
        train = torch.zeros(NODES, dtype=torch.bool)
        train[PTR[only] : PTR[only + 1]] = True
    graph = Graph.from_edges(
        edges, NODES, symmetrise=not directed, x=x, y=y, train_mask=train, val_mask=~train & (part < 0.75),
        test_mask=~train & (part >= 0.75),
    )  # fmt: skip
    return ClusterData(
        graph, with_named_edges(graph.adjacency(normalise)), x, PTR, torch.arange(NODES), graph.fingerprint, "a small graph"
    )


def settings(**changes: Any) -> Config:
    """The configuration of a run on this graph."""
    few: dict[str, Any] = dict(
        dataset="small", device="cpu", num_parts=8, batch_size=2, hidden_channels=16, num_layers=3, lr=0.02
    )
    return Config(**(few | changes))


def gradients(model: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def score(logits: Tensor, y: Tensor) -> float:
    """The accuracy of the largest logits, or the micro-F1 of positive logits, of the rows with labels."""
    if y.dim() == 2:
        labelled = y.amin(1) >= 0
        predicted, actual = logits[labelled] > 0, y[labelled] > 0
        return 2 * int((predicted & actual).sum()) / max(1, int(predicted.sum()) + int(actual.sum()))
    labelled = y >= 0
    return float((logits.argmax(1) == y)[labelled].double().mean()) if bool(labelled.any()) else 0.0


def scores(logits: Tensor, graph: Graph) -> dict[str, float]:
    """Scores by split, from all results at once."""
    assert graph.y is not None
    masks = {name.removesuffix("_mask"): getattr(graph, name) for name in MASKS}
    return {part: score(logits[mask], graph.y[mask]) for part, mask in masks.items() if mask is not None}
