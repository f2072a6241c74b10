"""APPNP (Gasteiger et al., 2019)."""

from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList

from ..view import View


class APPNP(Module):
    r"""An MLP, then K steps of :math:`h^{k+1} = (1 - \alpha) \hat A h^k + \alpha h^0`.

    Args:
        in_channels, hidden_channels, out_channels, dropout: of the MLP.
        num_layers: K, the number of propagations. alpha: the teleport probability.
        mlp_layers: how many linear layers the MLP has. batch_norm: between them.

    Tables: the MLP's result and every propagation but the last, K of them, as wide as the classes.
    """

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
    ) -> None:
        super().__init__()
        if num_layers < 1 or mlp_layers < 1:
            raise ValueError(f"num_layers is {num_layers} and mlp_layers {mlp_layers}; both must be at least 1")
        widths = [in_channels, *[hidden_channels] * (mlp_layers - 1), out_channels]
        self.lins = ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.norms = ModuleList(BatchNorm1d(w) for w in widths[1:-1]) if batch_norm else None
        self.num_layers, self.alpha, self.dropout = num_layers, alpha, dropout
        self.widths = [out_channels] * num_layers

    def forward(self, view: View) -> Tensor:
        h = view.activate(None, view.features(), relu=False, dropout=self.dropout)
        for i, lin in enumerate(self.lins):
            h = lin(h)
            if i < len(self.lins) - 1:
                norm: Any = None if self.norms is None else self.norms[i]
                h = view.activate(None, h, norm, dropout=self.dropout)
        first = h
        view.record(0, first)
        for k in range(self.num_layers):
            if view.refreshing and k == self.num_layers - 1:
                return h  # all tables are written
            h = view.aggregate(k, h, residual=first, alpha=self.alpha)
            if k < self.num_layers - 1:
                view.record(k + 1, h)
        return h
