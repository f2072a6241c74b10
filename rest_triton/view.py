"""What a model sees of the graph while it computes a batch: its rows, and everybody else's history.

A model is written as if it had the whole graph::

    h = view.features()
    for t, lin in enumerate(self.lins):
        z = view.aggregate(t, h)      # in-batch rows of h, all others from table t
        h = lin(z)
        view.record(t + 1, h)         # write-back of the in-batch rows

Whether that is a training step, a refresh or exact inference, and where the tables are, is the view's business.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .batches import Batch
from .history import HistoryStore, Staged
from .kernels._hash import mix64
from .ops import Adjacency, activate, backend, column_moments, history_spmm


@dataclass(eq=False)
class Scene:
    """What all views of a run have in common.

    Args:
        adj: the normalised adjacency. x: features [N, D]. store: the tables.
        edge_dropout: of training forwards. seed: of all dropout.
    """

    adj: Adjacency
    x: Tensor
    store: HistoryStore
    edge_dropout: float = 0.0
    seed: int = 0
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


class View:
    """One forward of one batch.

    Args:
        batch, position: the rows, and the map in which they are entered.
        step: the number that recorded rows are stamped with. stream: tells the dropout of forwards in one step apart.
        training: batch statistics and dropout; else running statistics and none.
        refreshing: nothing is needed but the tables; running statistics stay as they are, and no edges are dropped.
        recording: whether tables are written.
        staged: for each table, the halo's rows where they already are on the device.
        keep: buffers on the device that get what is recorded, too, from row ``keep_at`` on.
    """

    def __init__(
        self,
        scene: Scene,
        batch: Batch,
        position: Tensor,
        *,
        step: int,
        stream: int = 0,
        training: bool = True,
        refreshing: bool = False,
        recording: bool = True,
        halo: Tensor | None = None,
        staged: list[Staged] | None = None,
        keep: list[Staged] | None = None,
        keep_at: int = 0,
    ) -> None:
        self.scene, self.store, self.lanes = scene, scene.store, scene.store.lanes
        self.batch, self.position = batch, position
        self.step, self.stream, self.training = step, stream, training
        self.refreshing, self.recording = refreshing, recording
        self.halo, self.staged, self.keep, self.keep_at = halo, staged, keep, keep_at
        self._fetched: dict[int, Staged] = {}
        self._seeds = 0

    def features(self) -> Tensor:
        """[R, D]: the features of the batch's rows."""
        return self.batch.take(self.scene.x)

    def aggregated_features(self) -> Tensor:
        """[R, D]: what a first layer that starts with an aggregate gets; computed once for the whole graph."""
        if self.edge_dropout > 0.0:
            return history_spmm(
                self.scene.adj, self.batch.rows, self.scene.outside(), None, self.scene.x,
                edge_dropout=self.edge_dropout, seed=self.next_seed(),
            )  # fmt: skip
        return self.batch.take(self.scene.aggregated())

    @property
    def edge_dropout(self) -> float:
        return self.scene.edge_dropout if self.training and not self.refreshing else 0.0

    def aggregate(self, table: int, h: Tensor, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        """[R, D]: ``(1 - alpha) * A h + alpha * residual``, with the rows of h for nodes in the batch, and of the table for
        all others."""
        if backend.debugging() and len(self.batch) < self.store.num_nodes and self.staged is None:
            self.store.refuse_unwritten(table, self.batch.halo(self.scene.adj))
        source = self._source(table)
        # The next one is fetched while this one is computed. A refresh ends with the last table, and does not read it.
        if table + 1 < len(self.store.tables) - int(self.refreshing):
            self._source(table + 1)
        seed = self.next_seed() if self.edge_dropout > 0.0 else 0
        return self.lanes.submit(
            self.lanes.current,
            lambda: history_spmm(
                self.scene.adj, self.batch.rows, self.position, h, None if source is None else source.rows,
                residual=residual, alpha=alpha, edge_dropout=self.edge_dropout, seed=seed,
            ),
            reads=[] if source is None else [source.guard],
        )  # fmt: skip

    def _source(self, table: int) -> Staged | None:
        """Where the rows of nodes outside of the batch are read from; None if there are no such nodes."""
        if self.staged is not None:
            return self.staged[table]
        if self.store.direct:
            held = self.store.tables[table]
            return Staged(held.rows, held.guard)
        if self.halo is None:
            return None
        if table not in self._fetched:
            self._fetched[table] = self.store.stage(table, self.halo)
        return self._fetched[table]

    def record(self, table: int, h: Tensor) -> None:
        """Write the batch's rows of a table."""
        if not self.recording:
            return
        self.store.record(table, self.batch, h, self.step)
        self._keep_copy(table, h)

    def _keep_copy(self, table: int, h: Tensor) -> None:
        if self.keep is not None:
            kept = self.keep[table]
            into = kept.rows[self.keep_at : self.keep_at + len(self.batch)]
            self.lanes.submit(self.lanes.current, lambda: into.copy_(h.detach()), writes=[kept.guard])

    def activate(
        self,
        table: int | None,
        h: Tensor,
        norm: torch.nn.BatchNorm1d | None = None,
        *,
        relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:
        """``dropout(relu(norm(h)))``, and what comes before dropout recorded in a table, in one pass.

        Args:
            table: None records nothing.
        """
        scale, shift, moments = self._normalise(norm, h)
        dropout = dropout if self.training else 0.0
        options: dict[str, Any] = dict(
            relu=relu, dropout=dropout, seed=self.next_seed() if dropout > 0 else 0, moments=moments
        )
        rows = self.batch.rows
        if table is None or not self.recording:
            return activate(h, scale, shift, rows=rows, **options)
        if self.store.direct and self.keep is None:
            to = self.store.tables[table]

            def write() -> Tensor:
                y = activate(h, scale, shift, rows=rows, history=to.rows, **options)
                self.store.stamped(table, self.batch, self.step)
                return y

            return self.lanes.submit(self.lanes.current, write, writes=[to.guard])
        # Far away: the rows are laid down here, in the table's dtype, and leave on a lane of their own.
        before_dropout = torch.empty(h.shape, dtype=self.store.dtype, device=h.device)
        every = torch.arange(len(self.batch), device=h.device)
        y = activate(h, scale, shift, rows=rows, history=before_dropout, history_rows=every, **options)
        self.record(table, before_dropout)
        return y

    def _normalise(
        self, norm: torch.nn.BatchNorm1d | None, h: Tensor
    ) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
        """A BatchNorm as (scale, shift, moments for its gradient)."""
        if norm is None:
            return None, None, None
        assert norm.running_mean is not None and norm.running_var is not None
        if self.training and len(h) > 1:
            mean, var = column_moments(h.detach())
            if not self.refreshing and norm.momentum is not None:
                with torch.no_grad():
                    norm.running_mean.lerp_(mean, norm.momentum)
                    norm.running_var.lerp_(var * (len(h) / (len(h) - 1)), norm.momentum)
            moments: tuple[Tensor, Tensor] | None = (mean, var + norm.eps)
        else:
            mean, var, moments = norm.running_mean, norm.running_var, None
        scale = torch.rsqrt(var + norm.eps)
        scale = scale if norm.weight is None else norm.weight * scale
        shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
        return scale, shift, moments

    def next_seed(self) -> int:
        """Another one for each use of randomness in this forward, the same in every run."""
        self._seeds += 1
        return mix64(mix64(mix64(self.scene.seed + self.step) + self.stream) + self._seeds) >> 1
