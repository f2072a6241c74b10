"""LMC's training of a GCN as its authors code it, out of plain torch parts: what epochs of ``lmc-coded`` are compared with.

The subgraph of a batch and its halo is cut out and relabelled, without the edges that leave it. Every layer computes all its
rows; rows of the halo are blended with those of a table, and in backward their gradients with those of another one.

Where torch knows a faster way to the same result, it is taken:

- Cuts and shares of known neighbours are vectorised, without a thread with a hash map. Features are copied once.
- The subgraph of an undirected graph is its own transpose.
- All rows of the halo are blended, without a list of those that need it; values and gradients are blended in place.
- Rows with and without a gradient for the weights share a product.
- Gradients are scaled at the weights, not at each layer's rows. The first layer has no table of gradients: nothing reads it.

The result is that of :mod:`rest_triton.methods.lmc_coded`. Its docstring says where it differs from the authors' code. Their
BatchNorm for arxiv is over batch and halo together: ``joint_norm``, which is also faster.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.data.graph import Graph
from rest_triton.methods.coded_context import SCORES
from rest_triton.sampling.batch import Batch

from . import pygas_models
from .pygas import Bipartite, PyGAS, Subgraph, Subgraphs, push


@dataclass
class Neighbourhood(Subgraph):
    """A subgraph of batch and halo: also ``adj``, ``y`` and ``train`` have rows of both.

    Args:
        share: float32[H, 1], for each row of the halo the share of its neighbours that are in the subgraph.
        rows: how many are of the batch; they come first.
    """

    share: Tensor
    rows: int


class Neighbourhoods(Subgraphs):
    """Cuts batches with their halos out of an undirected graph."""

    def __init__(self, graph: Graph) -> None:
        assert not graph.directed
        super().__init__(graph)
        self.known = torch.zeros(graph.num_nodes, dtype=torch.bool)  # False again after each cut

    def cut(self, batch: Batch, product: str) -> Neighbourhood:
        own = super().cut(batch, product)
        halo, rows = own.halo, len(batch)
        for begin, end in own.ranges:
            self.known[begin:end] = True
        self.known.index_fill_(0, halo, True)
        rowptr, edge = self.edges_of(halo)
        col = torch.take(self.col, edge)
        kept = torch.take(self.known, col)
        for begin, end in own.ranges:
            self.known[begin:end] = False
        self.known.index_fill_(0, halo, False)

        ends = torch.take(F.pad(kept.cumsum(0, dtype=torch.int32), (1, 0)), rowptr)
        outside = torch.take(self.local, col[kept])
        adj = Bipartite(
            torch.cat([own.adj.rowptr, ends[1:] + own.adj.col.numel()]),
            torch.cat([own.adj.col, outside]),
            torch.cat([own.adj.value, torch.take(self.value, edge[kept])]),
            rows + halo.numel(),
            product,
            symmetric=True,
        )
        return Neighbourhood(
            ranges=own.ranges,
            halo=halo,
            adj=adj,
            x=own.x,
            y=torch.cat([own.y, self.y.index_select(0, halo)]),
            train=torch.cat([own.train, self.train_mask.index_select(0, halo)]),
            share=(ends.diff() / rowptr.diff()).unsqueeze(1),
            rows=rows,
        )


class GCN(pygas_models.GCN):
    """The arguments are those of PyGAS's GCN. Weights have gradients from rows of the batch alone.

    ``joint_norm``: BatchNorm normalises batch and halo together, and has gradients from both; else each by its own moments.
    """

    joint_norm = False

    def forward(self, x: Tensor, adj: Bipartite, blend: Any, rows: int = 0) -> Tensor:
        if self.drop_input:
            x = F.dropout(x, self.dropout, self.training)
        conv: Any
        for layer, conv in enumerate(self.convs):
            h: Tensor = blend(layer, _Linear.apply(adj @ x, conv.lin.weight, rows), conv.bias)
            if layer < len(self.widths):
                h = self.activate(layer, h) if self.joint_norm or not self.training else self._activate_apart(layer, h, rows)
                x = F.dropout(h, self.dropout, self.training)
        return h

    def _activate_apart(self, layer: int, h: Tensor, rows: int) -> Tensor:
        if not self.batch_norm:
            return h.relu_()
        bn: Any = self.bns[layer]
        outside, scale, shift = h[rows:], bn.weight.detach(), bn.bias.detach()
        if outside.shape[0] > 1:
            outside = F.batch_norm(outside, None, None, scale, shift, True, eps=bn.eps)
        else:  # one row has no variance
            outside = F.batch_norm(outside, bn.running_mean, bn.running_var, scale, shift, False, eps=bn.eps)
        return torch.cat([bn(h[:rows]), outside]).relu_()


class _Linear(torch.autograd.Function):
    """``z W^T``. W has a gradient from the first rows alone."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(z, weight)
        ctx.rows = rows
        return z @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None]:
        z, weight = ctx.saved_tensors
        (grad,) = grads
        of_z = grad @ weight if ctx.needs_input_grad[0] else None
        return of_z, grad[: ctx.rows].t() @ z[: ctx.rows], None


