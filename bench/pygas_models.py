"""PyGAS's models. Arguments and names of weights are its own; which dropout is on unless said otherwise is that of
``rest_triton.nn``, so that equal arguments make equal networks."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, Parameter

from .pygas import Bipartite

PushAndPull = Callable[[int, Tensor], Tensor]


class GCNConv(Module):
    """``adj @ (x W) + b``: all rows are transformed first, those of the halo too, as PyG does."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = Linear(in_channels, out_channels, bias=False)
        self.bias = Parameter(torch.zeros(out_channels))
        torch.nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, adj: Bipartite) -> Tensor:
        return (adj @ self.lin(x)).add_(self.bias)


class GCN(Module):
    """GCN (Kipf and Welling, 2017); tables: what comes out of the ReLU of every layer but the last.

    Args:
        drop_input: dropout on the features, too; on in PyGAS unless said otherwise, off in most of its large runs.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        dropout: float = 0.0,
        drop_input: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.drop_input, self.batch_norm = dropout, drop_input, batch_norm
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = ModuleList(GCNConv(widths[i], widths[i + 1]) for i in range(num_layers))
        # One for each layer, whether used or not: PyGAS has them, and its state dicts are to fit.
        self.bns = ModuleList(BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.widths = widths[1:-1]

    def forward(self, x: Tensor, adj: Bipartite, push_and_pull: PushAndPull) -> Tensor:
        if self.drop_input:
            x = F.dropout(x, self.dropout, self.training)
        for layer in range(len(self.widths)):
            x = push_and_pull(layer, self.activate(layer, self.convs[layer](x, adj)))
            x = F.dropout(x, self.dropout, self.training)
        logits: Tensor = self.convs[-1](x, adj)
        return logits

    def activate(self, layer: int, h: Tensor) -> Tensor:
        """What becomes of a layer's sums before dropout. h may be written."""
        return (self.bns[layer](h) if self.batch_norm else h).relu_()


class APPNP(Module):
    """APPNP (Gasteiger et al., 2019); tables: every propagation but the last, ``num_layers - 1`` of them. The MLP is
    computed for all rows, those of the halo too."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        alpha: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.alpha, self.dropout = alpha, dropout
        self.lins = ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])
        self.widths = [out_channels] * (num_layers - 1)

    def forward(self, x: Tensor, adj: Bipartite, push_and_pull: PushAndPull) -> Tensor:
        x = F.dropout(x, self.dropout, self.training)
        x = self.lins[0](x).relu_()
        x = F.dropout(x, self.dropout, self.training)
        x = self.lins[1](x)
        first = x[: adj.rows]
        for step in range(len(self.widths)):
            x = push_and_pull(step, torch.lerp(adj @ x, first, self.alpha))
        return torch.lerp(adj @ x, first, self.alpha)


class GCN2Conv(Module):
    """With ``z = (1 - alpha) adj @ x + alpha x_0``: ``(1 - beta) z + beta z W``; with separate weights the two parts of z
    have a W each."""

    def __init__(self, channels: int, alpha: float, beta: float, shared_weights: bool) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.weight1 = Parameter(torch.nn.init.xavier_uniform_(torch.empty(channels, channels)))
        self.weight2 = None if shared_weights else Parameter(torch.nn.init.xavier_uniform_(torch.empty(channels, channels)))

    def forward(self, x: Tensor, x_0: Tensor, adj: Bipartite) -> Tensor:
        first = x_0[: adj.rows]
        if self.weight2 is None:
            return self._mixed(torch.lerp(adj @ x, first, self.alpha), self.weight1)
        near = self._mixed((adj @ x).mul_(1 - self.alpha), self.weight1)
        return near.add_(self._mixed(first * self.alpha, self.weight2))

    def _mixed(self, z: Tensor, weight: Tensor) -> Tensor:
        return torch.addmm(z, z, weight, beta=1 - self.beta, alpha=self.beta)


class GCNII(Module):
    """GCNII (Chen et al., 2020), PyGAS's ``GCN2``; tables: what comes out of the ReLU of every layer but the last,
    ``num_layers - 1`` of them. ``x_0`` is computed for all rows, those of the halo too."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        alpha: float = 0.1,
        theta: float = 0.5,
        shared_weights: bool = True,
        dropout: float = 0.0,
        drop_input: bool = True,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.drop_input, self.batch_norm = dropout, drop_input, batch_norm
        self.lins = ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])
        self.convs = ModuleList(
            GCN2Conv(hidden_channels, alpha, math.log(theta / (layer + 1) + 1), shared_weights)
            for layer in range(num_layers)
        )
        self.bns = ModuleList(BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.widths = [hidden_channels] * (num_layers - 1)

    def forward(self, x: Tensor, adj: Bipartite, push_and_pull: PushAndPull) -> Tensor:
        if self.drop_input:
            x = F.dropout(x, self.dropout, self.training)
        x_0 = self.lins[0](x).relu_()
        x = F.dropout(x_0, self.dropout, self.training)
        for layer, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            h = conv(x, x_0, adj)
            if self.batch_norm:
                h = bn(h)
            x = h.relu_()
            if layer < len(self.widths):
                x = push_and_pull(layer, x)
            x = F.dropout(x, self.dropout, self.training)
        logits: Tensor = self.lins[1](x)
        return logits
