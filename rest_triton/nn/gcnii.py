"""GCNII (Chen et al., 2020)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from ..data.features import SparseRows
from .context import Context
from .layers import DeepConvolution, batch_norms, norm_of
from .model import HistoryGNN


class GCNII(HistoryGNN):
    r"""Layers :math:`z = (1 - \alpha) \hat A h^l + \alpha h^0,\ h^{l+1} = relu((1 - \beta_l) z + \beta_l z W^l)` with
    :math:`\beta_l = \log(\theta / l + 1)`, between two linear layers.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual. drop_input: dropout of features.
        alpha, theta: as above. shared_weights: one W for both parts of z; else a second one for :math:`h^0`.
        batch_norm: before the ReLU. residual: add :math:`h^l` before the ReLU.

    Tables: the result of the first linear layer and of every layer but the last: ``num_layers`` tables.
    """

    sparse_features = True

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
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCNII has at least one")
        super().__init__([hidden_channels] * num_layers)
        self.alpha, self.theta, self.dropout, self.residual = alpha, theta, dropout, residual
        self.feature_dropout, self.encoded_dropout = dropout if drop_input else 0.0, dropout
        self.lins = ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])
        self.convs = ModuleList(DeepConvolution(hidden_channels, shared_weights) for _ in range(num_layers))
        self.bns = batch_norms([hidden_channels] * num_layers, batch_norm)

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.convs, *self.bns]

    def encode(self, x: Tensor | SparseRows, ctx: Context) -> Tensor:
        lin: Any = self.lins[0]
        return ctx.activate(ctx.linear(x, lin.weight), bias=lin.bias)

    def layer(self, layer: int, ctx: Context) -> Tensor:
        conv: Any = self.convs[layer]
        beta = math.log(self.theta / (layer + 1) + 1)
        residual = ctx.h if self.residual else None
        if conv.weight2 is None:
            z = ctx.propagate(residual=ctx.h0, alpha=self.alpha)
            u = torch.mm(z, _with_identity(conv.weight1, beta))
        else:
            z, z0 = (1 - self.alpha) * ctx.propagate(), self.alpha * ctx.h0
            u = torch.addmm(torch.mm(z0, _with_identity(conv.weight2, beta)), z, _with_identity(conv.weight1, beta))
        norm = norm_of(self.bns, layer)
        if residual is not None:
            u, norm = ctx.activate(u, norm, relu=False) + residual, None
        return ctx.output(u, norm, dropout=self.dropout)

    def decode(self, h: Tensor) -> Tensor:
        return self.lins[1](h)


def _with_identity(weight: Tensor, beta: float) -> Tensor:
    """(1 - beta) I + beta W. One product by it replaces a product, a scaling and an addition."""
    return beta * weight + (1 - beta) * torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
