"""APPNP (Gasteiger et al., 2019)."""

from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from ..data.features import SparseRows
from .context import Context
from .layers import batch_norms, norm_of
from .model import HistoryGNN


class APPNP(HistoryGNN):
    r"""An MLP, then K steps of :math:`h^{k+1} = (1 - \alpha) \hat A h^k + \alpha h^0`.

    Args:
        in_channels, hidden_channels, out_channels, dropout: of the MLP.
        num_layers: K, the number of propagations. alpha: the teleport probability.
        mlp_layers: linear layers of the MLP. batch_norm: between them. drop_input: dropout of features.

    Tables: the MLP's result and every propagation but the last: K tables, as wide as the classes.
    """

    sparse_features = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        alpha: float = 0.1,
        dropout: float = 0.0,
        mlp_layers: int = 2,
        batch_norm: bool = False,
        drop_input: bool = True,
    ) -> None:
        if num_layers < 1 or mlp_layers < 1:
            raise ValueError(f"num_layers is {num_layers} and mlp_layers {mlp_layers}; both must be at least 1")
        super().__init__([out_channels] * num_layers)
        widths = [in_channels, *[hidden_channels] * (mlp_layers - 1), out_channels]
        self.lins = ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.bns = batch_norms(widths[1:-1], batch_norm)
        self.alpha, self.dropout = alpha, dropout
        self.feature_dropout = dropout if drop_input else 0.0

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.lins[:-1], *self.bns]

    def encode(self, x: Tensor | SparseRows, ctx: Context) -> Tensor:
        lin: Any
        for i, lin in enumerate(self.lins[:-1]):
            x = ctx.activate(ctx.linear(x, lin.weight), norm_of(self.bns, i), bias=lin.bias, dropout=self.dropout)
        lin = self.lins[-1]
        return lin(x) if isinstance(x, Tensor) else ctx.linear(x, lin.weight) + lin.bias

    def layer(self, layer: int, ctx: Context) -> Tensor:
        return ctx.propagate(residual=ctx.h0, alpha=self.alpha)
