r"""Theorem 1 of the REST paper, in numbers.

The paper bounds the error of a gradient by the staleness of each layer:

.. math:: ‖∇L_θ(h̃^L_v) - ∇L_θ(h^L_v)‖ ≤ ε \sum_{l=1}^L (\prod_{k=l+1}^L α^k β |N(v)| ‖L̃_v‖ ‖h̄^{k-1} - h^{k-1}‖)

Its indices differ between the statement, where all of it stands in the product, and the end of the proof in Appendix A. What
the proof's steps give, and what is computed here, is

.. math:: ε \sum_{l=1}^L (\prod_{k=l+1}^L α^k) β^l |N(v)| ‖L̃_v‖ ‖h̄^{l-1} - h^{l-1}‖

with the terms of layers that read a history only; that a layer's constant has an index is from the proof, too.

    measured    ‖h̄ - h‖ of each table; the gradients; ‖h̃ - h‖ of the results; the spectral norm of each layer's weights with
                BatchNorm's scale (running statistics); |N(v)| and ‖L̃_v‖, the number and the 2-norm of v's weights, self-loop
                included
    bounded     ReLU by 1; the normalised adjacency's spectral norm by 1 for undirected graphs, and by the root of its
                largest row sum times its largest column sum for others; a layer's α and β by the product of these
    estimated   ε, the Lipschitz constant of the gradient as a function of the results: the largest ‖g(stale) - g(fresh)‖ /
                ‖h̃ - h‖ over the batches that were measured. It is the smallest that the theorem's assumption allows for
                them, so that what is left to see is how far the sum is above ‖h̃ - h‖

Norms are over all rows of a batch as one vector. For ‖h̄ - h‖ of neighbours the *paper's form* takes the farthest row of the
batch's halo, without which the inequality would not hold for every v. The *sharp form* leaves out the last two inequalities
of the proof: it has ‖Â (h̄ - h)‖, measured, for |N(v)| ‖L̃_v‖ ‖h̄ - h‖.

The theorem is about staleness alone. That gradients do not flow through nodes outside of a batch is another error, which it
does not speak of: see :class:`rest_triton.training.staleness.GradientError`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..nn import APPNP, GCN, GCNII
from ..nn.layers import norm_of
from ..ops import Adjacency
from ..sampling.batch import Batch


@dataclass(frozen=True)
class Constants:
    """Lipschitz constants of a model. layers: of each layer that reads a table, in order, without its aggregate; tail: of
    what comes after the last; adjacency: of an aggregate."""

    layers: list[float]
    tail: float
    adjacency: float

    def total(self, terms: Sequence[float]) -> float:
        """The sum over layers: each term times its own layer's constant, and those of all layers after it."""
        found = 0.0
        for own, term in zip(self.layers, terms, strict=True):
            found = own * (self.adjacency * found + term)
        return self.tail * found


@torch.no_grad()
def constants(model: Module, adj: Adjacency, *, directed: bool, exact_input: bool = False) -> Constants:
    """Of a GCN, an APPNP or a GCNII without residual connections. exact_input: there is no table for what it starts with."""
    tail, convs = 1.0, list[float]()
    if isinstance(model, GCN) and not model.residual:
        shift = 0 if model.linear else 1
        for layer, conv in list(enumerate(model.convs))[shift:]:
            last = layer == len(model.convs) - 1 and not model.linear
            convs.append(_largest(conv.lin.weight.t(), None if last else norm_of(model.bns, layer)))  # type: ignore[union-attr,operator]
        tail = _largest(model.lins[1].weight.t()) if model.linear else 1.0  # type: ignore[operator]
    elif isinstance(model, APPNP):
        convs = [1 - model.alpha] * model.num_layers
    elif isinstance(model, GCNII) and not model.residual:
        for layer, conv in enumerate(model.convs):
            beta = math.log(model.theta / (layer + 1) + 1)
            weight: Any = conv.weight1
            mixed = (1 - beta) * torch.eye(weight.shape[0], device=weight.device) + beta * weight
            convs.append((1 - model.alpha) * _largest(mixed, norm_of(model.bns, layer)))
        tail = _largest(model.lins[1].weight.t())  # type: ignore[operator]
    else:
        raise ValueError(
            f"the constants of {type(model).__name__} are not known, or not with --residual; study gcn, appnp or gcnii "
            "without it"
        )
    return Constants(convs[1:] if exact_input else convs, tail, _adjacency_norm(adj, directed))


def _largest(weight: Tensor, norm: Any = None) -> float:
    """The spectral norm of ``x -> norm(x weight)``; weight [in, out]."""
    if norm is not None:
        scale = torch.rsqrt(norm.running_var + norm.eps)
        weight = weight * (scale if norm.weight is None else scale * norm.weight)
    return float(torch.linalg.matrix_norm(weight.float(), 2))


def _edge_weights(adj: Adjacency) -> tuple[Tensor, Tensor, Tensor]:
    """(row, column, weight) of every edge."""
    row = torch.repeat_interleave(torch.arange(adj.num_nodes, device=adj.rowptr.device), adj.rowptr.diff())
    col = adj.col.long()
    weight = torch.ones(adj.num_edges, device=row.device)
    for scale, at in ((adj.row_scale, row), (adj.col_scale, col)):
        weight = weight if scale is None else weight * scale[at]
    if adj.edge_weight is not None:
        weight = weight * (adj.edge_weight if adj.edge_id is None else adj.edge_weight[adj.edge_id.long()])
    return row, col, weight


def _adjacency_norm(adj: Adjacency, directed: bool) -> float:
    if not directed:
        return 1.0
    row, col, weight = _edge_weights(adj)
    sums = [torch.zeros(adj.num_nodes, device=row.device).index_add_(0, at, weight.abs()) for at in (row, col)]
    return float(sums[0].max() * sums[1].max()) ** 0.5


@torch.no_grad()
def neighbourhoods(adj: Adjacency) -> Tensor:
    """float32[N]: ``|N(v)| ‖L̃_v‖``."""
    row, _, weight = _edge_weights(adj)
    norms = torch.zeros(adj.num_nodes, device=row.device).index_add_(0, row, weight.square()).sqrt()
    return adj.rowptr.diff() * norms


def sums(
    found: Constants, aggregate: Sequence[float], farthest: Sequence[float], near: Tensor, batch: Batch
) -> tuple[float, float]:
    """(the sharp form's sum, the paper's form's sum), both without ε: bounds of ``‖h̃ - h‖`` of a batch.

    Args:
        aggregate, farthest: see :class:`rest_triton.training.staleness.GradientError`. near: by :func:`neighbourhoods`.
    """
    many = float(batch.take(near).norm())
    return found.total(aggregate), found.total([many * far for far in farthest])
