"""What a model sees of the graph while it computes a batch: its rows, and everybody else's history.

A model is written as if it had the whole graph::

    h = view.start(self.mlp)                # what it makes of features alone, and table 0
    for layer in view.layers(3):
        z = view.aggregate(layer, h)        # in-batch rows of h, all others from table `layer`
        h = view.activate(layer + 1, self.lins[layer](z))  # and write-back of the in-batch rows

Whether that is a training step, a refresh or exact inference, and where the tables are, is the view's business.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..history.history import History, Staged
from ..kernels._hash import mix64
from ..ops import activate, backend, column_moments, gather_rows, halo_spmm, history_spmm
from ..sampling.batch import Batch, PositionMaps
from .scene import Scene


class View:
    """One forward of one batch.

    Args:
        batch, position: the rows, and the map in which they are entered.
        maps: where another map can be had for as long as the view lives.
        step: the number that recorded rows are stamped with. draw: tells the dropout of forwards in one step apart.
        training: batch statistics and dropout; else running statistics and none.
        refreshing: nothing is needed but the tables; running statistics stay as they are, and no edges are dropped.
        recording: whether tables are written.
        halo: the neighbours outside of the batch, where they are known; rows of far tables are staged in their order.
        staged: for each table, the halo's rows where they already are on the device.
        keep: buffers on the device that get what is recorded, too, from row ``keep_at`` on.
        watch: is shown what is computed, with a name for it, to find out where something went wrong.
    """

    def __init__(
        self,
        scene: Scene,
        batch: Batch,
        position: Tensor,
        maps: PositionMaps,
        *,
        step: int,
        draw: int = 0,
        training: bool = True,
        refreshing: bool = False,
        recording: bool = True,
        halo: Tensor | None = None,
        staged: list[Staged] | None = None,
        keep: list[Staged] | None = None,
        keep_at: int = 0,
        watch: Callable[[str, Tensor], None] | None = None,
    ) -> None:
        self.scene, self.store, self.streams = scene, scene.store, scene.store.streams
        self.batch, self.position, self.maps = batch, position, maps
        self.step, self.draw, self.training = step, draw, training
        self.refreshing, self.recording = refreshing, recording
        self.staged, self.keep, self.keep_at, self.watch = staged, keep, keep_at, watch
        self.everyone = len(batch) == scene.adj.num_nodes
        self._halo = halo
        self._slots: Tensor | None = None
        self._fresh: Tensor | None = None  # table 0 of the halo, computed instead of read
        self._fetched: dict[int, Staged] = {}
        self._seeds = 0

    def close(self) -> None:
        """Give back what was taken: after backward."""
        if self._slots is not None:
            self.batch.restore_positions(self._slots)
            self._slots[self.halo] = ~self.halo.to(self._slots.dtype)
            self.maps.give_back(self._slots)
            self._slots = None

    @property
    def halo(self) -> Tensor:
        """int64[H]: the neighbours of the batch that are not in it."""
        if self._halo is None:
            nobody = torch.empty(0, dtype=torch.int64, device=self.position.device)
            self._halo = nobody if self.everyone else self.batch.halo(self.scene.adj)
        return self._halo

    def slots(self) -> Tensor:
        """A map in which the halo's rows are numbered as in ``halo``, not by their ids."""
        if self.everyone or not self.store.direct:
            return self.position  # numbered like that already: rows of far tables are staged
        if self._slots is None:
            self._slots = self.maps.take()
            self.batch.write_positions(self._slots)
            self._slots[self.halo] = ~torch.arange(self.halo.numel(), dtype=torch.int32, device=self.position.device)
        return self._slots

    def _where(self, table: int) -> tuple[History, int]:
        """The store and the number in it of a model's table."""
        return self.store, table - int(self.scene.exact_input)

    def layers(self, count: int) -> Iterable[int]:
        """Which of a model's layers are to be computed. For a refresh the last one is not: all tables are written."""
        return range(count - 1 if self.refreshing else count)

    def features(self) -> Tensor:
        """[R, D]: the features of the batch's rows."""
        return self.batch.take(self.scene.x)

    def start(self, first: Callable[["View"], Tensor]) -> Tensor:
        """[R, D]: ``first(view)``, what a model makes of features alone, and table 0.

        ``first`` may ask the view for features, dropout and activations, and not for anything about neighbours. With
        ``exact_input`` it is called once more for the halo's rows, and there is no table.
        """
        seeds = self._seeds
        h = first(self)
        if not self.scene.exact_input:
            self.record(0, h)
        elif not self.everyone:
            outside = Batch(self.batch.num_nodes, nodes=self.halo, device=self.halo.device)
            # As in a refresh: batch statistics of its own rows, which leave no trace in the running ones.
            view = View(
                self.scene, outside, self.position, self.maps, step=self.step, draw=self.draw, training=self.training,
                refreshing=True, recording=False,
            )  # fmt: skip
            view._seeds = seeds  # the same dropout as if all rows were computed in one piece
            self._fresh = first(view)
        return h

    def rows(self, table: int, h: Tensor | None) -> Tensor:
        """[R, D]: the batch's own rows of what the table is made of, for residual connections: h."""
        assert h is not None
        return h

    @property
    def edge_dropout(self) -> float:
        return self.scene.edge_dropout if self.training and not self.refreshing else 0.0

    def _edges(self) -> dict[str, Any]:
        return dict(edge_dropout=self.edge_dropout, seed=self.next_seed() if self.edge_dropout > 0.0 else 0)

    def aggregate(self, table: int, h: Tensor | None, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        """[R, D]: ``(1 - alpha) * A h + alpha * residual``, with the rows of h for nodes in the batch, and of the table for
        all others."""
        assert h is not None
        options = self._edges() | dict(residual=residual, alpha=alpha)
        if table == 0 and self._fresh is not None:
            z = halo_spmm(self.scene.adj, self.batch.rows, self.halo, self.slots(), h, self._fresh, **options)
            return self._saw(f"aggregate of table {table}", z)
        self._refuse_unwritten(table)
        source = self._source(table)
        self._prefetch(table + 1)
        z = self.streams.submit(
            self.streams.current,
            lambda: history_spmm(
                self.scene.adj, self.batch.rows, self.position, h, None if source is None else source.rows, **options
            ),
            reads=[] if source is None else [source.resource],
        )
        return self._saw(f"aggregate of table {table}", z)

    def convolve(self, table: int, h: Tensor | None, weight: Tensor) -> Tensor:
        """[R, C]: ``A h W^T``, whichever way round costs less. weight: W [C, D]. A bias is added by :meth:`activate`."""
        assert h is not None
        narrow, wide = weight.shape
        fresh = table == 0 and self._fresh is not None
        if narrow >= wide or fresh or not self.scene.transforms_first(self.batch, self.halo, wide, narrow):
            return self._saw(f"layer that reads table {table}", F.linear(self.aggregate(table, h), weight))
        self._refuse_unwritten(table)
        source = self._source(table)
        if source is None:
            outside = h.new_empty(0, narrow)
        else:

            def transform() -> Tensor:
                rows = gather_rows(source.rows, self.halo) if self.store.direct else source.rows
                return F.linear(rows.to(h.dtype), weight)

            outside = self.streams.submit(self.streams.current, transform, reads=[source.resource])
        inside = F.linear(h, weight)
        z = halo_spmm(
            self.scene.adj, self.batch.rows, self.halo, self.slots(), inside, outside.to(inside.dtype), **self._edges()
        )
        return self._saw(f"layer that reads table {table}", z)

    def convolve_features(self, weight: Tensor, dropout: float = 0.0) -> Tensor:
        """[R, C]: ``A dropout(x) W^T`` of the features. Without dropout the aggregate is computed once for the graph."""
        dropout = dropout if self.training else 0.0
        if dropout == 0.0:
            return self._saw("first layer", F.linear(self.aggregated_features(), weight))
        seed, adj, rows = self.next_seed(), self.scene.adj, self.batch.rows
        options: dict[str, Any] = dict(relu=False, dropout=dropout, seed=seed)
        inside = activate(self.features(), rows=rows, **options)
        outside = activate(gather_rows(self.scene.x, self.halo), rows=self.halo, **options)
        if self.scene.transforms_first(self.batch, self.halo, inside.shape[1], weight.shape[0]):
            inside, outside = (F.linear(x, weight) for x in (inside, outside))
            z = halo_spmm(adj, rows, self.halo, self.slots(), inside, outside, **self._edges())
            return self._saw("first layer", z)
        z = history_spmm(adj, rows, self.slots(), inside, outside, **self._edges())
        return self._saw("first layer", F.linear(z, weight))

    def aggregated_features(self) -> Tensor:
        """[R, D]: what a first layer that starts with an aggregate gets; computed once for the whole graph."""
        if self.edge_dropout > 0.0:
            return history_spmm(self.scene.adj, self.batch.rows, self.scene.outside(), None, self.scene.x, **self._edges())
        return self.batch.take(self.scene.aggregated())

    def _refuse_unwritten(self, table: int) -> None:
        if backend.debugging() and not self.everyone and self.staged is None:
            store, number = self._where(table)
            store.refuse_unwritten(number, self.halo)

    def _source(self, table: int) -> Staged | None:
        """Where the rows of nodes outside of the batch are read from; None if there are no such nodes."""
        store, number = self._where(table)
        if self.everyone:
            return None
        if self.staged is not None:
            return self.staged[number]
        if store.direct:
            held = store.tables[number]
            return Staged(held.rows, held.resource)
        if number not in self._fetched:
            self._fetched[number] = store.stage(number, self.halo)
        return self._fetched[number]

    def _prefetch(self, table: int) -> None:
        """The next one is fetched while this one is computed. A refresh ends with the last table, and does not read it."""
        store, number = self._where(table)
        if number < len(store.tables) - int(self.refreshing):
            self._source(table)

    def record(self, table: int, h: Tensor) -> None:
        """Write the batch's rows of a table."""
        if not self.recording:
            return
        store, number = self._where(table)
        store.record(number, self.batch, h, self.step)
        if self.keep is not None:
            kept = self.keep[number]
            into = kept.rows[self.keep_at : self.keep_at + len(self.batch)]
            self.streams.submit(self.streams.current, lambda: into.copy_(h.detach()), writes=[kept.resource])

    def dropout(self, h: Tensor, p: float) -> Tensor:
        """h with elements set to zero at random, in training."""
        return h if p == 0.0 or not self.training else self.activate(None, h, relu=False, dropout=p)

    def activate(
        self,
        table: int | None,
        h: Tensor,
        norm: torch.nn.BatchNorm1d | None = None,
        *,
        bias: Tensor | None = None,
        relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:
        """``dropout(relu(norm(h + bias)))``, and what comes before dropout recorded in a table, in one pass.

        Args:
            table: None records nothing. bias: [D]; cheaper here than in the product before, which would take a pass for it.
        """
        scale, shift, moments = self._normalise(norm, h, bias)
        dropout = dropout if self.training else 0.0
        options: dict[str, Any] = dict(
            relu=relu, dropout=dropout, seed=self.next_seed() if dropout > 0 else 0, moments=moments
        )
        rows = self.batch.rows
        if table is None or not self.recording:
            return self._saw("activation", activate(h, scale, shift, rows=rows, **options))
        store, number = self._where(table)
        if store.direct and self.keep is None:
            to = store.tables[number]

            def write() -> Tensor:
                y = activate(h, scale, shift, rows=rows, history=to.rows, **options)
                store.stamped(number, self.batch, self.step)
                return y

            return self._saw(f"table {table}", self.streams.submit(self.streams.current, write, writes=[to.resource]))
        # Far away: the rows are laid down here, in the table's dtype, and leave on a stream of their own.
        before_dropout = torch.empty(h.shape, dtype=store.dtype, device=h.device)
        every = torch.arange(len(self.batch), device=h.device)
        y = activate(h, scale, shift, rows=rows, history=before_dropout, history_rows=every, **options)
        self.record(table, before_dropout)
        return self._saw(f"table {table}", y)

    def _normalise(
        self, norm: torch.nn.BatchNorm1d | None, h: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
        """A bias and a BatchNorm as (scale, shift, moments for its gradient). Where the batch's own mean is taken away, so
        is the bias: it counts in the running mean only, and its gradient is zero."""
        if norm is None:
            return None, bias, None
        assert norm.running_mean is not None and norm.running_var is not None
        if self.training and len(h) > 1:
            mean, var = column_moments(h.detach())
            if not self.refreshing and norm.momentum is not None:
                with torch.no_grad():
                    norm.running_mean.lerp_(mean if bias is None else mean + bias, norm.momentum)
                    norm.running_var.lerp_(var * (len(h) / (len(h) - 1)), norm.momentum)
            moments: tuple[Tensor, Tensor] | None = (mean, var + norm.eps)
        else:
            mean, var, moments = norm.running_mean, norm.running_var, None
            mean = mean if bias is None else mean - bias
        scale = torch.rsqrt(var + norm.eps)
        scale = scale if norm.weight is None else norm.weight * scale
        shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
        return scale, shift, moments

    def _saw(self, what: str, h: Tensor) -> Tensor:
        if self.watch is not None:
            self.watch(what, h)
        return h

    def next_seed(self) -> int:
        """Another one for each use of randomness in this forward, the same in every run."""
        self._seeds += 1
        return mix64(mix64(mix64(self.scene.seed + self.step) + self.draw) + self._seeds) >> 1
