"""VR-GCN (Chen et al., 2018): sampled neighbours, with tables as control variates."""

from typing import Any

import torch
from torch import Tensor

from ...nn.context import Context
from ...ops import halo, history_spmm
from ...sampling.batch import Batch
from ...sampling.sample import Sample
from ..engine import Engine
from .base import SampledMethod


class VRGCN(SampledMethod):
    """An aggregate is the sum over all neighbours of their rows in the table, plus a sampled sum of what these lack.

    With the table T and the sampled edges S, which weigh ``degree / fanout`` times as much as in A:

        z = S (h - T) + A T

    Its expectation is ``A h``, and its variance falls with the distance of h and T. Gradients flow through ``S h`` alone.
    Rows are recorded when all layers are computed: otherwise h would be T, and z no estimate of ``A h``.
    """

    records_late = True

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        z, sample, number = ctx.aggregate(**mix), ctx.sample, ctx.inputs.number(ctx.layer)
        if sample is None or sample.complete or number is None:
            return z
        with torch.no_grad():
            control = self._control(ctx, sample, number)
        # z is not read by its own backward, so it may be written.
        scale = 1.0 - mix.get("alpha", 0.0) * (mix.get("residual") is not None)
        return z.index_add_(0, sample.partial, control.to(z.dtype), alpha=scale)

    def _control(self, ctx: Context, sample: Sample, number: int) -> Tensor:
        """[P, D]: ``A T - S T`` for the partial rows of the sample. For all others it is zero, and T is not read."""
        rows, adj, history = ctx.block.rows.rows[sample.partial], ctx.adj, ctx.history
        table, position, nodes = history.tables[number], ctx.inputs.outside(), rows
        far = not table.in_place
        if far:
            nodes = torch.cat([rows, halo(adj, rows)])
            position = ctx.maps.take()
            position[nodes] = ~torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        source = history.pull(number, nodes)

        def difference() -> Tensor:
            everything = history_spmm(adj, rows, position, None, source.rows)
            return everything.sub_(history_spmm(sample.by_node, sample.partial, position, None, source.rows))

        control: Tensor = ctx.streams.submit(ctx.streams.current, difference, reads=[source.resource])
        if far:
            position[nodes] = ~nodes.int()
            ctx.maps.give_back(position)
        return control

    def after_forward(self, ctx: Context) -> None:
        ctx.record_all()

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        """The neighbours of each layer's rows that the layer before does not compute: these are read from tables alone."""
        layers = [layer for layer in range(engine.model.num_layers) if engine.inputs.number(layer) is not None]
        outside = [batch.block(layer).halo(engine.inputs.adj) for layer in layers]
        return torch.unique(torch.cat(outside)) if outside else batch.rows[:0]
