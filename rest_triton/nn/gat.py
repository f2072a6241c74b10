"""GAT (Velickovic et al., 2018)."""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Parameter

from ..ops import history_attention
from .context import Context
from .layers import batch_norms, norm_of
from .model import HistoryGNN


class Attention(Module):
    """The weights of a GAT layer, under PyG's names: ``lin``, ``att_src`` and ``att_dst`` [1, heads, C], ``bias``."""

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.lin = Linear(in_channels, out_channels, bias=False)
        torch.nn.init.xavier_uniform_(self.lin.weight)
        bound = math.sqrt(6 / (heads + out_channels // heads))
        self.att_src = Parameter(torch.empty(1, heads, out_channels // heads).uniform_(-bound, bound))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels // heads).uniform_(-bound, bound))
        self.bias = Parameter(torch.zeros(out_channels))

    def forward(self, ctx: Context, dropout: float) -> Tensor:
        """[R, D]: attention of the computed rows over their neighbours, without the bias."""
        x, block = ctx.neighbourhood_linear(self.lin.weight), ctx.block
        by_head = x.view(len(x), self.heads, self.att_src.shape[2])
        source = (by_head * self.att_src).sum(2)
        target = (by_head[: len(block.rows)] * self.att_dst).sum(2)
        halo = ctx.halo
        nodes = torch.cat([block.source.rows, halo]) if halo.numel() else block.source.rows
        dropout = dropout if ctx.training and not ctx.refreshing else 0.0  # a refresh reads all edges
        return history_attention(
            ctx.adj, block.rows.rows, ctx.position(joined=True), x, source, target, dropout=dropout,
            seed=ctx.next_seed() if dropout > 0 else 0, x_rows=nodes, row_position=ctx.position(of_result=True),
        )  # fmt: skip


class GAT(HistoryGNN):
    r"""Layers :math:`h^{l+1} = dropout(elu(norm(\sum_u \alpha_{vu} W h^l_u + b)))` with
    :math:`\alpha_{v\cdot} = softmax_u\, LeakyReLU(a_s W h_u + a_t W h_v)` over the neighbours and the node itself.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual; attention weights are dropped, too.
        heads: of hidden layers, each with ``hidden_channels / heads`` columns. The last layer has one.
        drop_input: dropout of features. batch_norm: before the ELU.

    Tables: the input of every layer but the first, which reads features. The rows of the halo are multiplied by W in every
    batch, with a gradient for W.
    """

    normalise = "loops"
    drops_edges = True
    sparse_features = True

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float = 0.0,
        heads: int = 8, drop_input: bool = False, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GAT has at least one")
        if hidden_channels % heads:
            raise ValueError(f"heads is {heads}; it must divide hidden_channels, {hidden_channels}")
        super().__init__([hidden_channels] * (num_layers - 1))
        self.dropout, self.feature_dropout = dropout, dropout if drop_input else 0.0
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        last = num_layers - 1
        self.convs = ModuleList(Attention(a, b, 1 if i == last else heads) for i, (a, b) in enumerate(pairwise(widths)))
        self.bns = batch_norms(widths[1:-1], batch_norm)

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.convs[:-1], *self.bns]

    def layer(self, layer: int, ctx: Context) -> Tensor:
        conv: Any = self.convs[layer]
        u = conv(ctx, self.dropout)
        ctx.release()
        if layer == self.num_layers - 1:
            return u + conv.bias
        u = ctx.activate(u, norm_of(self.bns, layer), bias=conv.bias, relu=False)
        return ctx.output(F.elu(u), relu=False, dropout=self.dropout)
