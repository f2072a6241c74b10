"""LMC (Local Message Compensation; Shi et al., 2023): GAS, and backward reads tables of gradients.

The loss of nodes outside of a batch has a gradient for the rows of the batch. GAS leaves it out. For each aggregate
``z = A h`` a table Q holds the last known gradient of the loss for every row of z. Backward reads it where forward reads h:

    forward    z[B] = A[B,B] h[B] + A[B,H] T[H]
    backward   V[B] = A[B,B]^T G[B] + A[H,B]^T Q[H], then Q[B] <- G[B]        G: the gradient of z, V: that of h

With fixed weights and tables that are up to date, the gradients of the batches of an epoch add up to that of the full batch.
The published form keeps gradients of embeddings, and computes rows of the halo from a part of their neighbours.

Weights have their gradient from the rows of the batch alone, since Q holds what other rows contribute. So every layer
aggregates before it multiplies, and rows of the halo that are computed anew (``first: exact``) have no gradient.
Otherwise weights would be counted twice, and the width of a table would depend on the batch.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from ..history.history import GRADIENT
from ..nn.context import Context
from ..nn.model import HistoryGNN
from ..sampling.batch import Batch
from .gas import GAS
from .loss import Loss, mean_loss


class LMC(GAS):
    """GAS with tables of the gradients of aggregates.

    A batch's loss is the sum over its training nodes, divided by the number of all training nodes. ``scale`` is the number
    of batches in an epoch: the scaled gradient of a batch is, on average, that of the full batch.
    """

    halo_gradient = False

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        super().__init__(config, ptr, device, graph)
        self.scale = float(len(self.clusters))
        known = graph is not None and graph.train_mask is not None
        self.training_nodes = int(graph.train_mask.sum()) if known else int(ptr[-1])  # type: ignore[union-attr]

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        # Also where the first embedding has no table (first: exact), its aggregate has a gradient.
        return super().tables(model) | {GRADIENT: list(model.history_dims)}

    def transforms_first(self, ctx: Context, width: int, result: int) -> bool:
        return False

    def loss(self, graph: Graph, batch: Batch, device: torch.device) -> Loss:
        """The sum over the batch's training nodes as a share of the mean over all; zero with a graph if it has none."""
        share = torch.full((len(batch),), 1 / max(1, self.training_nodes))
        weighted = mean_loss(graph, replace(batch, weight=share), device)

        def loss(logits: Tensor) -> Tensor:
            found = weighted(logits)
            return 0.0 * logits.sum() if found is None else found

        return loss

    def unit(self, dtype: torch.dtype) -> float:
        """What a table of a dtype multiplies gradients by. They have the size of 1 / training nodes, which float16 rounds to
        zero. A power of two changes no other bit."""
        return 2.0 ** max(0, self.training_nodes - 1).bit_length() if dtype == torch.float16 else 1.0

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        tables, number = ctx.history.kinds.get(GRADIENT), ctx.layer - (not ctx.inputs.encodes)
        h = ctx.h
        if not tables or ctx.whole_graph or not (torch.is_grad_enabled() and h.requires_grad):
            return ctx.aggregate(**mix)
        unit, far = self.unit(tables[number].rows.dtype), not tables[number].in_place
        source = ctx.history.pull(number, ctx.readers, kind=GRADIENT)
        # Views, whose gradients are those of this aggregate alone. Made in this order, they are added up as GAS adds them.
        residual = mix.pop("residual", None)
        residual = None if residual is None else residual.view_as(residual)
        x = h.view_as(h)
        z = ctx.aggregate(
            x, gradients=source, x_rows=ctx.block.rows.rows,
            row_position=ctx.position(by_slot=far, of_readers=True), residual=residual, **mix,
        )  # fmt: skip
        if not z.requires_grad:
            return z
        history, rows, kept = ctx.history, ctx.block.rows, list[Tensor]()

        # The op's backward runs between these two, on the same stream: a row of Q is read before it is written.
        def before(grad: Tensor) -> Tensor:
            kept.append(grad if unit == 1.0 else grad * unit)
            return kept[-1]

        def after(grad: Tensor) -> Tensor:
            found = kept.pop()
            if ctx.recording:
                # Autograd may add to a gradient in place, while another stream still copies it.
                history.push(number, rows, found.clone() if far else found, ctx.step, kind=GRADIENT)
            return grad if unit == 1.0 else grad / unit

        z.register_hook(before)
        x.register_hook(after)
        if unit != 1.0 and residual is not None and residual.requires_grad:
            residual.register_hook(lambda grad: grad / unit)
        return z
