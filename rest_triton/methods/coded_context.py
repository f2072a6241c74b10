"""A forward of a batch by LMC as published: it computes the halo beside the batch, and blends its rows with tables.

A layer runs twice. For the batch it records rows before the activation, and their gradients in backward. For the halo it
has constant weights, since tables of gradients hold what other batches contribute. Both read one aggregate.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import pi
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d, Module

from ..data.features import SparseRows
from ..history.history import GRADIENT
from ..history.table import Rows
from ..nn.context import Context
from ..nn.inference import LayerwiseContext
from ..nn.inputs import Inputs
from ..nn.model import HistoryGNN
from ..nn.norm import snapshot
from ..ops import gather_rows, history_spmm
from ..sampling.batch import Batch, PositionMaps

if TYPE_CHECKING:
    from .lmc_coded import LMCCoded

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "const": torch.ones_like,
    "concave": lambda x: x * (2 - x),
    "convex": lambda x: x * x,
    "sin": lambda x: torch.sin(pi * (x - 0.5)),  # negative where less than half of the neighbours are known
}


class BeforeActivation(Context):
    """A forward that does something with each layer's rows before they are activated."""

    @abstractmethod
    def before(self, u: Tensor) -> Tensor:
        """The rows to activate. u: those of the layer."""

    def output(
        self, h: Tensor, norm: BatchNorm1d | None = None, *, bias: Tensor | None = None, relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        self._recorded = True
        return self.activate(self.before(h), norm, bias=bias, relu=relu, dropout=dropout)


class CodedContext(BeforeActivation):
    """A forward of a batch, with its halo ``beside`` it unless that is empty."""

    def __init__(self, inputs: Inputs, batch: Batch, maps: PositionMaps, reader: "LMCCoded", **options: Any) -> None:
        if len(batch) < inputs.adj.num_nodes:
            batch = replace(batch, found=reader.around(inputs.adj, batch))
        super().__init__(inputs, batch, maps, reader, **options)
        self.method = reader
        self.beside: HaloContext | None = None
        self._joined: tuple[Tensor, ...] | None = None
        self._beta: Tensor | None = None

    def close(self) -> None:
        super().close()
        if self.beside is not None:
            self.beside.close()
            self.method.forget(self.halo)
        self.beside = self._joined = self._beta = None

    def begin(self, model: HistoryGNN) -> None:
        super().begin(model)
        if self.halo.numel() > 0:
            self.beside = HaloContext(self, model)

    def leave(self, h: Tensor) -> None:
        h = h if self._recorded else self.before(h)
        if self.beside is not None:
            self.beside.follow()
        self._joined, self._recorded = None, True
        super().leave(h)

    def result(self, model: HistoryGNN) -> Tensor | None:
        if self.beside is not None and torch.is_grad_enabled():
            with constant(model):
                self.method.beside = self.halo, model.decode(self.beside.h)
        return super().result(model)

    def before(self, u: Tensor) -> Tensor:
        """Write the rows into their table, and their gradients in backward."""
        self.record(self.layer + 1, u)
        number = self.method.gradient_table(self)
        if number is None or self.whole_graph or not (self.recording and u.requires_grad):
            return u
        table, u, rows = self.history.kinds[GRADIENT][number], u.view_as(u), self.block.rows
        unit = self.method.unit(table.rows.dtype)

        def push(grad: Tensor) -> None:
            # Autograd may add to a gradient in place, while another stream still copies it.
            kept = grad * unit if unit != 1.0 else grad if table.in_place else grad.clone()
            self.history.push(number, rows, kept, self.step, kind=GRADIENT)

        u.register_hook(push)
        return u

    def aggregate(
        self, x: Tensor | None = None, *, residual: Tensor | None = None, alpha: float = 0.0, **options: Any
    ) -> Tensor:
        if self.beside is None:
            return super().aggregate(x, residual=residual, alpha=alpha, **options)
        return mixed(self.joined()[0], residual, alpha)

    def joined(self) -> tuple[Tensor, ...]:
        """([B, D], [H, D]): sums of the layer's input over the neighbours that are in the batch or its halo."""
        if self._joined is None:
            assert self.beside is not None
            inside, rows = self._input(), torch.cat([self.batch.rows, self.halo])
            x = torch.cat([inside, self.beside.h.to(inside.dtype)])
            self._prefetch()
            z = history_spmm(self.adj, rows, self.position(joined=True), x, **self.edges())
            self._joined = z.split([len(self.batch), self.halo.numel()])
        return self._joined

    def beta(self) -> Tensor:
        """float32 [H, 1]: the weight of the halo's computed rows."""
        if self._beta is None:
            config, position, shares = self.method.config, self.position(joined=True), []
            known = torch.ones(len(self.batch) + self.halo.numel(), 1, device=self.halo.device)
            for edges in self.method.unweighted(self.adj):
                degree = (edges.rowptr[self.halo + 1] - edges.rowptr[self.halo]).unsqueeze(1)
                inside = history_spmm(edges, self.halo, position, known)
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


class HaloContext(BeforeActivation):
    """The halo in a forward of its batch, ``of``. Nothing is recorded, and as in a refresh running statistics stay."""

    def __init__(self, of: CodedContext, model: HistoryGNN) -> None:
        batch, statistics = Batch(of.batch.num_nodes, nodes=of.halo, device=of.halo.device), of.statistics
        if statistics is None and of.refreshing and len(batch) < 2:  # one row is normalised by running statistics
            statistics = snapshot(model, of.streams, of.inputs.statistics)
        super().__init__(
            of.inputs, batch, of.maps, of.reader, step=of.step, draw=of.draw, training=of.training, running=of.running,
            refreshing=True, recording=False, statistics=statistics,
        )  # fmt: skip
        self.of, self.model, self.num_layers = of, model, of.num_layers
        if model.encodes:
            computed, source = of.first_of_halo(), of.source(0)
            if computed is not None:
                self._h0, self._h = computed._h0, computed._h
            else:
                assert source is not None
                self._h0 = of.of_halo(source, of.h0.dtype)
                self._h = self.dropout(self._h0, model.encoded_dropout)

    def follow(self) -> None:
        """Compute the layer that the batch has just computed."""
        if self.of.layer + 1 == self.num_layers and not torch.is_grad_enabled():
            return  # the result of the halo is needed for its loss alone
        if self.of.layer + 1 == self.inputs.recomputed and (computed := self.of.first_of_halo()) is not None:
            self._h = computed._h  # of all its neighbours: nothing is blended
            return
        assert self.model is not None
        self.enter(self.of.layer)
        with constant(self.model):
            h = self.model.layer(self.layer, self)
            self._h = h if self._recorded else self.before(h)

    def before(self, u: Tensor) -> Tensor:
        """Blend the rows with those of the table, and in backward their gradients."""
        of, method = self.of, self.of.method
        source = of.source(self.layer + 1)
        if source is None or method.reads_no_table:
            return u
        number, old, beta = method.gradient_table(self), of.of_halo(source, u.dtype), of.beta().to(u.dtype)
        if number is None or not u.requires_grad:
            return Blend.apply(u, old, beta, None)
        unit = method.unit(self.history.kinds[GRADIENT][number].rows.dtype)
        past = self.history.pull(number, of.halo, kind=GRADIENT)
        return Blend.apply(u, old, beta, lambda grad: of.of_halo(past, grad.dtype) / unit)

    def aggregate(
        self, x: Tensor | None = None, *, residual: Tensor | None = None, alpha: float = 0.0, **options: Any
    ) -> Tensor:
        return mixed(self.of.joined()[1], residual, alpha)

    # Randomness and features are those of the batch's forward.

    def next_seed(self) -> int:
        self.last_seed = self.of.next_seed()
        return self.last_seed

    @property
    def edge_dropout(self) -> float:
        return self.of.edge_dropout

    def _feature_rows(self) -> Tensor | SparseRows:
        return self.of._halo_feature_rows()

    def _propagate_features(self) -> Tensor:
        x, position = torch.cat([self.of._features(), self._features()]), self.of.position(joined=True)
        return history_spmm(self.adj, self.batch.rows, position, x, dtype=torch.float32, **self.edges())

    def _propagate_features_linear(self, weight: Tensor) -> Tensor:
        if not self.inputs.features.sparse:
            return F.linear(self._propagate_features(), weight)
        x, position = self.of._sparse_neighbourhood_linear(weight), self.of.position(joined=True)
        return history_spmm(self.adj, self.batch.rows, position, x, dtype=torch.float32, **self.edges())


class Blend(torch.autograd.Function):
    """``(1 - beta) old + beta u``. The gradient of u is ``(1 - beta) past(grad) + beta grad``, or grad without ``past``."""

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
    """In the block, the weights of a model have no gradient."""
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

    def propagate_linear(self, weight: Tensor) -> Tensor:
        # Else the last layer's result, which is in a table, would differ in its last bits with the place of the tables.
        return F.linear(self.propagate(), weight) if self.filling else super().propagate_linear(weight)

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
