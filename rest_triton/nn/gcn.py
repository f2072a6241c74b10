"""GCN (Kipf and Welling, 2017)."""

from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from .context import View
from .layers import Convolution, batch_norms, norm_of


class GCN(Module):
    r"""Layers :math:`h^{l+1} = dropout(relu(norm(\hat A h^l W^l + b^l) + h^l))`, the last one :math:`\hat A h W + b`.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual.
        drop_input: dropout of features, too.
        batch_norm: with ``norm``. residual: with ``+ h``, where the widths agree.
        linear: a linear layer before the first aggregate and one after the last, which is then a layer like the others.

    Tables: the input of every layer that is not features. Without ``linear`` the first layer reads features, and its
    aggregate is computed once for the whole graph, unless features are dropped.
    """

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
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCN has at least one")
        self.dropout, self.drop_input, self.residual, self.linear = dropout, drop_input, residual, linear
        outer = [(in_channels, hidden_channels), (hidden_channels, out_channels)]
        self.lins = ModuleList(Linear(a, b) for a, b in outer) if linear else ModuleList()
        inner = [hidden_channels] * (num_layers - 1)
        widths = [hidden_channels, *inner, hidden_channels] if linear else [in_channels, *inner, out_channels]
        self.convs = ModuleList(Convolution(a, b) for a, b in pairwise(widths))
        self.bns = batch_norms(widths[1:] if linear else inner, batch_norm)
        self.widths = [hidden_channels, *inner] if linear else inner
        self.starts_with_aggregate = not linear

    @property
    def reg_modules(self) -> list[Module]:
        return [*(self.convs if self.linear else self.convs[:-1]), *self.bns]

    def _first(self, view: View) -> Tensor:
        lin: Any = self.lins[0]
        x = view.dropout(view.features(), self.dropout if self.drop_input else 0.0)
        return view.activate(None, F.linear(x, lin.weight), bias=lin.bias)

    def forward(self, view: View) -> Tensor | None:
        h = view.dropout(view.start(self._first), self.dropout) if self.linear else None
        last = len(self.convs) - 1
        for layer in view.layers(len(self.convs)):
            conv: Any = self.convs[layer]
            table = layer if self.linear else layer - 1  # of the layer's input
            # Names are let go of as soon as they can be: of all nodes at once, each is as large as a table.
            before = view.rows(table, h) if self.residual and table >= 0 else None
            if table < 0:
                u = view.convolve_features(conv.lin.weight, self.dropout if self.drop_input else 0.0)
            else:
                u, h = view.convolve(table, h, conv.lin.weight), None
            if layer == last and not self.linear:
                return u + conv.bias
            norm, bias = norm_of(self.bns, layer), conv.bias
            if before is not None:
                # It enters between the normalisation and the ReLU: two passes.
                u, before, norm = view.activate(None, u, norm, bias=bias, relu=False) + before, None, None
                bias = None
            h = view.activate(table + 1 if layer < last else None, u, norm, bias=bias, dropout=self.dropout)
            del u
            if layer == last:
                return self.lins[1](h)
        return None
