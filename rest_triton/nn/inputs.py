"""The inputs of all forwards of a run: the graph, its features and the tables."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..data.features import PIECE_ROWS, dense
from ..history.constant import Storage
from ..history.history import History
from ..history.streams import Resource
from ..history.table import Table
from ..ops import Adjacency, history_spmm
from ..sampling.batch import Batch
from .features import Features

# The floating point operations of a matrix product that take as long as one gathered byte of rows: 5 to 10 on the measured
# CPUs, more on GPUs. The rule below is not sensitive to it.
OPERATIONS_PER_BYTE = 8


@dataclass(eq=False)
class Inputs:
    """The inputs that are the same for all batches.

    Args:
        adj: the normalised adjacency. features: of all nodes. history: the tables.
        edge_dropout: of training forwards. seed: of all dropout.
        history_dropout: whether rows of a halo have the dropout of the batch's rows, in training.
        first_table: the layer with its input in the first table. The inputs of earlier layers are exact.
        encodes: whether the model encodes features before its first layer.
        storage: of the features' aggregate.
        exact_first: whether forwards compute the halo's rows of the first embedding instead of reading a table: encoded
            features, or the output of the first layer.
    """

    adj: Adjacency
    features: Features
    history: History
    edge_dropout: float = 0.0
    seed: int = 0
    history_dropout: bool = False
    first_table: int = 0
    encodes: bool = True
    exact_first: bool = False
    storage: Storage = field(default_factory=Storage)
    statistics: Resource = field(default_factory=lambda: Resource("running statistics"))
    _aggregated: Features | None = field(default=None, repr=False)
    _outside: Tensor | None = field(default=None, repr=False)
    _mean_log_degree: Tensor | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        return self.adj.rowptr.device

    @property
    def recomputed(self) -> int | None:
        """The layer with its input computed for the halo, too; None if it has a table."""
        return int(not self.encodes) if self.exact_first else None

    def number(self, layer: int) -> int | None:
        """The number of the table with the input of a layer, None if it has none."""
        number = layer - self.first_table
        return number if 0 <= number < len(self.history.tables) else None

    def table(self, layer: int) -> Table | None:
        """The table with the input of a layer, None if it has none."""
        number = self.number(layer)
        return None if number is None else self.history.tables[number]

    def aggregated(self) -> Features:
        """The aggregate of dense features, [N, D], computed once for the whole graph."""
        if self._aggregated is None:
            shape = self.adj.num_nodes, self.features.width
            made = self.storage.table(f"aggregated-{self.storage.name}", shape, self._aggregates(), self.device)
            self._aggregated = Features(made, self.device)
        return self._aggregated

    def _aggregates(self) -> Iterator[Tensor]:
        """The rows of the aggregate, in pieces. Features that are not in place are fetched, with those of neighbours."""
        n, x, position = self.adj.num_nodes, self.features, self.outside()
        rows = dense(x.rows) if x.in_place else None
        for begin in range(0, n, PIECE_ROWS):
            batch = Batch(n, ranges=((begin, min(begin + PIECE_ROWS, n)),), device=self.device)
            if rows is not None:
                yield history_spmm(self.adj, batch.rows, position, None, rows)
                continue
            own, halo = position.clone(), batch.halo(self.adj)
            batch.write_positions(own)
            own[halo] = ~torch.arange(halo.numel(), dtype=torch.int32, device=self.device)
            yield history_spmm(self.adj, batch.rows, own, dense(x.take(batch)), dense(x.gather(halo)))

    def mean_log_degree(self) -> Tensor:
        """The mean over all nodes of ``log(degree + 1)``, isolated nodes counted as of degree 1."""
        if self._mean_log_degree is None:
            self._mean_log_degree = (self.adj.rowptr.diff().clamp_min(1) + 1).log().mean()
        return self._mean_log_degree

    def outside(self) -> Tensor:
        """The position map without a batch: every node is read from its row of a table."""
        if self._outside is None:
            self._outside = torch.arange(-1, ~self.adj.num_nodes, -1, dtype=torch.int32, device=self.device)
        return self._outside

    def transforms_first(self, batch: Batch, halo: Tensor, width: int, result: int) -> bool:
        """Whether ``A (h W)`` costs less than ``(A h) W`` for a batch, forward and backward; h is ``width`` wide.

        Transforming first gathers rows of ``result`` columns along the edges instead of ``width``. But it also fetches and
        multiplies the halo's rows, twice each.
        """
        edges = len(batch) * self.adj.num_edges / max(1, self.adj.num_nodes)
        saved = 2 * 4 * edges * (width - result)
        spent = halo.numel() * width * (2 * 4 + 4 * result / OPERATIONS_PER_BYTE)
        return saved > spent
