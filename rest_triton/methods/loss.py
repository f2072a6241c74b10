"""The loss of a batch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.graph import Graph
from ..sampling.batch import Batch

Loss = Callable[[Tensor], Tensor | None]


def mean_loss(graph: Graph, batch: Batch, device: torch.device) -> Loss:
    """The mean cross entropy over the training nodes of a batch, as a function of its result; None if it has none.

    The training nodes are found on the host, so that a GPU does not have to be waited for.
    """
    assert graph.y is not None and graph.train_mask is not None
    chosen = torch.nonzero(batch.take(graph.train_mask)).squeeze(1)
    if chosen.numel() == 0:
        return lambda logits: None
    y = batch.take(graph.y)[chosen].to(device, non_blocking=True)
    all_rows = chosen.numel() == len(batch)
    chosen = chosen.to(device, non_blocking=True)

    def loss(logits: Tensor) -> Tensor:
        of_training = logits if all_rows else logits[chosen]
        if y.dim() == 2:
            return F.binary_cross_entropy_with_logits(of_training, y.to(of_training.dtype))
        return F.cross_entropy(of_training, y)

    return loss
