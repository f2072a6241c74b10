"""What a batch of a GCN has to compute by GAS, GraphFM, LMC as coded and with sampled neighbours, from its rows and edges.

A graph is taken to be undirected. ``widths`` are those of features, hidden layers and the result.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

import torch
from torch import Tensor

from rest_triton.ops import Adjacency, history_spmm
from rest_triton.sampling.batch import Batch


@dataclass(frozen=True)
class Work:
    """Numbers of an epoch, forward and backward.

    Args:
        products: multiplications of dense products. edges: values that aggregates read along edges.
        rows: values that are activated, blended or moved by row.
    """

    products: float = 0.0
    edges: float = 0.0
    rows: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Size:
    """The size of a batch and of its halo.

    Args:
        rows, halo: nodes. edges: of the rows. across: those that lead to the halo, as many as lead back.
        within: edges of the halo whose other end is in the batch or the halo. all: edges of the halo.
        transforms_first: whether the last layer multiplies before it aggregates.
    """

    rows: int
    halo: int
    edges: int
    across: int
    within: int
    all: int
    transforms_first: bool = False


def size(adj: Adjacency, batch: Batch) -> Size:
    rows, halo = batch.rows, batch.halo(adj)
    plain = Adjacency(adj.rowptr, adj.col, _checked=True)

    def edges(of: Tensor, *to: Tensor) -> int:
        """The edges of nodes that lead to others."""
        position = torch.arange(-1, ~adj.num_nodes, -1, dtype=torch.int32)
        ends = torch.cat(to)
        position[ends] = torch.arange(len(ends), dtype=torch.int32)
        return int(history_spmm(plain, of, position, torch.ones(len(ends), 1)).double().sum()) if len(of) else 0

    def degrees(of: Tensor) -> int:
        return int((adj.rowptr[of + 1] - adj.rowptr[of]).sum())

    return Size(len(rows), len(halo), degrees(rows), edges(halo, rows), edges(halo, rows, halo), degrees(halo))


def gas(of: Size, widths: Sequence[int]) -> Work:
    """The features' aggregate is computed once for all epochs. The gradient of features is not needed."""
    total, last = Work(), len(widths) - 2
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        product, activated = wide * narrow, 0 if layer == last else 2 * of.rows * narrow
        if layer == 0:
            total += Work(2 * of.rows * product, 0, activated)
        elif layer == last and of.transforms_first:
            total += Work((3 * of.rows + 2 * of.halo) * product, 2 * of.edges * narrow, of.halo * wide)
        else:
            total += Work(3 * of.rows * product, 2 * of.edges * wide, activated)
    return total


def graphfm(of: Size, widths: Sequence[int]) -> Work:
    """GAS, and every layer but the last also forward for the halo, from rows of the batch alone, and written."""
    total = gas(of, widths)
    for wide, narrow in pairwise(widths[:-1]):
        total += Work(of.halo * wide * narrow, of.across * wide, 2 * of.halo * narrow)
    return total


def lmc_coded(of: Size, widths: Sequence[int]) -> Work:
    """Every layer for batch and halo, without gradients of weights for the halo, which is blended with tables."""
    total, last = Work(edges=of.within), len(widths) - 2  # the shares of known neighbours
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        product, activated = wide * narrow, 0 if layer == last else 2 * (of.rows + of.halo) * narrow
        if layer == 0:  # its rows of the halo have no gradient
            blended = of.halo * (wide + narrow)  # and the features of the halo
            total += Work((2 * of.rows + of.halo) * product, of.within * wide, activated + blended - of.halo * narrow)
        else:
            blended = of.halo * narrow * (1 if layer == last else 2)
            edges = 2 * (of.edges + of.within) * wide
            total += Work((3 * of.rows + 2 * of.halo) * product, edges, activated + blended)
    return total


def sampled(rows: int, drawn: int, whole: int, layer: int, widths: Sequence[int]) -> Work:
    """One layer with sampled neighbours.

    Args:
        rows: that it computes. drawn: sampled edges, with gradients. whole: edges of whole neighbourhoods, without.
    """
    wide, narrow = widths[layer : layer + 2]
    activated = 0 if layer == len(widths) - 2 else 2 * rows * narrow
    return Work((2 if layer == 0 else 3) * rows * wide * narrow, (2 * drawn + whole) * wide, activated)


def bound(of: Work, gas: Work, shares: dict[str, float]) -> float:
    """How many times as long as an epoch of GAS it takes, where ``shares`` of that epoch are of each kind."""
    rows = shares["activations"] + shares["others"]
    return (
        shares["products"] * of.products / gas.products
        + shares["aggregates"] * of.edges / gas.edges
        + (rows * of.rows / gas.rows)
    )
