"""Sampled neighbours: the rows that each layer computes, and the edges that it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels._hash import mix64
from ..ops import Adjacency, place_nodes, sample_neighbours, transpose
from .batch import Batch, PositionMaps

Known = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Sample:
    """The sampled neighbours of the rows of a layer.

    An edge of a row with ``degree`` neighbours, ``fanout`` of them sampled, weighs ``degree / fanout`` times what it weighs
    in the graph. So the expectation of an aggregate is that over all neighbours.

    Args:
        adj: the edges. Row i is the i-th row of the layer. Column j is the j-th row of its input; the last ones are those of
            ``outside``.
        by_node: the same edges; a column is a node.
        outside: int64[H], the neighbours whose rows a table has, None without a table.
        partial: int64[P], the rows with neighbours that are not in the sample, ascending.
        slots: int64[H], the rows of ``outside`` in the table, where they are not numbered by node.
    """

    adj: Adjacency
    by_node: Adjacency
    outside: Tensor | None
    partial: Tensor
    slots: Tensor | None = None

    @property
    def places(self) -> Tensor | None:
        """int64[H]: the rows of ``outside`` in the table."""
        return self.outside if self.slots is None else self.slots

    @property
    def complete(self) -> bool:
        """Whether all neighbours of all rows are in the sample."""
        return self.partial.numel() == 0

    @property
    def rows(self) -> Tensor:
        """int64[R]: the rows of ``adj``."""
        return torch.arange(self.adj.num_nodes, device=self.adj.col.device)

    @property
    def row_position(self) -> Tensor:
        """int32[R]: the position map of the rows."""
        return torch.arange(self.adj.num_nodes, dtype=torch.int32, device=self.adj.col.device)

    @property
    def inside(self) -> Tensor:
        """int64[S]: the columns that are rows of the layer's input."""
        known = 0 if self.outside is None else self.outside.numel()
        return torch.arange(self.adj.num_columns - known, device=self.adj.col.device)

    @property
    def position(self) -> Tensor:
        """int32[S]: the position map of ``inside``."""
        return self.inside.int()

    def reading(self, *, in_place: bool) -> Tensor:
        """int32[S + H]: the position map of all columns. in_place: those outside are read from their rows of a table."""
        if self.places is None:
            return self.position
        places = self.places.int() if in_place else torch.arange(self.places.numel(), device=self.places.device).int()
        return torch.cat([self.position, ~places])


def fields(
    adj: Adjacency, targets: Tensor, fanouts: Sequence[int | None], maps: PositionMaps, seed: int, *,
    known: Known | None = None, gradients: bool = True,
) -> Batch:  # fmt: skip
    """A batch in which every layer has the rows that the next one reads.

    Args:
        adj: the graph. targets: int64[T], distinct: the rows of the result.
        fanouts: for each layer the most neighbours of a row; None: the layer reads all neighbours, from where a method of
            whole neighbourhoods reads them.
        maps: of position maps. seed: of the samples; they also depend on layer and row, and on nothing else.
        known: returns whether the rows of nodes in the last layer's input are in a table. These are not computed.
        gradients: whether backward will run.

    Example::

        batch = fields(adj, targets, [10, 10, 5], maps, seed=step)
        counts = batch.counts  # rows of each layer's input, and targets
    """
    position = maps.take()
    nodes, counts, samples = targets, [targets.numel()], list[Sample | None]()
    position[targets] = torch.arange(targets.numel(), dtype=torch.int32, device=targets.device)
    for layer in reversed(range(len(fanouts))):
        fanout, sample = fanouts[layer], None
        if fanout is not None:
            of_layer = known if layer == len(fanouts) - 1 else None
            nodes, sample = _grow(adj, nodes, position, fanout, mix64(mix64(seed) + layer) >> 1, of_layer, gradients)
        counts.insert(0, nodes.numel())
        samples.insert(0, sample)
    position[nodes] = ~nodes.int()
    maps.give_back(position)
    return Batch(adj.num_nodes, nodes=nodes, device=targets.device, counts=tuple(counts), samples=tuple(samples))


def _grow(
    adj: Adjacency, rows: Tensor, position: Tensor, fanout: int, seed: int, known: Known | None, gradients: bool
) -> tuple[Tensor, Sample]:
    """(rows and their sampled neighbours, the sample)."""
    rowptr, edge = sample_neighbours(adj, rows, fanout, seed=seed)
    neighbour = adj.col.index_select(0, edge)  # several times faster than adj.col[edge]
    fresh, col = place_nodes(position, neighbour, rows.numel())
    outside = None
    if known is not None:  # these come last
        kept = known(fresh)
        fresh, outside = fresh[~kept], fresh[kept]
        both = torch.cat([fresh, outside])
        position[both] = torch.arange(rows.numel(), rows.numel() + both.numel(), dtype=torch.int32, device=both.device)
        col = position[neighbour.long()]
        position[outside] = ~outside.int()
    inputs = torch.cat([rows, fresh])
    columns = inputs if outside is None else torch.cat([inputs, outside])
    taken = rowptr.diff()
    degree = adj.rowptr.index_select(0, rows + 1) - adj.rowptr.index_select(0, rows)
    made, by_node = edges_of(
        adj, rows, columns, rowptr, edge, col, row_factor=degree / taken.clamp(min=1), gradients=gradients
    )
    return inputs, Sample(made, by_node, outside, partial=torch.nonzero(degree > taken).squeeze(1))


def edges_of(
    adj: Adjacency, rows: Tensor, columns: Tensor, rowptr: Tensor, edge: Tensor, col: Tensor, *,
    row_factor: Tensor | None = None, column_factor: Tensor | None = None, gradients: bool = True,
) -> tuple[Adjacency, Adjacency]:  # fmt: skip
    """(``adj``, ``by_node``) of a :class:`Sample` with these edges.

    Args:
        adj: the graph. rows, columns: the nodes. rowptr, edge: the edges of each row, as positions in ``adj.col``.
        col: int32[K], their columns. row_factor, column_factor: multiply the weights of the graph.
        gradients: whether backward will run.
    """
    neighbour, weight = adj.col.index_select(0, edge), adj.edge_weight
    if weight is not None:
        weight = weight[edge if adj.edge_id is None else adj.edge_id[edge].long()]
    row_scale = _product(row_factor, None if adj.row_scale is None else adj.row_scale.index_select(0, rows))
    scale = _product(column_factor, None if adj.col_scale is None else adj.col_scale.index_select(0, columns))
    of_node = Adjacency(rowptr, neighbour, row_scale, adj.col_scale, weight, columns=adj.num_nodes, _checked=True)
    reverse = None
    if gradients:
        turned, row = transpose(rowptr, col, columns.numel())
        names = None if weight is None else col.argsort(stable=True)
        reverse = Adjacency(turned, row, scale, row_scale, weight, edge_id=names, columns=rows.numel(), _checked=True)
    made = Adjacency(rowptr, col, row_scale, scale, weight, reverse=reverse, columns=columns.numel(), _checked=True)
    return made, of_node


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    found = b if a is None else a if b is None else a * b
    return None if found is None else found.float()
