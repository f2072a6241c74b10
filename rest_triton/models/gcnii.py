"""GCNII (Chen et al., 2020)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, Parameter, ParameterList

from ..view import View


class GCNII(Module):
    r"""Layers :math:`z = (1 - \alpha) \hat A h^l + \alpha h^0,\ h^{l+1} = relu((1 - \beta_l) z + \beta_l z W^l)` with
    :math:`\beta_l = \log(\theta / l + 1)`, between two linear layers.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual.
        alpha, theta: as above. shared_weights: W for both parts of z (else another one for :math:`h^0`).
        batch_norm: before the ReLU.

    Tables: the first linear layer's result and every layer's but the last's, ``num_layers`` of them.
    """

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
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCNII has at least one")
        self.alpha, self.theta, self.dropout = alpha, theta, dropout
        self.lins = ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])

        def weights() -> ParameterList:
            bound = math.sqrt(6 / (2 * hidden_channels))
            return ParameterList(
                Parameter(torch.empty(hidden_channels, hidden_channels).uniform_(-bound, bound)) for _ in range(num_layers)
            )

        self.weights1 = weights()
        self.weights2 = None if shared_weights else weights()
        self.norms = ModuleList(BatchNorm1d(hidden_channels) for _ in range(num_layers)) if batch_norm else None
        self.widths = [hidden_channels] * num_layers

    def forward(self, view: View) -> Tensor:
        x = view.activate(None, view.features(), relu=False, dropout=self.dropout)
        first = view.activate(None, self.lins[0](x))
        view.record(0, first)
        h = view.activate(None, first, relu=False, dropout=self.dropout)
        last = len(self.widths) - 1
        for layer, weight in enumerate(self.weights1):
            if view.refreshing and layer == last:
                return h  # all tables are written
            beta = math.log(self.theta / (layer + 1) + 1)
            if self.weights2 is None:
                z = view.aggregate(layer, h, residual=first, alpha=self.alpha)
                u = torch.addmm(z, z, weight, beta=1 - beta, alpha=beta)
            else:
                z, z0 = (1 - self.alpha) * view.aggregate(layer, h), self.alpha * first
                u = torch.addmm(z, z, weight, beta=1 - beta, alpha=beta)
                u = u + torch.addmm(z0, z0, self.weights2[layer], beta=1 - beta, alpha=beta)
            norm: Any = None if self.norms is None else self.norms[layer]
            table = layer + 1 if layer < last else None
            h = view.activate(table, u, norm, dropout=self.dropout)
        return self.lins[1](h)
