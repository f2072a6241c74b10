"""LMC as its authors publish and code it: incomplete rows around a batch, blended with tables.

``lmc`` is exact once its tables are up to date. This form is for comparison. It computes ``R = N[B]``, the batch B with its
halo H, in every layer. Edges that leave R are left out, so rows of B are complete and rows of H are not:

    forward    u = layer(A[R,R] h[R]);  u[i] <- (1 - beta_i) T[i] + beta_i u[i] for i in H;  T[B] <- u[B];  h = act(u)
    loss       of the training nodes of R, as a share of the mean over all training nodes
    backward   g[i] <- (1 - beta_i) V[i] + beta_i g[i] for i in H;  V[B] <- g[B];  through the blend with factor 1
    beta_i     beta * score(x_i), x_i: the share of i's neighbours that are in R; 1 where x_i is 1

In a directed graph H also has the nodes that read B, and x_i is the smaller share of both kinds of neighbours.

T holds rows before the activation, also of the last layer, V the gradients of the others. On the seam the row before the
activation is what a model hands to ``ctx.output``, before bias and BatchNorm, else the result of its layer. So bias and
BatchNorm are those of now also for rows of a table. Layers of APPNP have no activation: T holds their results.

A layer runs twice: for B, and for H with constant weights, since V contains what other batches contribute. Encoded features
need no neighbours. They are complete for H, in a table or computed, and are not blended.

With beta 0 the gradients of an epoch add up to that of the full batch, for fixed weights and tables that are up to date.
With another beta they do not. Differences from the authors' code: biases and the weights of BatchNorms, too, have no
gradient from H, since they would be counted twice; the first layer of a GCN without encoder has no table V, since nothing
reads it; batches are drawn anew in every epoch. A BatchNorm normalises H by its own moments, without tracking them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d, Module

from ..data.features import SparseRows
from ..data.graph import Graph
from ..history.history import GRADIENT, INPUT
from ..history.table import Rows
from ..nn.context import Context
from ..nn.inference import LayerwiseContext
from ..nn.inputs import Inputs
from ..nn.model import HistoryGNN
from ..ops import Adjacency, gather_rows, halo, history_spmm
from ..sampling.batch import Batch, PositionMaps
from .engine import Engine
from .lmc import LMC
from .loss import Loss

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "const": torch.ones_like,
    "concave": lambda x: x * (2 - x),
    "convex": lambda x: x * x,
    "sin": lambda x: torch.sin(pi * (x - 0.5)),  # negative where less than half of the neighbours are known
}


class CodedContext(Context):
    """A forward of a batch, with its halo beside it: see the module."""

    def __init__(self, inputs: Inputs, batch: Batch, maps: PositionMaps, reader: "LMCCoded", **options: Any) -> None:
        if len(batch) < inputs.adj.num_nodes:
            batch = replace(batch, found=reader.around_of(inputs.adj, batch))
        super().__init__(inputs, batch, maps, reader, **options)
        self.method, self.partial = reader, False  # a table holds the output of the last layer, too
        self.beside: HaloContext | None = None
        self._sums: tuple[Tensor, ...] | None = None
        self._seeds_before = 0
        self._beta: Tensor | None = None

    def close(self) -> None:
        super().close()
        if self.beside is not None:
            self.beside.close()
        self.beside = self._sums = self._beta = self.method.around = None

    def begin(self, model: HistoryGNN) -> None:
        super().begin(model)
        if self.halo.numel() > 0:
            self.beside = HaloContext(self, model)

    def enter(self, layer: int) -> None:
        super().enter(layer)
        self._seeds_before = self._seeds

    def leave(self, h: Tensor) -> None:
        h = h if self._recorded else self._keep(h)
        if self.beside is not None:
            self.beside.follow(self._seeds_before)
        self._sums = None
        self.reader.after_layer(self)
        self._h = h

    def result(self, model: HistoryGNN) -> Tensor | None:
        if self.refreshing and not self.complete:
            return None
        if self.beside is not None and torch.is_grad_enabled():
            with constant(model):
                self.method.around = self.halo, model.decode(self.beside.h)
        return model.decode(self.h)

    def output(
        self, h: Tensor, norm: BatchNorm1d | None = None, *, bias: Tensor | None = None, relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        self._recorded = True
        return self.activate(self._keep(h), norm, bias=bias, relu=relu, dropout=dropout)

    def _keep(self, u: Tensor) -> Tensor:
        """Write rows before the activation into their table, and their gradients in backward."""
        self.record(self.layer + 1, u)
        number = self.method.gradient_table(self)
        if number is None or self.whole_graph or not (self.recording and u.requires_grad):
            return u
        table, u = self.history.kinds[GRADIENT][number], u.view_as(u)
        unit, rows = self.method.unit(table.rows.dtype), self.block.rows

        def push(grad: Tensor) -> None:
            # Autograd may add to a gradient in place, while another stream still copies it.
            kept = grad * unit if unit != 1.0 else grad if table.in_place else grad.clone()
            self.history.push(number, rows, kept, self.step, kind=GRADIENT)

        u.register_hook(push)
        return u

    def aggregate(
        self, x: Tensor | None = None, *, residual: Tensor | None = None, alpha: float = 0.0,
        gradients: Rows | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        if self.beside is None:
            return super().aggregate(x, residual=residual, alpha=alpha, gradients=gradients, **options)
        return mixed(self.sums()[0], residual, alpha)

    def sums(self) -> tuple[Tensor, ...]:
        """([B, D], [H, D]): the aggregates of the layer's input over the neighbours in R."""
        if self._sums is None:
            assert self.beside is not None
            inside, outside = self._input(), self.beside._input()
            x, rows = torch.cat([inside, outside.to(inside.dtype)]), torch.cat([self.batch.rows, self.halo])
            self._prefetch()
            z = history_spmm(self.adj, rows, self.position(joined=True), x, **self.edges())
            self._sums = z.split([len(inside), len(outside)])
        return self._sums

    def beta(self) -> Tensor:
        """float32 [H, 1]: beta_i of the halo."""
        if self._beta is None:
            config, known = self.method.config, torch.ones(len(self.batch) + self.halo.numel(), 1, device=self.halo.device)
            shares = []
            for edges in self.method.unweighted(self.adj):
                inside = history_spmm(edges, self.halo, self.position(joined=True), known)
                degree = (edges.rowptr[self.halo + 1] - edges.rowptr[self.halo]).unsqueeze(1)
                shares.append(torch.where(degree > 0, inside / degree, 1.0))
            x = torch.stack(shares).amin(0)
            self._beta = torch.where(x == 1, 1.0, config.beta * SCORES[config.score](x))
        return self._beta

    def of_halo(self, source: Rows, dtype: torch.dtype) -> Tensor:
        """[H, D]: a copy of the halo's rows of a table."""

        def read() -> Tensor:
            in_place = source.in_place
            return gather_rows(source.rows, self.halo, dtype=dtype) if in_place else source.rows.to(dtype, copy=True)

        return self.streams.submit(self.streams.current, read, reads=[source.resource])