class _Blend(torch.autograd.Function):
    """Blends u with a table, pushes its rows of the batch, and adds a bias: all in place. Backward blends and pushes, too.

    last: the bias is added first, for the table of results.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, bias: Tensor, table: Tensor, past: Tensor | None, beta: Tensor | float, last: bool,
        subgraph: Neighbourhood,
    ) -> Tensor:  # fmt: skip
        ctx.past, ctx.beta, ctx.subgraph = past, beta, subgraph
        ctx.mark_dirty(u)
        if last:
            u.add_(bias)
        _mix(u, table, beta, subgraph)
        return u if last else u.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()  # of an activation or a loss: nothing else reads it
        if ctx.past is not None:
            _mix(grad, ctx.past, ctx.beta, ctx.subgraph)
        return grad, grad[: ctx.subgraph.rows].sum(0), None, None, None, None, None


def _mix(rows: Tensor, table: Tensor, beta: Tensor | float, subgraph: Neighbourhood) -> None:
    """The batch's rows go into the table; those of the halo become ``(1 - beta)`` parts of the table's."""
    halo = rows[subgraph.rows :]
    torch.lerp(table.index_select(0, subgraph.halo), halo, beta, out=halo)
    push(table, subgraph.ranges, rows)


class LMC(PyGAS):
    """Trains a :class:`GCN` of this module.

    Args:
        beta, score: of the blend. fixed: batches are drawn and cut once, as the authors' ``merge_cluster``.
        graph, others: those of :class:`PyGAS`.

    ``histories`` hold rows before bias and activation, the last one results; ``gradients`` hold the gradients of these rows,
    without the first and the last layer's.
    """

    cuts = Neighbourhoods

    def __init__(
        self, graph: Graph, *arguments: Any, beta: float = 0.9, score: str = "linear", fixed: bool = False, **others: Any
    ) -> None:
        super().__init__(graph, *arguments, **others)
        assert graph.train_mask is not None and graph.num_classes is not None
        self.beta, self.score = beta, SCORES[score]
        self.gradients = [torch.zeros_like(table) for table in self.histories[1:]]
        self.histories.append(torch.zeros(graph.num_nodes, graph.num_classes))
        self.training_nodes = int(graph.train_mask.sum())
        self.fixed = [self.subgraph(batch) for batch in self.batches.epoch(0)] if fixed else []

    def logits(self, subgraph: Subgraph) -> Tensor:
        """[R + H, classes]; the tables are read and written on the way."""
        assert isinstance(subgraph, Neighbourhood)
        # Without training all rows of the halo are those of the tables.
        beta: Tensor | float = 0.0
        if self.model.training:
            beta = torch.where(subgraph.share == 1, 1.0, self.beta * self.score(subgraph.share))

        def blend(layer: int, u: Tensor, bias: Tensor) -> Tensor:
            past = self.gradients[layer - 1] if 0 < layer <= len(self.gradients) else None
            last = layer == len(self.histories) - 1
            blended: Tensor = _Blend.apply(u, bias, self.histories[layer], past, beta, last, subgraph)
            return blended

        found: Tensor = self.model(subgraph.x, subgraph.adj, blend, subgraph.rows)
        return found

    def epoch(self, number: int) -> list[float]:
        if not self.fixed:
            return super().epoch(number)
        self.model.train()
        order = torch.randperm(len(self.fixed), generator=torch.Generator().manual_seed(number)).tolist()
        return [self.step(self.fixed[at]) for at in order]

    def step(self, subgraph: Subgraph) -> float:
        """The loss of the batch's rows; the gradient is also that of the halo's."""
        assert isinstance(subgraph, Neighbourhood)
        self.optimizer.zero_grad()
        each = F.cross_entropy(self.logits(subgraph)[subgraph.train], subgraph.y[subgraph.train], reduction="none")
        each.sum().div(self.training_nodes).backward()
        batches = len(self.batches)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(batches)
        self.optimizer.step()
        own = int(subgraph.train[: subgraph.rows].sum())
        return each.detach()[:own].sum().item() * batches / self.training_nodes
