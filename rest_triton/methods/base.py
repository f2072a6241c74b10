"""The base class of training methods: they choose the rows of a step and how their neighbours are read.

A method overrides the hooks in which it differs from GAS. In the order of a step:

    begin(engine, step)            the first fill of the tables; fills: whether it writes all rows, so that they predict
    batches(epoch)                 the batches of an epoch
    prepare(engine, batch, step)   the rows of each layer, where they differ: it samples neighbours
    ahead                          whether batches and what prepare makes of them depend on seed and step alone
    aggregate(ctx, …)              how a layer reads the neighbours of its rows
    transforms_first(ctx, …)       whether a layer multiplies before it aggregates
    loss(graph, batch, device)     the loss of the batch's result
    after_layer(ctx)               work after a layer; keeps_inputs: whether it reads the layer's input
    after_forward(ctx)             work after all layers; records_late: whether rows are recorded then
    after_backward(ctx)            work after backward: tables of gradients, scores of nodes
    scale                          the factor of gradients, before they are clipped

    halo_gradient                  whether weights have a gradient through computed rows of the halo
    bind(adj, x)                   sees the graph; the features that the model reads. layers: of the model
    reach                          the nodes that training nodes depend on, if others are neither stored nor computed
    context, layerwise             the classes of a batch's forward, and of a piece of an exact pass
    tables(model), table_rows      the tables it needs, by kind, and their rows
    refresh_batches(seed)          the batches that REST refreshes; refreshes_last: whether with the last layer
    reads(engine, batch)           the rows that REST-IS refreshes
    state(), load(state)           its part of a checkpoint
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from ..history.history import INPUT
from ..kernels._hash import mix64
from ..nn.context import Context
from ..nn.features import NodeRows
from ..nn.inference import LayerwiseContext
from ..nn.model import HistoryGNN
from ..ops import Adjacency
from ..sampling.batch import Batch, ClusterBatches
from ..sampling.reach import Reach
from .loss import Loss, mean_loss

if TYPE_CHECKING:
    from .engine import Engine


class Method(ABC):
    """A training method.

    Args:
        config: of the run. ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]``. device: of the batches' rows.
        graph: with labels and masks, for the methods that ask for them.
    """

    scale = 1.0
    ahead = False
    keeps_inputs = False
    records_late = False
    fills = True
    refreshes_last = False
    halo_gradient = True
    layers: int | None = None
    reach: Reach | None = None
    context: type[Context] = Context
    layerwise: type[LayerwiseContext] = LayerwiseContext

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        self.config, self.ptr, self.device, self.graph = config, ptr, device, graph

    def bind(self, adj: Adjacency, x: NodeRows) -> NodeRows:
        """[N, F]: the features that the model reads, made of those of the data set. Called once, before all others."""
        return x

    def begin(self, engine: "Engine", step: int) -> None:
        """Fill the tables before the first step, and after the state of a checkpoint without tables was restored."""
        engine.fill(step)

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Batch]:
        """The batches of an epoch. They depend on its number and :meth:`state` alone, so that it can be repeated."""

    def prepare(self, engine: "Engine", batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        """The batch with the rows of each layer. refreshing: for a refresh, the ``draw``-th of the step."""
        return batch

    def cover(self) -> Sequence[Batch]:
        """Batches that hold every node exactly once, for measurements."""
        return self.batches(0)

    def draws(self, engine: "Engine", epoch: int, most: int) -> Sequence[Batch]:
        """At most ``most`` of an epoch's batches, drawn with the current weights, for measurements. They move the state."""
        return self.batches(epoch)[:most]

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        """The widths of the tables it needs, by kind. :data:`INPUT` is the kind of the inputs of layers."""
        return {INPUT: model.history_dims[self.first_table(model) - (not model.encodes) :]}

    @property
    def table_rows(self) -> int | None:
        """The rows of each table, None for one for each node."""
        return None

    def first_table(self, model: HistoryGNN) -> int:
        """The first layer with its input in a table. Features and recomputed embeddings have no table."""
        return int(not model.encodes) + (self.config.first == "exact")

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        """[R, D]: ``(1 - alpha) * A h + alpha * residual``, where h is the input of the context's layer."""
        return ctx.aggregate(**mix)

    def transforms_first(self, ctx: Context, width: int, result: int) -> bool:
        """Whether a layer multiplies rows of ``width`` columns into ``result`` before it aggregates them."""
        return ctx.inputs.transforms_first(ctx.block.rows, ctx.halo, width, result)

    def loss(self, graph: Graph, batch: Batch, device: torch.device) -> Loss:
        """The loss as a function of a batch's result. It returns None for a batch without a training node."""
        return mean_loss(graph, batch, device)

    def after_layer(self, ctx: Context) -> None:  # noqa: B027
        """Called when a layer's output is recorded, before the next layer reads its neighbours."""

    def after_forward(self, ctx: Context) -> None:  # noqa: B027
        """Called when all layers are computed, before backward."""

    def after_backward(self, ctx: Context) -> None:  # noqa: B027 (most methods need nothing)
        """Called between backward and the update of the weights."""

    def refresh_batches(self, batch_size: int, seed: int) -> ClusterBatches:
        """The batches that REST refreshes."""
        return ClusterBatches(self.ptr, batch_size, seed=mix64(seed) >> 1, device=self.device)

    def reads(self, engine: "Engine", batch: Batch) -> Tensor:
        """int64[H]: the rows that a batch reads from tables."""
        return batch.halo(engine.inputs.adj)

    def state(self) -> dict[str, Any]:
        """The method's part of a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore the state of a checkpoint."""