class HaloContext(Context):
    """The halo in a forward of its batch. Its rows are blended with those of tables."""

    def __init__(self, of: CodedContext, model: HistoryGNN) -> None:
        batch = Batch(of.batch.num_nodes, nodes=of.halo, device=of.halo.device)
        # As in a refresh, running statistics stay as they are.
        super().__init__(
            of.inputs, batch, of.maps, of.reader, step=of.step, draw=of.draw, training=of.training, refreshing=True,
            recording=False, statistics=of.statistics,
        )  # fmt: skip
        self.of, self.model, self.num_layers = of, model, of.num_layers
        if model.encodes:
            self._h0, source = of._halo_h, of.source(0)
            if self._h0 is None:
                assert source is not None
                self._h0 = of.of_halo(source, of.h0.dtype)
            self._seeds = of._seeds - int(of.training and model.encoded_dropout > 0)  # the same dropout as for the batch
            self._h = self.dropout(self._h0, model.encoded_dropout)

    def follow(self, seeds: int) -> None:
        """Compute the layer that the batch has just computed, with constant weights. seeds: those used before it."""
        if self.of.layer + 1 == self.num_layers and not torch.is_grad_enabled():
            return  # the result of the halo is needed for its loss alone
        assert self.model is not None
        self.enter(self.of.layer)
        self._seeds = seeds
        with constant(self.model):
            h = self.model.layer(self.layer, self)
            self._h = h if self._recorded else self._blend(h)

    def output(
        self, h: Tensor, norm: BatchNorm1d | None = None, *, bias: Tensor | None = None, relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        self._recorded = True
        return self.activate(self._blend(h), norm, bias=bias, relu=relu, dropout=dropout)

    def _blend(self, u: Tensor) -> Tensor:
        of, method = self.of, self.of.method
        source = of.source(self.layer + 1)
        if source is None or (method.config.beta == 1.0 and method.config.score == "const"):
            return u
        number, old, beta = method.gradient_table(self), of.of_halo(source, u.dtype), of.beta().to(u.dtype)
        if number is None or not u.requires_grad:
            return Blend.apply(u, old, beta, None)
        table = self.history.kinds[GRADIENT][number]
        unit, past = method.unit(table.rows.dtype), self.history.pull(number, of.halo, kind=GRADIENT)
        return Blend.apply(u, old, beta, lambda grad: of.of_halo(past, grad.dtype) / unit)

    def aggregate(
        self, x: Tensor | None = None, *, residual: Tensor | None = None, alpha: float = 0.0,
        gradients: Rows | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        return mixed(self.of.sums()[1], residual, alpha)

    @property
    def edge_dropout(self) -> float:
        return self.of.edge_dropout

    def _feature_rows(self) -> Tensor | SparseRows:
        return self.of._halo_feature_rows()

    def _propagate_features(self) -> Tensor:
        x = torch.cat([self.of._features(), self._features()])
        return history_spmm(self.adj, self.batch.rows, self.of.position(joined=True), x, **self.edges())

    def _propagate_features_linear(self, weight: Tensor) -> Tensor:
        if not self.inputs.features.sparse:
            return F.linear(self._propagate_features(), weight)
        x = self.of._sparse_neighbourhood_linear(weight)
        return history_spmm(self.adj, self.batch.rows, self.of.position(joined=True), x, **self.edges())


class Blend(torch.autograd.Function):
    """``(1 - beta) old + beta u``. The gradient of u is ``(1 - beta) past + beta grad``, or grad without ``past``."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, old: Tensor, beta: Tensor, past: Callable[[Tensor], Tensor] | None) -> Tensor:
        ctx.save_for_backward(beta)
        ctx.past = past
        return torch.lerp(old, u, beta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (beta,) = ctx.saved_tensors
        return grad if ctx.past is None else torch.lerp(ctx.past(grad), grad, beta), None, None, None


def mixed(z: Tensor, residual: Tensor | None, alpha: float) -> Tensor:
    """``(1 - alpha) z + alpha residual``."""
    return z if residual is None else torch.lerp(z, residual.to(z.dtype), alpha)


@contextmanager
def constant(model: Module) -> Iterator[None]:
    """The weights of a model have no gradient in this block."""
    weights = [p for p in model.parameters() if p.requires_grad]
    for p in weights:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in weights:
            p.requires_grad_(True)


class CodedLayerwise(LayerwiseContext):
    """An exact pass that fills tables with rows before the activation."""

    fills_inputs = False

    def output(self, h: Tensor, norm: BatchNorm1d | None = None, **options: Any) -> Tensor:
        self._fill(h)
        return super().output(h, norm, **options)

    def leave(self, h: Tensor) -> None:
        if not self._recorded:
            self._fill(h)
        super().leave(h)

    def _fill(self, u: Tensor) -> None:
        number = self.inputs.number(self.layer + 1)
        if self.filling and number is not None:
            self.history.push(number, self.batch, u, self.step)


class LMCCoded(LMC):
    """LMC as published, with ``beta`` and ``score``. The loss that it reports is that of the batch's rows, as LMC's."""

    context, layerwise = CodedContext, CodedLayerwise

    around: tuple[Tensor, Tensor] | None = None  # the halo of the last forward and its result, until the loss has read it
    _unweighted: tuple[Tensor, list[Adjacency]] | None = None

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        # The output of the last layer is as wide as its input where features are encoded, else it is the result.
        classes = None if self.graph is None else self.graph.num_classes
        output = model.history_dims[-1] if model.encodes or classes is None else classes
        return {INPUT: [*super().tables(model)[INPUT], output], GRADIENT: model.history_dims[1:]}

    def gradient_table(self, ctx: Context) -> int | None:
        """The number of the table with gradients of the layer's output, None if it has none."""
        number = ctx.layer - (not ctx.inputs.encodes)
        return number if 0 <= number < len(ctx.history.kinds.get(GRADIENT, [])) else None

    def unweighted(self, adj: Adjacency) -> list[Adjacency]:
        """The same edges, each of weight 1. In a directed graph also those of the reverse."""
        if self._unweighted is None or self._unweighted[0] is not adj.rowptr:
            both = [adj] if self._undirected(adj) else [adj, adj.reverse]
            plain = [
                replace(a, row_scale=None, col_scale=None, edge_weight=None, reverse=None) for a in both if a is not None
            ]
            self._unweighted = adj.rowptr, plain
        return self._unweighted[1]

    def _undirected(self, adj: Adjacency) -> bool:
        return adj.reverse is None or adj.reverse.col is adj.col

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        return self.around_of(engine.inputs.adj, batch)

    def around_of(self, adj: Adjacency, batch: Batch) -> Tensor:
        """int64[H]: the halo. In a directed graph also the nodes that read the batch: gradients come from them."""
        near = batch.halo(adj)
        if adj.reverse is None or self._undirected(adj):
            return near
        return torch.cat([near, halo(adj.reverse, batch.rows)]).unique()

    def loss(self, graph: Graph, batch: Batch, device: torch.device) -> Loss:
        own = super().loss(graph, batch, device)

        def loss(logits: Tensor) -> Tensor | None:
            found, around, self.around = own(logits), self.around, None
            if around is None or found is None:
                return found
            of_halo = Batch(batch.num_nodes, nodes=around[0], device=around[0].device)
            beside = super(LMCCoded, self).loss(graph, of_halo, device)(around[1].float())
            assert beside is not None
            return found + (beside - beside.detach())  # the halo's gradients without its value

        return loss

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        return ctx.aggregate(**mix)
