"""LMC as its authors publish and code it: incomplete rows around a batch, blended with tables.

``lmc`` is exact once its tables are up to date. This form is for comparison. It computes ``R = N[B]``, the batch B with its
halo H, in every layer. Edges that leave R are left out, so rows of B are complete and rows of H are not:

    forward    u = layer(A[R,R] h[R]);  u[i] <- (1 - beta_i) T[i] + beta_i u[i] for i in H;  T[B] <- u[B];  h = act(u)
    loss       of the training nodes of R, as a share of the mean over all training nodes
    backward   g[i] <- (1 - beta_i) V[i] + beta_i g[i] for i in H;  V[B] <- g[B];  through the blend with factor 1
    beta_i     beta * score(x_i), x_i: the share of i's neighbours that are in R; 1 where x_i is 1

In a directed graph H also has the nodes that read B, and x_i is the smaller share of both kinds of neighbours.

T holds rows before the activation, also of the last layer, V the gradients of the others. A row before the activation is
what a model hands to ``ctx.output``, before bias and BatchNorm, else the result of its layer. So bias and BatchNorm are
those of now also for rows of a table. Layers of APPNP have no activation: T holds their results. Encoded features need no
neighbours. They are complete for H, in a table or computed, and are not blended.

With beta 0 the gradients of an epoch add up to that of the full batch, for fixed weights and tables that are up to date.
With another beta they do not. Differences from the authors' code: biases and the weights of BatchNorms, too, have no
gradient from H, since they would be counted twice; the first layer of a GCN without encoder has no table V, since nothing
reads it; batches are drawn anew in every epoch. A BatchNorm normalises H by its own moments, without tracking them.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.graph import Graph
from ..history.history import GRADIENT, INPUT
from ..nn.context import Context
from ..nn.model import HistoryGNN
from ..ops import Adjacency, halo
from ..sampling.batch import Batch
from .coded_context import CodedContext, CodedLayerwise
from .engine import Engine
from .lmc import LMC
from .loss import Loss


class LMCCoded(LMC):
    """LMC as published, with ``beta`` and ``score``. The loss that it reports is that of the batch's rows, as LMC's."""

    context, layerwise = CodedContext, CodedLayerwise
    refreshes_last = True  # the last layer's output is in a table, too

    beside: tuple[Tensor, Tensor] | None = None  # the halo of the last forward and its result, until the loss reads it
    _plain: tuple[Adjacency, list[Adjacency]] | None = None

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        # The output of the last layer is as wide as its input where features are encoded, else it is the result.
        classes = None if self.graph is None else self.graph.num_classes
        output = model.history_dims[-1] if model.encodes or classes is None else classes
        return {INPUT: [*super().tables(model)[INPUT], output], GRADIENT: model.history_dims[1:]}

    def gradient_table(self, ctx: Context) -> int | None:
        """The number of the table with gradients of the layer's output, None if it has none."""
        number = ctx.layer - (not ctx.inputs.encodes)
        return number if 0 <= number < len(ctx.history.kinds.get(GRADIENT, [])) else None

    @property
    def reads_no_table(self) -> bool:
        """Whether each computed row has weight 1."""
        return self.config.beta == 1.0 and self.config.score == "const"

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        return ctx.aggregate(**mix)

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        return self.around(engine.inputs.adj, batch)

    def around(self, adj: Adjacency, batch: Batch) -> Tensor:
        """int64[H]: the halo. In a directed graph also the nodes that read the batch: gradients come from them."""
        near = batch.halo(adj)
        readers = [halo(reverse, batch.rows) for reverse in _directed(adj)]
        return torch.cat([near, *readers]).unique() if readers else near

    def unweighted(self, adj: Adjacency) -> list[Adjacency]:
        """The same edges, each of weight 1. In a directed graph also those of the reverse."""
        if self._plain is None or self._plain[0] is not adj:
            both = [adj, *_directed(adj)]
            plain = [replace(a, row_scale=None, col_scale=None, edge_weight=None, reverse=None) for a in both]
            self._plain = adj, plain
        return self._plain[1]

    def loss(self, graph: Graph, batch: Batch, device: torch.device) -> Loss:
        own = super().loss(graph, batch, device)

        def loss(logits: Tensor) -> Tensor | None:
            found, around, self.beside = own(logits), self.beside, None
            if around is None or found is None:
                return found
            nodes, result = around
            of_halo = super(LMCCoded, self).loss(graph, Batch(batch.num_nodes, nodes=nodes, device=nodes.device), device)
            beside = of_halo(result.float())
            assert beside is not None
            return found + (beside - beside.detach())  # the halo's gradients without its value

        return loss

    def forget(self, nodes: Tensor) -> None:
        """Release the result of a halo that no loss has read."""
        if self.beside is not None and self.beside[0] is nodes:
            self.beside = None


def _directed(adj: Adjacency) -> list[Adjacency]:
    """The reverse of a directed graph, nothing of an undirected one."""
    return [] if adj.reverse is None or adj.reverse.col is adj.col else [adj.reverse]
