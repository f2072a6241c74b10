"""The context of a forward: a model's access to the rows of a batch and of its neighbours.

A model's code does not depend on the batch: ``ctx.h`` is the layer's input for the batch's rows, and ``ctx.propagate()``
aggregates it over all neighbours. The context reads neighbours' rows from the batch or from a table, or recomputes them.
The training method decides how they are read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d

from ..data.features import SparseRows, dense
from ..history.table import Rows
from ..ops import activate, gather_rows, halo_spmm, history_spmm
from ..sampling.batch import Batch, PositionMaps
from ..sampling.sample import Sample
from ..utils.errors import UserError
from . import norm as norms
from .inputs import Inputs
from .rows import BatchRows

if TYPE_CHECKING:
    from .model import HistoryGNN


class Reader(Protocol):
    """The part of a training method that a forward calls to read neighbours.

    ``halo_gradient``: whether weights have a gradient through rows of the halo that the forward computes.
    """

    @property
    def halo_gradient(self) -> bool: ...

    def aggregate(self, ctx: "Context", **mix: Any) -> Tensor:
        """[R, D]: ``(1 - alpha) * A h + alpha * residual``."""

    def transforms_first(self, ctx: "Context", width: int, result: int) -> bool:
        """Whether a layer multiplies by its weight before it aggregates."""

    @property
    def keeps_inputs(self) -> bool:
        """Whether :meth:`after_layer` reads the input of the layer."""

    @property
    def records_late(self) -> bool:
        """Whether rows are recorded by :meth:`after_forward` instead of where they are computed."""

    def after_forward(self, ctx: "Context") -> None:
        """Called when all layers are computed."""

    def after_layer(self, ctx: "Context") -> None:
        """Called when a layer's output is recorded, before the next layer reads its neighbours."""


