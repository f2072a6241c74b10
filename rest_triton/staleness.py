"""How far results computed with histories are from exact ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .batches import Batch
from .engine import Engine


@torch.no_grad()
def approximation_error(engine: Engine, batches: Sequence[Batch], exact: Tensor, step: int) -> float:
    """The mean over nodes of the norm of (result with histories - exact result), both in eval mode, with the same weights.

    Args:
        batches: the nodes, each in one of them, or some of the nodes. exact: [N, C], by :meth:`Engine.exact`.

    Nothing is written: neither tables nor statistics change.

    Example::

        error = approximation_error(engine, method.batches(0), engine.exact(), step)
    """
    total, count = 0.0, 0
    for batch in batches:
        difference = engine.predict(batch, step).to(exact.device) - batch.on(exact.device).take(exact)
        total += float(difference.norm(dim=1).double().sum())
        count += len(batch)
    return total / max(1, count)
