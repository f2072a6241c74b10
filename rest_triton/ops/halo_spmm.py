"""halo_spmm: history_spmm with differentiable rows of the halo."""

from typing import Any

import torch
from torch import Tensor

from .adjacency import Adjacency
from .spmm import history_spmm


def halo_spmm(
    adj: Adjacency,
    rows: Tensor,
    halo: Tensor,
    position: Tensor,
    x: Tensor,
    halo_x: Tensor,
    *,
    residual: Tensor | None = None,
    alpha: float = 0.0,
    edge_dropout: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """:func:`history_spmm` with ``halo_x`` as history and a gradient for it: the same op on the reverse graph.

    Args:
        rows: int64[R], the batch. halo: int64[H], all neighbours outside of it.
        position: int32[N]; ``position[rows[i]] = i`` and ``position[halo[j]] = ~j``, until backward has run.
        x: [R, D]; halo_x: [H, D]; both differentiable.

    The others are those of :func:`history_spmm`. Returns: [R, D].

    Example::

        outside = batch.halo(adj)
        z = halo_spmm(adj, batch.rows, outside, position, lin(x[batch.rows]), lin(x[outside]))
    """
    out = history_spmm(
        adj, rows, position, x, halo_x.detach(), residual=residual, alpha=alpha, edge_dropout=edge_dropout, seed=seed
    )
    if not (halo_x.requires_grad and torch.is_grad_enabled()):
        return out
    if adj.reverse is None:
        raise ValueError(
            "halo_x requires a gradient but adj has no reverse; use adj.undirected() if every edge is there both ways, "
            "else adj.with_reverse()"
        )
    scale = 1.0 if residual is None else 1.0 - alpha
    return _ToHalo.apply(out, halo_x, adj.reverse, halo, position, scale, edge_dropout, seed)


class _ToHalo(torch.autograd.Function):
    """Identity of the result. Its backward also aggregates the gradient over the reversed edges, for the halo."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, halo_x: Tensor, reverse: Adjacency, halo: Tensor, position: Tensor, scale: float,
        edge_dropout: float, seed: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(halo, position)
        ctx.options = reverse, scale, edge_dropout, seed
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        halo, position = ctx.saved_tensors
        reverse, scale, edge_dropout, seed = ctx.options
        to_halo = history_spmm(reverse, halo, position, grad.contiguous(), None, edge_dropout=edge_dropout, seed=seed)
        return grad, to_halo if scale == 1.0 else scale * to_halo, None, None, None, None, None, None
