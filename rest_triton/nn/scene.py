"""What all forwards of a run have in common: the graph, its features, the tables."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..history.history import History
from ..ops import Adjacency, history_spmm
from ..sampling.batch import Batch

# How many floating point operations of a matrix product take as long as one byte of rows that are gathered: 5 to 10 on the
# CPUs at hand, more on GPUs. The rule below is not sensitive to it.
OPERATIONS_PER_BYTE = 8


@dataclass(eq=False)
class Scene:
    """The surroundings of all batches.

    Args:
        adj: the normalised adjacency. x: features [N, D]. store: the tables.
        edge_dropout: of training forwards. seed: of all dropout.
        exact_input: what models make of features alone is computed anew for the halo, with its gradient, instead of being
            read from a table: the store has no table for it.
    """

    adj: Adjacency
    x: Tensor
    store: History
    edge_dropout: float = 0.0
    seed: int = 0
    exact_input: bool = False
    _aggregated: Tensor | None = field(default=None, repr=False)
    _outside: Tensor | None = field(default=None, repr=False)

    def aggregated(self) -> Tensor:
        """[N, D]: the features aggregated once over the whole graph; nothing upstream of them ever changes."""
        if self._aggregated is None:
            everyone = torch.arange(self.adj.num_nodes, device=self.x.device)
            self._aggregated = history_spmm(self.adj, everyone, self.outside(), None, self.x)
        return self._aggregated

    def outside(self) -> Tensor:
        """The position map of no batch at all: every node is read from its own row of a table."""
        if self._outside is None:
            self._outside = torch.arange(-1, ~self.adj.num_nodes, -1, dtype=torch.int32, device=self.x.device)
        return self._outside

    def transforms_first(self, batch: Batch, halo: Tensor, width: int, result: int) -> bool:
        """Whether ``A (h W)`` costs less than ``(A h) W`` for a batch, forward and backward, h being ``width`` wide.

        Transforming first, rows of ``result`` columns are gathered along the edges instead of ``width``; but the halo's rows
        have to be fetched and multiplied, too, twice each.
        """
        edges = len(batch) * self.adj.num_edges / max(1, self.adj.num_nodes)
        saved = 2 * 4 * edges * (width - result)
        spent = halo.numel() * width * (2 * 4 + 4 * result / OPERATIONS_PER_BYTE)
        return saved > spent
