"""What all forwards of a run read: the graph, its features and the tables."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..history.history import History
from ..history.streams import Resource
from ..history.table import Table
from ..ops import Adjacency, gather_rows, history_spmm
from ..sampling.batch import Batch

# How many floating point operations of a matrix product take as long as one byte of rows that are gathered: 5 to 10 on the
# CPUs at hand, more on GPUs. The rule below is not sensitive to it.
OPERATIONS_PER_BYTE = 8


class Features:
    """The features of all nodes: a table that is only read.

    Args:
        rows: [N, D], on the device that computes.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def take(self, batch: Batch) -> Tensor:
        """[R, D]: the rows of a batch."""
        return batch.take(self.rows)

    def gather(self, nodes: Tensor) -> Tensor:
        """[K, D]: the rows of some nodes, int64[K]."""
        return gather_rows(self.rows, nodes)


@dataclass(eq=False)
class Inputs:
    """What does not change from batch to batch.

    Args:
        adj: the normalised adjacency. features: of all nodes. history: the tables.
        edge_dropout: of training forwards. seed: of all dropout.
        first_table: the layer whose input the first table holds. The inputs of earlier layers are exact.
        encodes: whether the model encodes features before its first layer.
    """

    adj: Adjacency
    features: Features
    history: History
    edge_dropout: float = 0.0
    seed: int = 0
    first_table: int = 0
    encodes: bool = True
    statistics: Resource = field(default_factory=lambda: Resource("running statistics"))
    _aggregated: Tensor | None = field(default=None, repr=False)
    _outside: Tensor | None = field(default=None, repr=False)
    _mean_log_degree: Tensor | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        return self.features.rows.device

    @property
    def exact_input(self) -> bool:
        """Whether encoded features of the halo are computed anew, with their gradient, instead of read from a table."""
        return self.encodes and self.first_table > 0

    def number(self, layer: int) -> int | None:
        """The number of the table with the input of a layer, None if it has none."""
        number = layer - self.first_table
        return number if 0 <= number < len(self.history.tables) else None

    def table(self, layer: int) -> Table | None:
        """The table with the input of a layer, None if it has none."""
        number = self.number(layer)
        return None if number is None else self.history.tables[number]

    def aggregated(self) -> Tensor:
        """[N, D]: the aggregate of the features, computed once for the whole graph: nothing in it ever changes."""
        if self._aggregated is None:
            nodes = torch.arange(self.adj.num_nodes, device=self.device)
            self._aggregated = history_spmm(self.adj, nodes, self.outside(), None, self.features.rows)
        return self._aggregated

    def mean_log_degree(self) -> Tensor:
        """The mean over all nodes of ``log(degree + 1)``."""
        if self._mean_log_degree is None:
            self._mean_log_degree = (self.adj.rowptr.diff() + 1).log().mean().clamp_min(1e-6)
        return self._mean_log_degree

    def outside(self) -> Tensor:
        """The position map without a batch: the row of every node is its own row of a table."""
        if self._outside is None:
            self._outside = torch.arange(-1, ~self.adj.num_nodes, -1, dtype=torch.int32, device=self.device)
        return self._outside

    def transforms_first(self, batch: Batch, halo: Tensor, width: int, result: int) -> bool:
        """Whether ``A (h W)`` costs less than ``(A h) W`` for a batch, forward and backward; h is ``width`` wide.

        Transforming first gathers rows of ``result`` columns along the edges instead of ``width``. But the halo's rows are
        then fetched and multiplied, too, twice each.
        """
        edges = len(batch) * self.adj.num_edges / max(1, self.adj.num_nodes)
        saved = 2 * 4 * edges * (width - result)
        spent = halo.numel() * width * (2 * 4 + 4 * result / OPERATIONS_PER_BYTE)
        return saved > spent
