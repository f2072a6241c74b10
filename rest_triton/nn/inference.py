"""Exact inference: computes all nodes, layer by layer, one piece of the nodes after the other.

A layer reads the complete table of its input, so each row is computed once and no row is stale. Besides the tables only
the activations of one piece are in memory. To fill the run's tables, the pass writes into them. Otherwise layers alternate
between two scratch tables in the same place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.features import dense
from ..history.history import History
from ..history.streams import Resource
from ..history.table import Rows, Table
from ..ops import gather_rows, history_spmm
from ..ops.memory import new_rows
from ..sampling.batch import Batch, PositionMaps
from ..sampling.reach import Reach
from .context import Context, Reader
from .inputs import Inputs

if TYPE_CHECKING:
    from .model import HistoryGNN

# Rows of a piece. On a CPU its activations fit the caches; a GPU needs more rows to be busy.
CHUNK_ROWS = {"cpu": 1 << 15, "cuda": 1 << 16}
ENCODE = -1  # the pass before the first layer


class Place(NamedTuple):
    """A table of a history."""

    history: History
    number: int

    @property
    def table(self) -> Table:
        return self.history.tables[self.number]


class LayerwiseContext(Context):
    """The context of one piece of the nodes in one layer. The layer's input is a complete table.

    Args:
        only: the layer, or ENCODE. places: for each layer the table of its input, None for features.
        transformed: tables multiplied by the layer's weight, by layer, for all pieces of the pass.
        filling: the pass fills the run's tables.

    ``fills_inputs``: it fills them with the inputs of layers. Else a subclass writes them, but for encoded features.
    """

    fills_inputs = True

    def __init__(
        self, inputs: Inputs, batch: Batch, maps: PositionMaps, reader: Reader, *, only: int,
        places: Sequence[Place | None], transformed: dict[int, Tensor], filling: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(inputs, batch, maps, reader, training=False, **options)
        self.filling = filling
        self.only, self.places, self.transformed = only, places, transformed
        self.whole_graph = False  # a piece with all nodes reads tables, too
        self.late = False

    def begin(self, model: "HistoryGNN") -> None:
        self.model, self.num_layers = model, model.num_layers
        if self.only == ENCODE:
            self.record(0, model.encode(self._feature_rows(), self))

    def layers(self) -> Iterable[int]:
        return () if self.only == ENCODE else (self.only,)

    def record(self, layer: int, h: Tensor) -> None:
        place = self.places[layer]
        assert place is not None
        place.history.push(place.number, self.batch, h, self.step)

    def _table(self, layer: int) -> Table:
        place = self.places[layer]
        assert place is not None
        return place.table

    @property
    def h(self) -> Tensor:
        return self._h if self._h is not None else self._own_rows(self.layer)

    @property
    def h0(self) -> Tensor:
        return self._own_rows(0)

    def _own_rows(self, layer: int) -> Tensor:
        """float32 [R, D]: the piece's rows of a layer's input."""
        place = self.places[layer]
        if place is None:
            return self._features()
        source = place.history.pull(place.number, self.batch.rows)

        def read() -> Tensor:
            # A view would be read after this work, when the table may be written already.
            rows = self.batch.take(source.rows) if source.in_place else source.rows
            return rows.to(torch.float32, copy=True)

        return self.streams.submit(self.streams.current, read, reads=[source.resource])

    def _halo_input(self) -> Tensor:
        place = self.places[self.layer]
        if place is None:
            return dense(self.inputs.features.gather(self.halo))
        source = place.history.pull(place.number, self.halo)

        def read() -> Tensor:
            return gather_rows(source.rows, self.halo) if source.in_place else source.rows.clone()

        return self.streams.submit(self.streams.current, read, reads=[source.resource]).float()

    def _input(self) -> Tensor:
        return self.h

    def propagate(self, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        place = self.places[self.layer]
        if place is None:
            z = self._propagate_features()
            return z if residual is None else (1 - alpha) * z + alpha * residual
        options: dict[str, Any] = dict(residual=residual, alpha=alpha, dtype=torch.float32)
        if place.table.in_place:
            return self._all_rows(Rows(place.table.rows, place.table.resource), **options)
        rows = len(self.batch)
        source = place.history.pull(place.number, torch.cat([self.batch.rows, self.halo]))
        position = self.position(by_slot=True)
        return self.streams.submit(
            self.streams.current,
            lambda: history_spmm(
                self.inputs.adj, self.batch.rows, position, source.rows[:rows], source.rows[rows:], **options
            ),
            reads=[source.resource],
        )

    def _all_rows(self, source: Rows, **options: Any) -> Tensor:
        """An aggregate that reads all nodes from one table, also those of the piece."""
        return self.streams.submit(
            self.streams.current,
            lambda: history_spmm(self.inputs.adj, self.batch.rows, self.inputs.outside(), None, source.rows, **options),
            reads=[source.resource],
        )

    def propagate_linear(self, weight: Tensor) -> Tensor:
        if self.sparse_input:
            return self._propagate_sparse_linear(weight)
        place = self.places[self.layer]
        if place is None or not place.table.in_place or weight.shape[0] >= weight.shape[1]:
            return F.linear(self.propagate(), weight)
        # Each row is multiplied once for all edges, and narrow rows are gathered.
        table = place.table
        if self.layer not in self.transformed:
            self.transformed[self.layer] = self.streams.submit(
                self.streams.current, lambda: _multiplied(table.rows, weight), reads=[table.resource]
            )
        return self._all_rows(Rows(self.transformed[self.layer], Resource("transformed rows")), dtype=torch.float32)


def _multiplied(rows: Tensor, weight: Tensor) -> Tensor:
    """rows @ weight^T in chunks, so that rows of another dtype are not all converted at once."""
    out = new_rows(rows.shape[0], weight.shape[0], weight.dtype, rows.device)
    size = CHUNK_ROWS.get(rows.device.type, 1 << 15)
    for chunk, into in zip(rows.split(size), out.split(size), strict=True):
        torch.mm(chunk.to(weight.dtype), weight.t(), out=into)
    return out


class Inference:
    """One exact pass.

    Args:
        inputs: of the run. model: in any mode; no dropout is applied. maps: position maps of the current stream.
        record_at: write the run's tables, stamped with this step, instead of scratch tables.
        reach: of the nodes with a result, None for all nodes. Other rows are neither computed nor stored.
        context: the class of a piece's forward.
    """

    def __init__(
        self, inputs: Inputs, model: "HistoryGNN", maps: PositionMaps, reader: Reader, *, record_at: int | None = None,
        reach: Reach | None = None, context: type[LayerwiseContext] = LayerwiseContext,
    ) -> None:  # fmt: skip
        self.inputs, self.model, self.maps, self.reader, self.context = inputs, model, maps, reader, context
        self.step, self.filling, self.reach = record_at or 0, record_at is not None, reach
        self.transformed: dict[int, Tensor] = {}
        self.scratch: History | None = None
        self.places = self._places()

    def _places(self) -> list[Place | None]:
        """For each layer the table of its input.

        Layers alternate between two scratch tables, as a layer reads only the output of the one before. Encoded features
        have a third, as every layer may read them.
        """
        model, history = self.model, self.inputs.history
        missing = 0 if model.encodes else 1
        widths = [None] * missing + model.history_dims
        filled = len(widths) if self.context.fills_inputs else 1
        kept = [self.filling and self.inputs.number(layer) is not None and layer < filled for layer in range(len(widths))]
        scratch = {
            layer: ("encoded" if layer == 0 else str((layer - missing) % 2), width)
            for layer, width in enumerate(widths)
            if width is not None and not kept[layer]
        }
        slots = list(dict.fromkeys(scratch.values()))
        if slots:
            rows, reach = None, self.reach
            if reach is not None:  # of the first layer in a table: it is needed the farthest
                rows = [max(reach.sizes[model.num_layers - at] for at in scratch if scratch[at] == slot) for slot in slots]
            numbers = None if reach is None else reach.numbers
            self.scratch = history.like([width for _, width in slots], torch.float32, rows=rows, numbers=numbers)
        places: list[Place | None] = []
        for layer in range(len(widths)):
            number = self.inputs.number(layer)
            if kept[layer] and number is not None:
                places.append(Place(history, number))
            elif layer in scratch and self.scratch is not None:
                places.append(Place(self.scratch, slots.index(scratch[layer])))
            else:
                places.append(None)
        return places

    def pieces(self, layer: int | None = None) -> Iterator[Batch]:
        """The nodes that a layer computes, in pieces. Default: the last layer.

        Each is made when it is due: a piece's ids would stay and split the memory it has freed.
        """
        n, device, last = self.inputs.adj.num_nodes, self.inputs.device, self.model.num_layers - 1
        size = CHUNK_ROWS.get(device.type, 1 << 15)
        for begin in range(0, n, size):
            end = min(begin + size, n)
            if self.reach is None:
                yield Batch(n, ranges=((begin, end),), device=device)
                continue
            nodes = self.reach.within(begin, end, 0 if layer is None else last - layer)
            if nodes.numel():
                yield Batch(n, nodes=nodes).on(device)

    @torch.no_grad()
    def run(self, use: Callable[[Batch, Tensor], None] = lambda piece, result: None) -> None:
        """Run the pass. use: called with each piece and its result, [R, C] on the model's device. Nothing else keeps it."""
        for layer in range(ENCODE if self.model.encodes else 0, self.model.num_layers - 1):
            self.transformed = {}
            for piece in self.pieces(layer):
                self._piece(piece, layer)
        self.transformed = {}
        for piece in self.pieces():
            use(piece, self.result(piece))

    @torch.no_grad()
    def result(self, batch: Batch) -> Tensor:
        """[R, C]: the result for any batch, once the pass has run: its tables hold the inputs of the last layer."""
        result = self._piece(batch, self.model.num_layers - 1)
        assert result is not None
        return result

    def collect(self) -> Tensor:
        """[N, C]: run the pass and keep the result for all nodes. It is on the host if tables are not in place."""
        found: list[Tensor] = []

        def keep(piece: Batch, result: Tensor) -> None:
            if not found:
                found.append(self._new_result(result))
            assert piece.ranges is not None
            found[0][piece.ranges[0][0] : piece.ranges[0][1]] = result

        self.run(keep)
        if not found:
            raise ValueError("the graph has no nodes; there is nothing to infer")
        return found[0]

    def _new_result(self, first: Tensor) -> Tensor:
        in_place = all(table.in_place for table in self.inputs.history.all_tables)
        device = self.inputs.device if in_place else torch.device("cpu")
        return new_rows(self.inputs.adj.num_nodes, first.shape[1], first.dtype, device)

    def _piece(self, piece: Batch, layer: int) -> Tensor | None:
        ctx = self.context(
            self.inputs,
            piece,
            self.maps,
            self.reader,
            only=layer,
            places=self.places,
            transformed=self.transformed,
            filling=self.filling,
            step=self.step,
        )
        try:
            return self.model(ctx)
        finally:
            ctx.close()

    def embeddings(self, batch: Batch) -> Tensor | None:
        """float32 [R, D]: the input of the last layer for a batch, after a pass; None for a model without tables."""
        place = self.places[-1] if self.places else None
        return None if place is None else place.history.read(place.number, batch.rows)

    def close(self) -> None:
        """Free scratch tables."""
        if self.scratch is not None:
            self.scratch.close()
            self.scratch = None
        self.places, self.transformed = [], {}


@contextmanager
def inference(
    inputs: Inputs, model: "HistoryGNN", maps: PositionMaps, reader: Reader, **options: Any
) -> Iterator[Inference]:
    """An exact pass, with the options of :class:`Inference`. Its scratch tables are freed when the block ends."""
    inference = Inference(inputs, model, maps, reader, **options)
    try:
        yield inference
    finally:
        inference.close()
