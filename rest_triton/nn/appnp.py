"""APPNP (Gasteiger et al., 2019)."""

from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from .context import View
from .layers import batch_norms, norm_of


class APPNP(Module):
    r"""An MLP, then K steps of :math:`h^{k+1} = (1 - \alpha) \hat A h^k + \alpha h^0`.

    Args:
        in_channels, hidden_channels, out_channels, dropout: of the MLP.
        num_layers: K, the number of propagations. alpha: the teleport probability.
        mlp_layers: how many linear layers the MLP has. batch_norm: between them. drop_input: dropout of features.

    Tables: the MLP's result and every propagation but the last, K of them, as wide as the classes.
    """

    starts_with_aggregate = False

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
        super().__init__()
        if num_layers < 1 or mlp_layers < 1:
            raise ValueError(f"num_layers is {num_layers} and mlp_layers {mlp_layers}; both must be at least 1")
        widths = [in_channels, *[hidden_channels] * (mlp_layers - 1), out_channels]
        self.lins = ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.bns = batch_norms(widths[1:-1], batch_norm)
        self.num_layers, self.alpha, self.dropout, self.drop_input = num_layers, alpha, dropout, drop_input
        self.widths = [out_channels] * num_layers

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.lins[:-1], *self.bns]

    def _first(self, view: View) -> Tensor:
        h = view.dropout(view.features(), self.dropout if self.drop_input else 0.0)
        lin: Any
        for i, lin in enumerate(self.lins[:-1]):
            h = view.activate(None, F.linear(h, lin.weight), norm_of(self.bns, i), bias=lin.bias, dropout=self.dropout)
        return self.lins[-1](h)

    def forward(self, view: View) -> Tensor | None:
        h = first = view.start(self._first)
        for k in view.layers(self.num_layers):
            h = view.aggregate(k, h, residual=first, alpha=self.alpha)
            if k == self.num_layers - 1:
                return h
            view.record(k + 1, h)
        return None
