"""PNA (Corso et al., 2020)."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList

from .context import Context
from .layers import batch_norms, norm_of
from .model import HistoryGNN
from .pyg import edges_of

AGGREGATORS, SCALERS = 4, 3  # mean, minimum, maximum, deviation; each as it is, amplified and attenuated by the degree


class PNA(HistoryGNN):
    r"""Layers :math:`h^{l+1} = relu(norm(W [h^l, z, s z, z / s]))` with :math:`z` the mean, minimum, maximum and standard
    deviation over the neighbours, and :math:`s = \log(d + 1) / \delta` for degree d.

    Args:
        in_channels, hidden_channels, out_channels, num_layers, dropout: as usual; the last layer is linear.
        drop_input: dropout of features. batch_norm: before the ReLU.

    :math:`\delta` is the mean of :math:`\log(d + 1)` over all nodes. Neighbours' rows are gathered along the edges of a
    batch, so a step takes memory for edges × width.

    Tables: the input of every layer but the first, which reads features.
    """

    normalise = "sum"

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float = 0.0,
        drop_input: bool = False, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}; a PNA has at least one")
        super().__init__([hidden_channels] * (num_layers - 1))
        self.dropout, self.feature_dropout = dropout, dropout if drop_input else 0.0
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.lins = ModuleList(Linear((1 + AGGREGATORS * SCALERS) * a, b) for a, b in pairwise(widths))
        self.bns = batch_norms(widths[1:-1], batch_norm)

    @property
    def reg_modules(self) -> list[Module]:
        return [*self.lins[:-1], *self.bns]

    def layer(self, layer: int, ctx: Context) -> Tensor:
        edges = edges_of(ctx)
        z = aggregate(ctx.neighbourhood(), edges, len(ctx.block.rows))
        degree = torch.bincount(edges[1], minlength=len(z))
        # A node without neighbours counts as one with one neighbour: its scale would be 0, and is divided by.
        scale = ((degree.clamp_min(1) + 1).log() / ctx.inputs.mean_log_degree()).unsqueeze(1)
        amplified, attenuated = scale * z, z / scale
        u = self.lins[layer](torch.cat([ctx.h, z, amplified, attenuated], 1))
        if layer == self.num_layers - 1:
            return u
        return ctx.output(u, norm_of(self.bns, layer), dropout=self.dropout)


def aggregate(x: Tensor, edge_index: Tensor, rows: int) -> Tensor:
    """[R, 4 D]: mean, minimum, maximum and standard deviation of the rows of x along the edges. Without an edge: 0."""
    source, target = edge_index
    messages = x[source]
    count = torch.bincount(target, minlength=rows).clamp_min(1).unsqueeze(1)
    index = target.unsqueeze(1).expand_as(messages)
    zeros = x.new_zeros(rows, x.shape[1])
    mean = zeros.scatter_add(0, index, messages) / count
    squares = zeros.scatter_add(0, index, messages * messages) / count
    least = zeros.scatter_reduce(0, index, messages, "amin", include_self=False)
    most = zeros.scatter_reduce(0, index, messages, "amax", include_self=False)
    # A small number is added, as the gradient of a square root is infinite at 0.
    deviation = ((squares - mean * mean).relu() + 1e-5).sqrt()
    return torch.cat([mean, least, most, deviation], 1)
