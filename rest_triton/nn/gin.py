"""GIN (Xu et al., 2019)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Parameter

from .context import Context
from .layers import batch_norms, norm_of
from .model import HistoryGNN


class GIN(HistoryGNN):
    r"""Layers :math:`h^{l+1} = relu(W_2\, relu(norm(W_1 ((1 + \epsilon) h^l_v + \sum_{u \in N(v)} h^l_u))))`.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual; the last layer has no final ReLU.
        drop_input: dropout of features. batch_norm: between the two linear layers.

    Tables: the input of every layer but the first, which reads features.
    """

    normalise = "sum"
    sparse_features = True

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float = 0.0,
        drop_input: bool = False, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GIN has at least one")
        super().__init__([hidden_channels] * (num_layers - 1))
        self.dropout, self.feature_dropout = dropout, dropout if drop_input else 0.0
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.eps = Parameter(torch.zeros(num_layers))
        self.first = ModuleList(Linear(a, hidden_channels) for a in widths[:-1])
        self.second = ModuleList(Linear(hidden_channels, b) for b in widths[1:])
        self.bns = batch_norms([hidden_channels] * num_layers, batch_norm)

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.first, *self.second[:-1], *self.bns]

    def layer(self, layer: int, ctx: Context) -> Tensor:
        first: Any = self.first[layer]
        second: Any = self.second[layer]
        if ctx.sparse_input:
            u = ctx.propagate_linear(first.weight) + (1 + self.eps[layer]) * ctx.input_linear(first.weight)
        else:
            u = F.linear(ctx.propagate() + (1 + self.eps[layer]) * ctx.h, first.weight)
        ctx.release()
        u = ctx.activate(u, norm_of(self.bns, layer), bias=first.bias)
        if layer == self.num_layers - 1:
            return second(u)
        return ctx.output(F.linear(u, second.weight), bias=second.bias, dropout=self.dropout)
