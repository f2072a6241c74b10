"""GCNII (Chen et al., 2020)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from .context import View
from .layers import DeepConvolution, batch_norms, norm_of


class GCNII(Module):
    r"""Layers :math:`z = (1 - \alpha) \hat A h^l + \alpha h^0,\ h^{l+1} = relu((1 - \beta_l) z + \beta_l z W^l)` with
    :math:`\beta_l = \log(\theta / l + 1)`, between two linear layers.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual. drop_input: dropout of features.
        alpha, theta: as above. shared_weights: W for both parts of z (else another one for :math:`h^0`).
        batch_norm: before the ReLU. residual: add :math:`h^l` before it, too.

    Tables: the first linear layer's result and every layer's but the last's, ``num_layers`` of them.
    """

    starts_with_aggregate = False

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        alpha: float = 0.1,
        theta: float = 0.5,
        dropout: float = 0.0,
        shared_weights: bool = True,
        batch_norm: bool = False,
        residual: bool = False,
        drop_input: bool = True,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCNII has at least one")
        self.alpha, self.theta, self.dropout = alpha, theta, dropout
        self.residual, self.drop_input = residual, drop_input
        self.lins = ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])
        self.convs = ModuleList(DeepConvolution(hidden_channels, shared_weights) for _ in range(num_layers))
        self.bns = batch_norms([hidden_channels] * num_layers, batch_norm)
        self.widths = [hidden_channels] * num_layers

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.convs, *self.bns]

    def _first(self, view: View) -> Tensor:
        lin: Any = self.lins[0]
        x = view.dropout(view.features(), self.dropout if self.drop_input else 0.0)
        return view.activate(None, F.linear(x, lin.weight), bias=lin.bias)

    def forward(self, view: View) -> Tensor | None:
        first = view.start(self._first)
        h: Tensor | None = view.dropout(first, self.dropout)
        last = len(self.convs) - 1
        for layer in view.layers(len(self.convs)):
            conv: Any = self.convs[layer]
            beta = math.log(self.theta / (layer + 1) + 1)
            before = view.rows(layer, h) if self.residual else None
            if conv.weight2 is None:
                z = view.aggregate(layer, h, residual=first, alpha=self.alpha)
                u = torch.mm(z, _with_identity(conv.weight1, beta))
            else:
                z, z0 = (1 - self.alpha) * view.aggregate(layer, h), self.alpha * first
                u = torch.addmm(torch.mm(z0, _with_identity(conv.weight2, beta)), z, _with_identity(conv.weight1, beta))
            norm = norm_of(self.bns, layer)
            if before is not None:
                u, norm = view.activate(None, u, norm, relu=False) + before, None
            h = view.activate(layer + 1 if layer < last else None, u, norm, dropout=self.dropout)
            if layer == last:
                return self.lins[1](h)
        return None


def _with_identity(weight: Tensor, beta: float) -> Tensor:
    """(1 - beta) I + beta W: z is multiplied once, instead of being multiplied, scaled and added, forth and back."""
    return beta * weight + (1 - beta) * torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
