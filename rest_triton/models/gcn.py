"""GCN (Kipf and Welling, 2017)."""

from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList

from ..view import View


class GCN(Module):
    r"""Layers :math:`h^{l+1} = dropout(relu(norm(\hat A h^l W^l + b^l) + h^l))`, the last one :math:`\hat A h W + b`.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual.
        batch_norm: with ``norm``. residual: with ``+ h``, where the widths agree.

    Tables: the input of every layer but the first, ``num_layers - 1`` of them. The first layer reads features, and its
    aggregate is computed once for the whole graph.
    """

    starts_with_aggregate = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float = 0.0,
        batch_norm: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a GCN has at least one")
        self.dropout, self.residual = dropout, residual
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.lins = ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.norms = ModuleList(BatchNorm1d(w) for w in widths[1:-1]) if batch_norm else None
        self.widths = widths[1:-1]

    def forward(self, view: View) -> Tensor:
        z, h = view.aggregated_features(), None
        for layer, lin in enumerate(self.lins):
            if layer > 0:
                assert h is not None
                if view.refreshing and layer == len(self.widths):
                    return h  # all tables are written
                z = view.aggregate(layer - 1, h)
            # Names are let go of as soon as they can be: of all nodes at once, each is as large as a table.
            before, h = (h if self.residual else None), None
            u = lin(z)
            del z
            if layer == len(self.widths):
                return u
            norm: Any = None if self.norms is None else self.norms[layer]
            if before is not None:
                # It enters between the normalisation and the ReLU: two passes.
                u = view.activate(None, u, norm, relu=False) + before
                norm = None
            h = view.activate(layer, u, norm, dropout=self.dropout)
            del u
        raise AssertionError("the last layer returns")
