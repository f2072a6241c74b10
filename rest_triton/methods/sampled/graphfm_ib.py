"""GraphFM-IB (Yu et al., 2022): sampled neighbours, and aggregates that are averaged over steps."""

from typing import Any

import torch
from torch import Tensor

from ...history.age import NEVER
from ...history.history import INPUT
from ...nn.context import Context
from ...nn.model import HistoryGNN
from ...sampling.batch import Batch
from ..engine import Engine
from .base import SampledMethod

AGGREGATE = "aggregate"  # the kind of its tables


class GraphFMIB(SampledMethod):
    """A table E of the aggregates of each layer. An aggregate is ``(1 - momentum) z + momentum E``, and E becomes that.

    ``z`` is the sampled aggregate, through which gradients flow. In a row that has no average yet, it is z alone. Layers
    whose aggregate is exact have no table. With frozen weights E is an average over steps: its mean is the exact aggregate,
    and its variance tends to ``(1 - momentum) / (1 + momentum)`` of that of z.
    """

    fills = False
    refreshes_last = True  # the last layer's aggregate is in a table, too

    def begin(self, engine: Engine, step: int) -> None:
        """Rows are written when they are computed for the first time."""

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        sampled = model.history_dims[int(self.config.first == "exact") :]
        return {INPUT: [], AGGREGATE: sampled}

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        momentum, sample = self.config.ib_momentum, ctx.sample
        if sample is None or momentum == 0.0 or not ctx.recording:
            return ctx.aggregate(**mix)
        number, rows = ctx.layer - (ctx.num_layers - len(ctx.history.kinds[AGGREGATE])), ctx.block.rows
        known = ctx.history.stamp(number, rows.rows, kind=AGGREGATE) != NEVER
        averages, z = ctx.history.read(number, rows.rows, kind=AGGREGATE), ctx.aggregate()
        z = torch.lerp(z, averages.to(z.dtype), (momentum * known)[:, None].to(z.dtype))
        ctx.history.push(number, rows, z, ctx.step, kind=AGGREGATE)
        residual, alpha = mix.get("residual"), mix.get("alpha", 0.0)
        return z if residual is None else torch.lerp(z, residual.to(z.dtype), alpha)

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        """The rows whose averages the batch reads: all that it computes in a sampled layer."""
        assert batch.samples is not None and batch.counts is not None
        first = next((layer for layer, sample in enumerate(batch.samples) if sample is not None), len(batch.samples) - 1)
        return batch.rows[: batch.counts[first + 1]]