class Context(BatchRows):
    """One forward of one batch.

    Args:
        batch: the rows to compute. maps: position maps of the current stream. reader: the training method.
        step: the stamp of recorded rows. draw: distinguishes the dropout of forwards in one step.
        training: batch statistics and dropout; else running statistics and no dropout. running: running ones in any case.
        refreshing: write tables only: leave out the last layer, running statistics and edge dropout.
        complete: a refresh computes the last layer, too. Backward then goes as far as ``differentiable``.
        recording: whether tables are written.
        pulled: for each table the halo's rows, where they are on the device already.
        copies: for each table a buffer, into which recorded rows are copied from row ``copies_at`` on.
        statistics: copies of running statistics to use instead of the model's.
        probe: called with a name and each computed result.
    """

    def __init__(
        self,
        inputs: Inputs,
        batch: Batch,
        maps: PositionMaps,
        reader: Reader,
        *,
        step: int,
        draw: int = 0,
        training: bool = True,
        running: bool = False,
        refreshing: bool = False,
        complete: bool = False,
        recording: bool = True,
        pulled: Sequence[Rows | None] | None = None,
        copies: Sequence[Rows | None] | None = None,
        copies_at: int = 0,
        statistics: norms.Statistics | None = None,
        probe: Callable[[str, Tensor], None] | None = None,
    ) -> None:
        super().__init__(
            inputs, batch, maps, step=step, draw=draw, training=training, refreshing=refreshing,
            partial=refreshing and not complete, pulled=pulled, probe=probe,
        )  # fmt: skip
        self.reader, self.recording, self.complete = reader, recording, complete
        self.differentiable: Tensor | None = None  # with complete: the input of the first layer that has a gradient
        self.copies, self.copies_at, self.statistics = copies, copies_at, statistics
        self.running = running or not training
        self.model: HistoryGNN | None = None  # set by begin()
        self.num_layers = 0
        self._h: Tensor | None = None
        self._h0: Tensor | None = None
        self.kept: dict[str, Tensor] = {}  # for the reader, until the forward ends
        self._of_halo: Context | None = None  # by first_of_halo()
        self.normalised: list[tuple[norms.Moments, bool]] = []  # what each BatchNorm used, and whether it is the batch's
        self.given: Iterator[tuple[norms.Moments, bool]] | None = None  # to normalise by, in the forward of a halo
        self._recorded = False
        self.late = reader.records_late
        self.unrecorded: list[tuple[int, Batch, Tensor]] = []  # (layer, rows, its input), if rows are recorded late
        # (probability, seed) of the dropout of the layer's input and output
        self._input_dropout: tuple[float, int] = (0.0, 0)
        self._output_dropout: tuple[float, int] = (0.0, 0)

    def close(self) -> None:
        """Return the position maps and release all rows, after backward."""
        super().close()
        if self._of_halo is not None:
            self._of_halo.close()
        # Hooks of a method may hold this context, and its tensors hold the hooks: autograd's part of that cycle is invisible
        # to Python's garbage collector.
        self._h = self._h0 = self._of_halo = self.differentiable = self.given = None
        self.kept, self._sources, self.unrecorded = {}, {}, []

    # The steps of HistoryGNN.forward.

    def begin(self, model: "HistoryGNN") -> None:
        """Encode features if the model does so, and record them for neighbours."""
        self.model, self.num_layers, self.feature_dropout = model, model.num_layers, model.feature_dropout
        if not model.encodes:
            return
        h = self._h0 = model.encode(self._feature_rows(), self)
        self.record(0, h)
        self._h = self.dropout(h, model.encoded_dropout)
        self._input_dropout = model.encoded_dropout, self.last_seed

    def layers(self) -> Iterable[int]:
        """The layers to compute. A refresh leaves the last one out, as no table holds its output."""
        return range(self.num_layers - 1 if self.partial else self.num_layers)

    def enter(self, layer: int) -> None:
        """Begin a layer."""
        self.layer, self._recorded, self.block = layer, False, self.batch.block(layer)
        if self.complete and self.differentiable is None and self._h is not None and self._h.requires_grad:
            self.differentiable = self._h

    def leave(self, h: Tensor) -> None:
        """End a layer: record its output, unless it is recorded, and make it the next layer's input."""
        if not self._recorded and self.layer + 1 < self.num_layers:
            self.record(self.layer + 1, h)
        self.reader.after_layer(self)
        self._h = h
        self._input_dropout, self._output_dropout = self._output_dropout, (0.0, 0)

    def result(self, model: "HistoryGNN") -> Tensor | None:
        """The model's result, None if the last layer was left out."""
        self.reader.after_forward(self)
        return model.decode(self.h) if self.layer == self.num_layers - 1 else None

    # For layers.

    @property
    def h(self) -> Tensor:
        """[R, D]: the layer's input for the rows that it computes."""
        return self._own(self._features() if self._h is None else self._h)

    def _own(self, h: Tensor) -> Tensor:
        return h[: len(self.block.rows)] if len(h) > len(self.block.rows) else h

    def _input(self) -> Tensor:
        """[S, D]: the layer's input for all rows of the block's source."""
        return self._features() if self._h is None else self._h

    @property
    def h0(self) -> Tensor:
        """[R, D]: the encoded features of the rows that the layer computes, before dropout."""
        assert self._h0 is not None, "the model does not encode features: it has no h0"
        return self._own(self._h0)

    def release(self) -> None:
        """Free the layer's input. Call it after the last use: in a full batch the input is as large as a table."""
        if not self.reader.keeps_inputs:
            self._h = None

    def propagate(self, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        """[R, D]: the layer's input aggregated over all neighbours, ``(1 - alpha) * A h + alpha * residual``."""
        if self.layer == 0 and not self.inputs.encodes:
            z = self._propagate_features()
            return z if residual is None else (1 - alpha) * z + alpha * residual
        return self._probed("aggregate", self.reader.aggregate(self, residual=residual, alpha=alpha))

    def propagate_linear(self, weight: Tensor) -> Tensor:
        """[R, C]: ``A h W^T`` for W [C, D], in the cheaper order. Pass a bias to :meth:`output` instead."""
        narrow, wide = weight.shape
        if self.layer == 0 and not self.inputs.encodes:
            return self._probed("first layer", self._propagate_features_linear(weight))
        possible = narrow < wide and not self.block.narrows and self.sample is None
        first = possible and self.reader.transforms_first(self, wide, narrow)
        z = self._transformed_first(weight) if first else F.linear(self.propagate(), weight)
        return self._probed("layer", z)

    @property
    def sparse_input(self) -> bool:
        """Whether the layer's input is sparse features. ``ctx.h`` and ``ctx.propagate()`` make them dense."""
        return self.layer == 0 and self.inputs.features.sparse and not self.inputs.encodes

    def linear(self, x: Tensor | SparseRows, weight: Tensor) -> Tensor:
        """[R, C]: ``x W^T`` for W [C, D], where x may be the features of :meth:`HistoryGNN.encode`."""
        return x.linear(weight) if isinstance(x, SparseRows) else F.linear(x, weight)

    def input_linear(self, weight: Tensor) -> Tensor:
        """[R, C]: ``h W^T`` for W [C, D]."""
        if not self.sparse_input:
            return F.linear(self.h, weight)
        return self._own(self.linear(self._feature_rows(), weight))

    def neighbourhood_linear(self, weight: Tensor) -> Tensor:
        """[S + H, C]: the rows of :meth:`neighbourhood` times ``W^T``, for W [C, D]."""
        if not self.sparse_input:
            return F.linear(self.neighbourhood(), weight)
        self._refuse_neighbourhood()
        return self._sparse_neighbourhood_linear(weight)

    def output(
        self, h: Tensor, norm: BatchNorm1d | None = None, *, bias: Tensor | None = None, relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """``dropout(relu(norm(h + bias)))`` as the output of a layer. The same pass records it before dropout."""
        self._recorded = True
        last = self.layer + 1 == self.num_layers
        y = self._activate(None if last else self.layer + 1, h, norm, bias, relu, dropout)
        self._output_dropout = dropout, self.last_seed  # which the dropout of y has just drawn, if there is one
        return y

    def activate(
        self, h: Tensor, norm: BatchNorm1d | None = None, *, bias: Tensor | None = None, relu: bool = True,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """``dropout(relu(norm(h + bias)))`` in one pass. Adding a bias here is cheaper than in the product before."""
        return self._activate(None, h, norm, bias, relu, dropout)

    def dropout(self, h: Tensor, p: float) -> Tensor:
        """h with dropout, in training."""
        return h if p == 0.0 or not self.training else self.activate(h, relu=False, dropout=p)

    def record(self, layer: int, h: Tensor) -> None:
        """Write the batch's rows of a layer's input into its table."""
        number = self.inputs.number(layer)
        if not self.recording or number is None:
            return
        if self.late:
            self.unrecorded.append((layer, self.block.rows, h.detach()))
        else:
            self._write(number, self.block.rows, h)

    def record_all(self) -> None:
        """Write the rows that were to be recorded late."""
        for layer, rows, h in self.unrecorded:
            number = self.inputs.number(layer)
            assert number is not None
            self._write(number, rows, h)
        self.unrecorded = []

    def _write(self, number: int, rows: Batch, h: Tensor) -> None:
        self.history.push(number, rows, h, self.step)
        if self.copies is not None and (kept := self.copies[number]) is not None:
            into = kept.rows[self.copies_at : self.copies_at + len(rows)]
            self.streams.submit(self.streams.current, lambda: into.copy_(h.detach()), writes=[kept.resource])

    # Places of rows.

    @property
    def _halo_rows(self) -> Tensor | None:
        """The halo's rows of the layer's input, with dropout, if this forward computes them."""
        computed = self.first_of_halo() if self.layer == self.inputs.recomputed else None
        return None if computed is None else computed._h

    def first_of_halo(self) -> "Context | None":
        """A forward of the halo that ends with its first embedding, ``h``; None if that is read from a table.

        Its dropout is that of the batch, by the same hash of node and column. Its BatchNorms use the statistics that those
        of the batch have used, as constants. Rows of a halo move no statistics.
        """
        layer, batch = self.inputs.recomputed, self.batch
        if layer is None or layer >= self.num_layers or self.whole_graph or batch.closed:
            return None
        if batch.samples is not None and batch.samples[layer] is not None:
            return None
        if self._of_halo is None:
            assert self.model is not None
            nodes = self._halo_of(batch.block(layer))
            self._of_halo = of_halo = Context(
                self.inputs, Batch(batch.num_nodes, nodes=nodes, device=nodes.device), self.maps, self.reader,
                step=self.step, draw=self.draw, training=self.training, refreshing=self.refreshing, recording=False,
            )  # fmt: skip
            of_halo.given = iter(self.normalised)
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.reader.halo_gradient):
                of_halo.begin(self.model)
                if not self.inputs.encodes:
                    of_halo.enter(0)
                    of_halo._h = self.model.layer(0, of_halo)
        return self._of_halo

    def neighbourhood(self) -> Tensor:
        """[S + H, D]: the layer's input for all rows of the block's source, then for the halo."""
        h = self._input()
        self._refuse_neighbourhood()
        if self.whole_graph or self.halo.numel() == 0:
            return h
        return torch.cat([h, self._drop_halo(self._halo_input().to(h.dtype))])

    def _refuse_neighbourhood(self) -> None:
        if self.given is not None:
            raise UserError(
                "the first layer reads features of neighbours by ctx.neighbourhood(), and first is exact: those of a halo "
                "are two edges away; give --first cached, or a first layer that propagates"
            )
        if torch.is_grad_enabled() and not self.reader.halo_gradient:
            raise UserError(
                f"the model reads neighbours by ctx.neighbourhood(), and {type(self.reader).__name__.lower()} has gradients "
                "of ctx.propagate() alone; give --method gas, or a model that propagates"
            )
        if self.batch.counts is not None and self.batch.samples is None:
            raise UserError(
                "the model reads neighbours by ctx.neighbourhood(), and trim is on, which leaves out rows of some layers; "
                "give --no-trim, or a model that propagates"
            )
        if self.batch.samples is not None or self.adj.edge_weight is not None:
            raise UserError(
                f"the model reads neighbours by ctx.neighbourhood(), and {type(self.reader).__name__.lower()} samples those "
                "of ctx.propagate() alone; give --method gas, or a model that propagates"
            )

    def _halo_input(self) -> Tensor:
        """[H, D]: the layer's input for the halo."""
        if self._halo_rows is not None:
            return self._halo_rows
        source = self.source()
        if source is None:
            return dense(self._halo_feature_rows())

        def rows() -> Tensor:
            # Rows are copied: a buffer may be filled again before backward has read them.
            return gather_rows(source.rows, self.halo) if source.in_place else source.rows.clone()

        return self.streams.submit(self.streams.current, rows, reads=[source.resource])

    @property
    def _drops_halo(self) -> bool:
        """Whether a table's rows have dropout: that of the layer's input, with the same hash of node and column."""
        wanted = self.inputs.history_dropout and self.training and self._input_dropout[0] > 0.0
        return wanted and self._halo_rows is None

    def _drop_halo(self, rows: Tensor) -> Tensor:
        p, seed = self._input_dropout
        return activate(rows, rows=self.halo, relu=False, dropout=p, seed=seed) if self._drops_halo else rows

    def aggregate(
        self, x: Tensor | None = None, *, residual: Tensor | None = None, alpha: float = 0.0,
        gradients: Rows | None = None, **options: Any,
    ) -> Tensor:  # fmt: skip
        """:meth:`propagate` with histories: rows outside of the batch come from the table.

        Args:
            x: instead of the layer's input. gradients: historical gradients of the result, which backward reads.
            options: further arguments of :func:`history_spmm`.
        """
        options = self.edges() | dict(residual=residual, alpha=alpha) | options
        if self.sample is not None:
            return self._aggregate_sample(self.sample, self._input() if x is None else x, **options)
        reads = [] if gradients is None else [gradients.resource]
        if gradients is not None:
            options |= dict(grad_history=gradients.rows)
        adj, rows, h = self.adj, self.block.rows.rows, self._input() if x is None else x
        self._prefetch()
        computed = self._halo_rows
        if computed is not None and self.block.narrows:
            options |= dict(x_rows=torch.cat([self.block.source.rows, self.halo]))
            options |= dict(row_position=self.position(of_result=True))
            x = torch.cat([h, computed.to(h.dtype)])
            return history_spmm(adj, rows, self.position(joined=True), x, None, **options)
        if computed is not None:
            position = self.position(by_slot=True)
            if computed.requires_grad:
                return halo_spmm(adj, rows, self.halo, position, h, computed, **options)
            return self.streams.submit(
                self.streams.current, lambda: history_spmm(adj, rows, position, h, computed, **options), reads=reads
            )
        if self.block.narrows:
            options |= dict(x_rows=self.block.source.rows, row_position=self.position(of_result=True))
        source = self.source()
        position = self.position(by_slot=source is not None and (self._drops_halo or not source.in_place))
        table = None if source is None else source.rows
        if source is not None and self._drops_halo:
            table = self._drop_halo(self._halo_input().to(h.dtype))
        return self.streams.submit(
            self.streams.current,
            lambda: history_spmm(adj, rows, position, h, table, **options),
            reads=reads if source is None else [source.resource, *reads],
        )

    def _aggregate_sample(self, sample: Sample, x: Tensor, **options: Any) -> Tensor:
        """An aggregate over sampled neighbours: rows of the layer's input, and those that the sample has outside."""
        options |= dict(x_rows=sample.inside, row_position=sample.row_position)
        if sample.places is None:
            return history_spmm(sample.adj, sample.rows, sample.position, x, None, **options)
        number = self.inputs.number(self.layer)
        assert number is not None
        source = self.history.pull(number, sample.places)
        position = sample.reading(in_place=source.in_place)
        return self.streams.submit(
            self.streams.current,
            lambda: history_spmm(sample.adj, sample.rows, position, x, source.rows, **options),
            reads=[source.resource],
        )

    def _transformed_first(self, weight: Tensor) -> Tensor:
        """``A (h W^T)``. The halo's rows are multiplied, too."""
        source, h = self.source(), self._input()
        if (computed := self._halo_rows) is not None:
            outside = F.linear(computed, weight)
        elif source is None:
            outside = h.new_empty(0, weight.shape[0])
        else:

            def transform() -> Tensor:
                rows = gather_rows(source.rows, self.halo) if source.in_place else source.rows
                return F.linear(self._drop_halo(rows.to(h.dtype)), weight)

            outside = self.streams.submit(self.streams.current, transform, reads=[source.resource])
        inside = F.linear(h, weight)
        return self._aggregate_both(inside, outside.to(inside.dtype))

    def _aggregate_both(self, inside: Tensor, outside: Tensor) -> Tensor:
        """An aggregate of the batch's rows and of rows of the halo, both with gradients."""
        rows = self.block.rows.rows
        if self.batch.closed:
            return history_spmm(self.adj, rows, self.position(), inside, None, **self.edges())
        position = self.position(by_slot=True)
        return halo_spmm(self.adj, rows, self.halo, position, inside, outside, **self.edges())

    # Features.

    def _propagate_features(self) -> Tensor:
        """[R, F]: the aggregate of the features. Of dense ones without dropout it is computed once for the whole graph."""
        inputs, rows = self.inputs, self.block.rows.rows
        if self.batch.closed:
            return history_spmm(self.adj, rows, self.position(), self._features(), None, **self.edges())
        own_edges = self.edge_dropout > 0.0 or self.batch.adj is not None
        far = own_edges and not inputs.features.in_place
        if inputs.features.sparse or (self.feature_dropout > 0.0 and self.training) or far:
            inside, outside = self._features(), dense(self._halo_feature_rows())
            return history_spmm(self.adj, rows, self.position(by_slot=True), inside, outside, **self.edges())
        if own_edges:
            return history_spmm(self.adj, rows, inputs.outside(), None, dense(inputs.features.rows), **self.edges())
        return dense(inputs.aggregated().take(self.block.rows))

    def _propagate_features_linear(self, weight: Tensor) -> Tensor:
        inputs, wide = self.inputs, self.inputs.features.width
        if inputs.features.sparse:
            return self._propagate_sparse_linear(weight)
        if self.feature_dropout == 0.0 or not self.training:
            return F.linear(self._propagate_features(), weight)
        if self.block.narrows or not inputs.transforms_first(self.batch, self.halo, wide, weight.shape[0]):
            return F.linear(self._propagate_features(), weight)
        inside, outside = self._features(), dense(self._halo_feature_rows())
        return self._aggregate_both(F.linear(inside, weight), F.linear(outside, weight))

    def _propagate_sparse_linear(self, weight: Tensor) -> Tensor:
        """``A (x W^T)`` of sparse features. ``A x`` has the nonzeros of all neighbours of a row, so it is never formed."""
        x, source = self._sparse_neighbourhood_linear(weight), self.block.source.rows
        return history_spmm(
            self.adj, self.block.rows.rows, self.position(joined=True), x, x_rows=torch.cat([source, self.halo]),
            row_position=self.position(of_result=True), **self.edges(),
        )  # fmt: skip

    def _sparse_neighbourhood_linear(self, weight: Tensor) -> Tensor:
        """[S + H, C]: sparse features of the rows of the block's source, then of the halo, times ``W^T``."""
        inside = self.linear(self._feature_rows(), weight)
        if self.whole_graph or self.halo.numel() == 0:
            return inside
        return torch.cat([inside, self.linear(self._halo_feature_rows(), weight)])

    # Activations.

    def _activate(
        self, layer: int | None, h: Tensor, norm: BatchNorm1d | None, bias: Tensor | None, relu: bool, dropout: float
    ) -> Tensor:
        scale, shift, moments = self._normalise(norm, h, bias)
        dropout = dropout if self.training else 0.0
        options: dict[str, Any] = dict(
            relu=relu, dropout=dropout, seed=self.next_seed() if dropout > 0 else 0, moments=moments
        )
        batch = self.block.rows
        rows = batch.rows
        table = self._table(layer) if layer is not None and self.recording else None
        if table is None or layer is None:
            return self._probed("activation", activate(h, scale, shift, rows=rows, **options))
        if table.in_place and self.copies is None and not self.late:

            def write() -> Tensor:
                y = activate(h, scale, shift, rows=rows, history=table.rows, **options)
                table.mark_written(batch, self.step)
                return y

            y = self.streams.submit(self.streams.current, write, writes=[table.resource])
            return self._probed("activation", y)
        # The op cannot write this table: it writes a buffer in the table's dtype, which is then pushed.
        before_dropout = torch.empty(h.shape, dtype=table.rows.dtype, device=h.device)
        each = torch.arange(len(batch), device=h.device)
        y = activate(h, scale, shift, rows=rows, history=before_dropout, history_rows=each, **options)
        self.record(layer, before_dropout)
        return self._probed("activation", y)

    def _table(self, layer: int) -> Any:
        return self.inputs.table(layer)

    def _normalise(
        self, norm: BatchNorm1d | None, h: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, norms.Moments | None]:
        """A bias and a BatchNorm as (scale, shift, moments for the gradient)."""
        if norm is None:
            return None, bias, None
        if self.given is not None:  # a halo is normalised as its batch
            used, of_batch = next(self.given)
            return *norms.scale_and_shift(norm, used, bias, of_batch=of_batch)[:2], None
        if self.running or len(h) < 2:  # one row has no variance
            running = norms.running(norm) if self.statistics is None else self.statistics[norm]
            self.normalised.append((running, False))
            return norms.scale_and_shift(norm, running, bias, of_batch=False)
        moments = norms.batch_moments(h)
        self.normalised.append((moments, True))
        if not self.refreshing:
            self.streams.submit(
                self.streams.current,
                lambda: norms.track(norm, moments, len(h), bias),
                writes=[self.inputs.statistics],
            )
        return norms.scale_and_shift(norm, moments, bias, of_batch=True)
