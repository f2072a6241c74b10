"""Where a forward of a batch finds rows: its halo, position maps, tables and features; and its randomness."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.features import SparseRows, dense
from ..history.table import Rows
from ..kernels._hash import mix64
from ..ops import activate, backend, halo
from ..sampling.batch import Batch, Block, PositionMaps
from ..sampling.sample import Sample
from .inputs import Inputs


class BatchRows:
    """The rows that one forward of one batch reads. The arguments are those of :class:`Context`.

    partial: the last layer is not computed.
    """

    def __init__(
        self, inputs: Inputs, batch: Batch, maps: PositionMaps, *, step: int, draw: int, training: bool, refreshing: bool,
        partial: bool, pulled: Sequence[Rows | None] | None, probe: Callable[[str, Tensor], None] | None,
    ) -> None:  # fmt: skip
        self.inputs, self.batch, self.maps = inputs, batch, maps
        self.history, self.streams = inputs.history, inputs.history.streams
        self.step, self.draw, self.training, self.refreshing, self.partial = step, draw, training, refreshing, partial
        self.pulled, self.probe = pulled, probe
        self.whole_graph = len(batch) == inputs.adj.num_nodes
        self.layer = -1  # before the first
        self.feature_dropout = 0.0
        self.adj = inputs.adj if batch.adj is None else batch.adj
        self.block = batch.block(-1)
        self._halos: dict[tuple[int, int], Tensor] = {}  # of blocks, by their sizes
        self._readers: Tensor | None = None
        # Position maps, with the rows entered and the halo that is numbered by slots.
        self._taken: dict[tuple[int, int | None, bool], tuple[Batch, Tensor | None, Tensor]] = {}
        self._sources: dict[int, Rows] = {}
        self._seeds = self.last_seed = 0
        self._feature_seed: int | None = None

    def close(self) -> None:
        """Return the position maps, after backward."""
        for entered, outside, position in self._taken.values():
            entered.restore_positions(position)
            if outside is not None:
                position[outside] = ~outside.to(position.dtype)
            self.maps.give_back(position)
        self._taken = {}

    @property
    def sample(self) -> Sample | None:
        """The sampled neighbours of the layer's rows, None if it reads all neighbours."""
        return None if self.batch.samples is None or self.layer < 0 else self.batch.samples[self.layer]

    @property
    def halo(self) -> Tensor:
        """int64[H]: the neighbours of the computed rows that are not rows of the layer's input."""
        return self._halo_of(self.block)

    def _halo_of(self, block: Block) -> Tensor:
        sizes = len(block.rows), len(block.source)
        if sizes not in self._halos:
            nothing = torch.empty(0, dtype=torch.int64, device=self.inputs.device)
            self._halos[sizes] = nothing if self.whole_graph or self.batch.closed else self._around(block)
        return self._halos[sizes]

    def _around(self, block: Block) -> Tensor:
        outside = block.rows.halo(self.adj)
        if not block.narrows:
            return outside
        place = self._entered(self.batch, None)[outside]  # in the batch; its first rows are the block's source
        return outside[(place < 0) | (place >= len(block.source))]

    @property
    def readers(self) -> Tensor:
        """int64[K]: the nodes outside of the batch with a neighbour in it. In an undirected graph they are the halo."""
        reverse = self.adj.reverse
        if reverse is None or reverse.col is self.adj.col:
            return self.halo
        if self._readers is None:
            self._readers = halo(reverse, self.batch.rows)
        return self._readers

    def position(
        self, *, by_slot: bool = False, of_result: bool = False, joined: bool = False, of_readers: bool = False
    ) -> Tensor:
        """int32[N]: the position map of the rows of the layer's input.

        Args:
            by_slot: the halo's rows are numbered as in ``halo``, else by node. joined: they follow the input's rows in x.
            of_result: return the map of the computed rows instead.
            of_readers: by_slot numbers the rows of ``readers`` instead of the halo's.
        """
        entered = self.block.rows if of_result else self.block.source
        outside = None
        if (by_slot or joined) and not self.whole_graph:
            outside = self.readers if of_readers else self.halo
        return self._entered(entered, outside, joined)

    def _entered(self, entered: Batch, outside: Tensor | None, joined: bool = False) -> Tensor:
        """The map with some rows, and with the rows of ``outside`` by slot or, if ``joined``, after them."""
        key = len(entered), None if outside is None else id(outside), joined and outside is not None
        if key not in self._taken:
            position = self.maps.take()
            self._taken[key] = entered, outside, position
            entered.write_positions(position)
            if outside is not None:
                numbers = torch.arange(outside.numel(), dtype=torch.int32, device=position.device)
                position[outside] = numbers + len(entered) if joined else ~numbers
        return self._taken[key][2]

    def source(self, layer: int | None = None) -> Rows | None:
        """The rows of a layer's input for nodes outside of the batch, None without such nodes or a table.

        layer: by default this one.
        """
        layer = self.layer if layer is None else layer
        number = self.inputs.number(layer)
        if self.whole_graph or number is None:
            return None
        if self.pulled is not None and (pulled := self.pulled[number]) is not None:
            return pulled
        if backend.debugging() and number not in self._sources:
            self.history.refuse_unwritten(number, self.halo)
        return self._pull(number, self.batch.block(layer))

    def _pull(self, number: int, block: Block) -> Rows:
        if number not in self._sources:
            table = self.history.tables[number]
            far = None if table.in_place else self._halo_of(block)
            self._sources[number] = Rows(table.rows, table.resource, True) if far is None else self.history.pull(number, far)
        return self._sources[number]

    def _prefetch(self) -> None:
        """Fetch the next layer's rows while this layer computes. A refresh does not read the last table."""
        number = self.inputs.number(self.layer + 1)
        if number is not None and not self.whole_graph and self.pulled is None:
            if number < len(self.history.tables) - int(self.partial):
                self._pull(number, self.batch.block(self.layer + 1))

    def _features(self) -> Tensor:
        """[S, F]: the features of the rows of the layer's input, with dropout in training. Sparse ones are made dense."""
        return dense(self._feature_rows())

    def _feature_rows(self) -> Tensor | SparseRows:
        """[S, F]: the same as they are kept."""
        batch = self.block.source if self.layer >= 0 else self.block.rows
        return self._drop_features(self.inputs.features.take(batch), batch.rows)

    def _halo_feature_rows(self) -> Tensor | SparseRows:
        """[H, F]: the features of the halo, with dropout in training."""
        return self._drop_features(self.inputs.features.gather(self.halo), self.halo)

    def _drop_features(self, x: Tensor | SparseRows, rows: Tensor) -> Tensor | SparseRows:
        if self.feature_dropout == 0.0 or not self.training:
            return x
        if self._feature_seed is None:
            self._feature_seed = self.next_seed()
        if isinstance(x, SparseRows):
            return x.dropout(rows, self.feature_dropout, self._feature_seed)
        dropped = activate(x, rows=rows, relu=False, dropout=self.feature_dropout, seed=self._feature_seed)
        return self._probed("dropout of features", dropped)

    @property
    def edge_dropout(self) -> float:
        return self.inputs.edge_dropout if self.training and not self.refreshing else 0.0

    def edges(self) -> dict[str, Any]:
        """The options of an aggregate for edge dropout."""
        return dict(edge_dropout=self.edge_dropout, seed=self.next_seed() if self.edge_dropout > 0.0 else 0)

    def next_seed(self) -> int:
        """A new seed for each use of randomness in this forward, equal in every run."""
        self._seeds += 1
        self.last_seed = mix64(mix64(mix64(self.inputs.seed + self.step) + self.draw) + self._seeds) >> 1
        return self.last_seed

    def _probed(self, what: str, h: Tensor) -> Tensor:
        if self.probe is not None:
            self.probe(f"{what} of layer {self.layer}", h)
        return h
