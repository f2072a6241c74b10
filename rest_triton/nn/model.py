"""The base class of models. A model implements the equation of its layers once; every method can train it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module

from ..data.graph import Normalisation
from .context import Context


class HistoryGNN(Module, ABC):
    """A model for training with histories or full batches, and for exact inference.

    Args:
        history_dims: the widths of the tables, which hold the inputs of layers. A model that encodes features has a table
            for each layer. In other models the first layer reads features, and every other layer has a table.

    Example::

        class SAGE(HistoryGNN):
            def __init__(self, dims):
                super().__init__(history_dims=dims[1:-1])
                self.lins = ModuleList(Linear(2 * a, b) for a, b in pairwise(dims))

            def layer(self, layer, ctx):
                u = self.lins[layer](torch.cat([ctx.h, ctx.propagate()], 1))
                return u if layer == self.num_layers - 1 else ctx.output(u, dropout=0.5)
    """

    normalise: ClassVar[Normalisation] = "gcn"  # of the adjacency in propagate()
    drops_edges: ClassVar[bool] = False  # whether dropout applies to edges, so that the reverse graph needs edge ids
    # Whether features are only multiplied by weights, by ctx.linear, ctx.propagate_linear and ctx.neighbourhood_linear. Wide
    # and sparse features then stay sparse. Else the model gets them dense.
    sparse_features: ClassVar[bool] = False
    feature_dropout: float = 0.0  # of features, in training
    encoded_dropout: float = 0.0  # of encoded features as the input of the first layer, in training

    def __init__(self, history_dims: Sequence[int]) -> None:
        super().__init__()
        self.history_dims = list(history_dims)

    @property
    def encodes(self) -> bool:
        """Whether features are encoded before the first layer."""
        return type(self).encode is not HistoryGNN.encode

    @property
    def num_layers(self) -> int:
        return len(self.history_dims) + (not self.encodes)

    def encode(self, x: Any, ctx: Context) -> Tensor:
        """[R, D]: the encoded features, from features [R, F] alone. It must not read neighbours from ``ctx``.

        x is a tensor. With ``sparse_features`` it may also be :class:`SparseRows`, for ``ctx.linear(x, weight)``.
        """
        return x

    @abstractmethod
    def layer(self, layer: int, ctx: Context) -> Tensor:
        """[R, D]: the output of a layer, counted from 0, from ``ctx.h``, ``ctx.h0`` and ``ctx.propagate()``."""

    def decode(self, h: Tensor) -> Tensor:
        """[R, C]: the result, from the output of the last layer."""
        return h

    def forward(self, ctx: Context) -> Tensor | None:
        """The result for the rows of ``ctx``, or None if the forward only writes tables."""
        ctx.begin(self)
        for layer in ctx.layers():
            ctx.enter(layer)
            ctx.leave(self.layer(layer, ctx))
        return ctx.result(self)
