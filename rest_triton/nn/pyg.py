"""PyG's layers with histories: the layer's code runs on the edges into the rows of a batch."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Module

from .context import Context


def edges_of(ctx: Context) -> Tensor:
    """int64 [2, E]: the edges into the rows that a layer computes, as PyG's ``edge_index``.

    Sources are indices of rows of ``ctx.neighbourhood()``, targets are indices of the computed rows.
    """
    adj, rows = ctx.adj, ctx.block.rows.rows
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    target = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), degree)
    first = adj.rowptr[rows] - (degree.cumsum(0) - degree)
    edge = torch.arange(target.numel(), device=rows.device) + first[target]
    edges = torch.stack([ctx.position(joined=True)[adj.col[edge].long()].long(), target])
    return edges[:, edges[0] >= 0] if ctx.batch.closed else edges


class PyGLayer(Module):
    """A PyG ``MessagePassing`` layer inside a :class:`HistoryGNN`.

    Args:
        conv: the layer. It must take ``(x, edge_index)``.

    The layer runs on the edges into the batch's rows. Rows of neighbours outside of the batch come from tables. With the
    same rows, the result equals the layer's result on the whole graph. The model's ``normalise`` must be ``sum``: the edges
    are then those of the graph, without added self-loops. Layers that normalise by the degrees of neighbours are refused,
    because a batch does not have these degrees.

    Example::

        class GAT(HistoryGNN):
            normalise = "sum"

            def __init__(self, dims):
                super().__init__(history_dims=dims[1:-1])
                self.convs = ModuleList(PyGLayer(GATConv(a, b)) for a, b in pairwise(dims))

            def layer(self, layer, ctx):
                h = self.convs[layer](ctx)
                return h if layer == self.num_layers - 1 else ctx.output(h, dropout=0.5)
    """

    def __init__(self, conv: Module) -> None:
        super().__init__()
        name = type(conv).__name__
        if hasattr(sys.modules[type(conv).__module__], "gcn_norm") and getattr(conv, "normalize", True):
            raise ValueError(
                f"{name} normalises by the degrees of neighbours, which a batch does not have; pass normalize=False to it, "
                "or use ctx.propagate(), whose adjacency is normalised"
            )
        parameters = inspect.signature(conv.forward).parameters
        if "edge_index" not in parameters:
            raise ValueError(f"{name}.forward takes {', '.join(parameters)}; PyGLayer passes x and edge_index")
        self.conv = conv
        self.takes_pair = "Tuple" in str(parameters["x"].annotation) if "x" in parameters else False

    def forward(self, ctx: Context, **options: Any) -> Tensor:
        """[R, D]: the layer's output for the computed rows. options: further arguments of its forward."""
        x, edge_index, rows = ctx.neighbourhood(), edges_of(ctx), len(ctx.block.rows)

        def run() -> Tensor:
            with _mode(self.conv, ctx):
                if self.takes_pair:
                    return self.conv((x, x[:rows]), edge_index, **options)
                return self.conv(x, edge_index, **options)[:rows]

        moves = ctx.training and not ctx.refreshing
        return ctx.streams.submit(ctx.streams.current, run, writes=[ctx.inputs.statistics] if moves else [])


@contextmanager
def _mode(conv: Module, ctx: Context) -> Iterator[None]:
    """Set the layer's mode to that of the forward. A refresh does not update running statistics."""
    before = conv.training
    conv.train(ctx.training)
    norms = [m for m in conv.modules() if isinstance(m, BatchNorm1d) and m.track_running_stats and ctx.refreshing]
    own = [(norm.running_mean, norm.running_var) for norm in norms]
    for norm in norms:
        norm.train(not ctx.running)
        if not ctx.running:
            norm.track_running_stats = False
        elif ctx.statistics is not None:  # copies, which training forwards do not update
            norm.running_mean, norm.running_var = ctx.statistics[norm]
    try:
        yield
    finally:
        for norm, (mean, var) in zip(norms, own, strict=True):
            norm.track_running_stats, norm.running_mean, norm.running_var = True, mean, var
        conv.train(before)
