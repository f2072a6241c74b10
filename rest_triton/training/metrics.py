"""How good predictions are: accuracy, or micro-averaged F1 where a node can have several labels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.graph import MASKS, Graph
from ..sampling.batch import Batch

SPLITS = tuple(mask.removesuffix("_mask") for mask in MASKS)  # train, val, test


def score(logits: Tensor, y: Tensor) -> float:
    """The share of rows whose largest logit is the label's, or the micro-F1 of the labels with positive logits.

    Args:
        logits: [R, C]. y: int64[R], or int8 [R, C] of 0 and 1; rows with a label that is not known (-1) do not count.
    """
    if y.dim() == 2:
        known = y.amin(1) >= 0
        predicted, wanted = logits[known] > 0, y[known] > 0
        right = int((predicted & wanted).sum())
        return 2 * right / max(1, int(predicted.sum()) + int(wanted.sum()))
    known = y >= 0
    return float((logits.argmax(1) == y)[known].double().mean()) if bool(known.any()) else 0.0


def scores(logits: Tensor, graph: Graph) -> dict[str, float]:
    """``{"train": …, "val": …, "test": …}`` of those that the graph has. logits: [N, C], in the order of its nodes."""
    assert graph.y is not None
    logits = logits.to(graph.y.device)
    masks = {part: getattr(graph, mask) for part, mask in zip(SPLITS, MASKS, strict=True)}
    return {part: score(logits[mask], graph.y[mask]) for part, mask in masks.items() if mask is not None}


def loss_for(graph: Graph, batch: Batch, device: torch.device) -> Callable[[Tensor], Tensor | None]:
    """The loss of a batch's logits: the mean cross entropy over its training nodes, None if it has none.

    Which nodes those are is found on the host: a GPU does not have to be waited for.
    """
    assert graph.y is not None and graph.train_mask is not None
    chosen = torch.nonzero(batch.take(graph.train_mask)).squeeze(1)
    if chosen.numel() == 0:
        return lambda logits: None
    y = batch.take(graph.y)[chosen].to(device, non_blocking=True)
    everyone = chosen.numel() == len(batch)
    chosen = chosen.to(device, non_blocking=True)

    def loss(logits: Tensor) -> Tensor:
        some = logits if everyone else logits[chosen]
        if y.dim() == 2:
            return F.binary_cross_entropy_with_logits(some, y.to(some.dtype))
        return F.cross_entropy(some, y)

    return loss
