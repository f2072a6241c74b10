"""The edges of rows whose other end has a place: torch's own passes, in which each edge takes 40 bytes, by arithmetic.

They run once per batch, beside aggregates that read whole rows per edge.
"""

import torch
from torch import Tensor


def edges_inside(rowptr: Tensor, col: Tensor, rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """(rowptr, edge) of the edges of ``rows`` to nodes with a place. Its size depends on the data: the host waits."""
    first = rowptr[rows]
    degree = rowptr[rows + 1] - first
    starts = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    edge = torch.repeat_interleave(first - starts[:-1], degree)
    edge += torch.arange(edge.numel(), device=edge.device)
    kept = (position.index_select(0, col.index_select(0, edge)) >= 0).nonzero().view(-1)
    return torch.searchsorted(kept, starts), edge.index_select(0, kept)
