"""GCN (Kipf and Welling, 2017)."""

from itertools import pairwise

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
        z = view.aggregated_features()
        h = z
        for layer, lin in enumerate(self.lins):
            if layer > 0:
                if view.refreshing and layer == len(self.widths):
                    return h  # all tables are written
                z = view.aggregate(layer - 1, h)
            u = lin(z)
            if layer < len(self.widths):
                norm = None if self.norms is None else self.norms[layer]
                if self.residual and layer > 0:
                    # h enters between the normalisation and the ReLU, as in PyGAS: two passes.
                    u = view.activate(None, u, norm, relu=False) + h  # type: ignore[arg-type]
                    norm = None
                h = view.activate(layer, u, norm, dropout=self.dropout)  # type: ignore[arg-type]
            else:
                h = u
        return h
