"""GCN (Kipf and Welling, 2017)."""

from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from ..data.features import SparseRows
from .context import Context
from .layers import Convolution, batch_norms, norm_of
from .model import HistoryGNN


class GCN(HistoryGNN):
    r"""Layers :math:`h^{l+1} = dropout(relu(norm(\hat A h^l W^l + b^l) + h^l))`, the last one :math:`\hat A h W + b`.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual.
        drop_input: dropout of features, too.
        batch_norm: with ``norm``. residual: with ``+ h``, where the widths agree.
        linear: a linear layer before the first aggregate and one after the last. The last layer is then like the others.

    Tables: the input of every layer but features. Without ``linear`` the first layer reads features. Their aggregate is
    computed once for the whole graph, unless training drops features.
    """

    sparse_features = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float = 0.0,
        drop_input: bool = False,
        batch_norm: bool = False,
        residual: bool = False,
        linear: bool = False,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCN has at least one")
        inner = [hidden_channels] * (num_layers - 1)
        super().__init__([hidden_channels, *inner] if linear else inner)
        self.dropout, self.residual, self.linear = dropout, residual, linear
        self.feature_dropout, self.encoded_dropout = dropout if drop_input else 0.0, dropout
        outer = [(in_channels, hidden_channels), (hidden_channels, out_channels)]
        self.lins = ModuleList(Linear(a, b) for a, b in outer) if linear else ModuleList()
        widths = [hidden_channels, *inner, hidden_channels] if linear else [in_channels, *inner, out_channels]
        self.convs = ModuleList(Convolution(a, b) for a, b in pairwise(widths))
        self.bns = batch_norms(widths[1:] if linear else inner, batch_norm)

    @property
    def encodes(self) -> bool:
        return self.linear

    @property
    def reg_modules(self) -> list[Module]:
        return [*(self.convs if self.linear else self.convs[:-1]), *self.bns]

    def encode(self, x: Tensor | SparseRows, ctx: Context) -> Tensor:
        lin: Any = self.lins[0]
        return ctx.activate(ctx.linear(x, lin.weight), bias=lin.bias)

    def layer(self, layer: int, ctx: Context) -> Tensor:
        conv: Any = self.convs[layer]
        residual = ctx.h if self.residual and (layer > 0 or self.linear) else None
        u = ctx.propagate_linear(conv.lin.weight)
        ctx.release()
        if layer == self.num_layers - 1 and not self.linear:
            return u + conv.bias
        norm = norm_of(self.bns, layer)
        if residual is None:
            return ctx.output(u, norm, bias=conv.bias, dropout=self.dropout)
        # The residual is added between the normalisation and the ReLU, which takes two passes.
        return ctx.output(ctx.activate(u, norm, bias=conv.bias, relu=False) + residual, dropout=self.dropout)

    def decode(self, h: Tensor) -> Tensor:
        return self.lins[1](h) if self.linear else h
