"""The loss of a batch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.graph import Graph
from ..sampling.batch import Batch

Loss = Callable[[Tensor], Tensor | None]


def mean_loss(graph: Graph, batch: Batch, device: torch.device) -> Loss:
    """The mean cross entropy over the training nodes of a batch, as a function of its result.

    With ``batch.weight`` it is the weighted sum. Without a training node the function returns None. The training nodes are
    selected on the host, so that the host does not wait for a GPU.
    """
    assert graph.y is not None and graph.train_mask is not None
    targets = batch.block(-1 if batch.counts is None else len(batch.counts) - 2).rows
    chosen = torch.nonzero(targets.take(graph.train_mask)).squeeze(1)
    if chosen.numel() == 0:
        return lambda logits: None
    y = targets.take(graph.y)[chosen].to(device, non_blocking=True)
    weight = None if batch.weight is None else batch.weight.to(device)[chosen.to(device)]
    all_rows = chosen.numel() == len(targets)
    chosen = chosen.to(device, non_blocking=True)
    reduction = "mean" if weight is None else "none"

    def loss(logits: Tensor) -> Tensor:
        of_training = logits if all_rows else logits[chosen]
        if y.dim() == 2:
            each = F.binary_cross_entropy_with_logits(of_training, y.to(of_training.dtype), reduction=reduction)
            return each if weight is None else (each.mean(1) * weight).sum()
        each = F.cross_entropy(of_training, y, reduction=reduction)
        return each if weight is None else (each * weight).sum()

    return loss
