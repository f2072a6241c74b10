"""GraphFM-OB (Yu et al., 2022): a batch also moves the tables' rows of its neighbours, before its layers read them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nn.context import Context
from ..nn.inference import LayerwiseContext
from ..ops import history_spmm, scatter_rows
from ..sampling.batch import Batch
from .gas import GAS


class GraphFM(GAS):
    """GAS, with a push after each layer: a row of the halo becomes ``(1 - momentum) * row + momentum * q``.

    ``q`` is the output of the layer for the halo, whose sum over neighbours has those of the batch alone. It is computed by
    the model's own equation in eval mode, without a gradient. A push does not count as an update of the row's age.
    Refreshes and evaluations do not push.
    """

    @property
    def keeps_inputs(self) -> bool:  # type: ignore[override]
        return self.config.push_momentum > 0

    def after_layer(self, ctx: Context) -> None:
        number = ctx.inputs.number(ctx.layer + 1)
        pushes = ctx.recording and not ctx.refreshing and not isinstance(ctx, LayerwiseContext)
        if not pushes or not self.keeps_inputs or number is None or ctx.halo.numel() == 0:
            return
        assert ctx.model is not None
        with torch.no_grad():
            halo = PushContext(ctx)
            q = ctx.model.layer(ctx.layer, halo)
            source, momentum = ctx.source(ctx.layer + 1), self.config.push_momentum
            assert source is not None
            if source.in_place:
                return ctx.history.push(number, halo.batch, q, None, momentum=momentum)

            # The rows are here already, for the next layer: they are changed here, and written back.
            def blend() -> Tensor:
                scatter_rows(source.rows, torch.arange(q.shape[0], device=q.device), q, blend=momentum)
                return source.rows.clone()

            rows = ctx.streams.submit(ctx.streams.current, blend, writes=[source.resource])
            ctx.history.push(number, halo.batch, rows, None)


class PushContext(Context):
    """The halo of a batch, in the layer that the batch has just computed.

    Rows of the halo that are not summed over neighbours, for residuals, are those that the batch reads.
    """

    def __init__(self, of: Context) -> None:
        batch = Batch(of.batch.num_nodes, nodes=of.halo, device=of.halo.device)
        super().__init__(of.inputs, batch, of.maps, of.reader, step=of.step, training=False, recording=False)
        self.of, self.model, self.layer, self.num_layers = of, of.model, of.layer, of.num_layers
        self._x = of._input().detach()
        if of.inputs.encodes and of.layer == 0:
            computed = of.first_of_halo()  # else a later layer's rows may take its place
            of.kept["h0 of the halo"] = self.h if computed is None else computed.h0.detach()

    @property
    def h(self) -> Tensor:
        return self.of._halo_input().detach().to(self._x.dtype)

    @property
    def h0(self) -> Tensor:
        found: Tensor = self.of.kept["h0 of the halo"]
        return found

    def propagate(self, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        # The map of the batch, by slot or not as its next layer has it: no other one is made.
        far = not all(table.in_place for table in self.history.tables)
        position = self.of.position(by_slot=far)
        return history_spmm(self.adj, self.batch.rows, position, self._x, None, residual=residual, alpha=alpha)

    def propagate_linear(self, weight: Tensor) -> Tensor:
        return F.linear(self.propagate(), weight)

    def neighbourhood(self) -> Tensor:
        raise ValueError(
            f"{type(self.model).__name__} reads its neighbours by ctx.neighbourhood(); graphfm can push only what "
            "ctx.propagate() sums; give --method gas"
        )
