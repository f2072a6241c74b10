"""FastGCN (Chen et al., 2018) and LADIES (Zou et al., 2019): each layer reads nodes that are sampled for all its rows."""

from abc import abstractmethod

import torch
from torch import Tensor

from ...kernels._hash import mix64
from ...ops import Adjacency, edges_inside
from ...sampling.batch import Batch
from ...sampling.sample import Sample, edges_of
from ..engine import Engine
from .sage import SAGE

PART = 1 << 16  # rows whose edges are listed at a time
LAYERS = 0x1AD1  # makes these draws differ from those of other methods


class Layerwise(SAGE):
    """``layer_nodes`` draws of nodes for each layer, with replacement and probabilities q.

    An aggregate sums over the drawn neighbours, each weighted by ``1 / (layer_nodes q)`` for every time it was drawn. So its
    expectation is that over all neighbours. With ``row_normalise`` the weights of a row are divided by their sum.
    """

    @abstractmethod
    def draw(self, adj: Adjacency, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(the drawn nodes, distinct; how often each was drawn; float64 q of each) for a layer that computes ``rows``.

        uniform: float64, for each draw a number from 0 to 1, not 1.
        """

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        adj, layers = engine.inputs.adj, engine.model.num_layers
        exact = self.first_table(engine.model)
        seed = mix64(mix64(self.config.seed + LAYERS) + step)
        maps = engine.maps[engine.streams.current]
        position = maps.take()
        nodes, counts, samples = batch.rows, [len(batch)], list[Sample | None]()
        for layer in reversed(range(layers)):
            sample = None
            if layer >= exact:
                nodes, sample = self._layer(adj, nodes, position, mix64(seed + layer) >> 1)
            counts.insert(0, nodes.numel())
            samples.insert(0, sample)
        maps.give_back(position)
        return Batch(adj.num_nodes, nodes=nodes, device=nodes.device, counts=tuple(counts), samples=tuple(samples))

    def _layer(self, adj: Adjacency, rows: Tensor, position: Tensor, seed: int) -> tuple[Tensor, Sample]:
        """(rows and the drawn nodes, the sample)."""
        size, device = self.config.layer_nodes, rows.device
        uniform = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        chosen, times, q = self.draw(adj, rows, uniform.to(device))
        position[rows] = torch.arange(rows.numel(), dtype=torch.int32, device=device)
        columns = torch.cat([rows, chosen[position[chosen] < 0]])
        position[columns] = torch.arange(columns.numel(), dtype=torch.int32, device=device)
        places = position[chosen]
        position[rows] = ~rows.int()  # rows that were not drawn are not read
        position[chosen] = places
        rowptr, edge = edges_inside(adj, rows, position)
        col = position[adj.col[edge].long()]
        position[columns] = ~columns.int()
        factor = torch.zeros(columns.numel(), device=device)
        factor[places.long()] = (times / (size * q)).float()
        row_factor = self._row_factor(adj, rows, columns, rowptr, col, factor) if self.config.row_normalise else None
        made, by_node = edges_of(adj, rows, columns, rowptr, edge, col, row_factor=row_factor, column_factor=factor)
        return columns, Sample(made, by_node, None, partial=torch.arange(rows.numel(), device=device))

    def _row_factor(
        self, adj: Adjacency, rows: Tensor, columns: Tensor, rowptr: Tensor, col: Tensor, factor: Tensor
    ) -> Tensor:
        """What makes the weights of each row add up to those of all its neighbours; 0 for rows without an edge."""
        scale = torch.ones(adj.num_columns, device=rows.device) if adj.col_scale is None else adj.col_scale
        every = _sums(adj.rowptr[rows], adj.rowptr[rows + 1], adj.col, scale)
        sampled = _sums(rowptr[:-1], rowptr[1:], col, scale[columns] * factor)
        return torch.where(sampled > 0, every / sampled, 0.0)


class FastGCN(Layerwise):
    """q is the squared norm of a node's column of A, the same for all layers and batches."""

    _cumulated: Tensor | None = None

    def draw(self, adj: Adjacency, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._cumulated is None:
            self._cumulated = column_weight(adj).cumsum(0)
        chosen, times = _drawn(self._cumulated, uniform).unique(return_counts=True)
        before = torch.where(chosen > 0, self._cumulated[chosen - 1], 0.0)
        return chosen, times, (self._cumulated[chosen] - before) / self._cumulated[-1:]


class LADIES(Layerwise):
    """q is the squared norm of a node's column in the rows that the layer computes.

    It is the column of an edge of these rows that is drawn by its squared weight.
    """

    def draw(self, adj: Adjacency, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edge, weight = _weights(adj, rows)
        column, cumulated = adj.col[edge], weight.cumsum(0)
        chosen, times = column[_drawn(cumulated, uniform)].unique(return_counts=True)
        place = torch.searchsorted(chosen, column)
        found = chosen[place.clamp(max=len(chosen) - 1)] == column
        q = torch.zeros(len(chosen), dtype=torch.float64, device=rows.device).index_add_(0, place[found], weight[found])
        return chosen.long(), times, q / cumulated[-1:]


def _drawn(cumulated: Tensor, uniform: Tensor) -> Tensor:
    """int64: the index that each number of 0 to 1 draws. There are none if all weights are 0."""
    if cumulated.numel() == 0 or float(cumulated[-1]) == 0.0:
        return uniform.new_empty(0, dtype=torch.int64)
    return torch.searchsorted(cumulated, uniform * cumulated[-1], right=True)


def column_weight(adj: Adjacency) -> Tensor:
    """float64 [N]: the sum of the squared weights of each column of A."""
    nodes = torch.arange(adj.num_nodes, device=adj.col.device)
    found = torch.zeros(adj.num_columns, dtype=torch.float64, device=nodes.device)
    for part in nodes.split(PART):
        edge, weight = _weights(adj, part)
        found.index_add_(0, adj.col[edge].long(), weight)
    return found


def _weights(adj: Adjacency, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(int64[K], the edges of rows; float64 [K], their squared weights)."""
    begin, end = adj.rowptr[rows], adj.rowptr[rows + 1]
    edge = _edges(begin, end)
    weight = torch.ones(edge.numel(), dtype=torch.float64, device=rows.device)
    if adj.row_scale is not None:
        weight *= torch.repeat_interleave(adj.row_scale[rows].double(), end - begin)
    if adj.col_scale is not None:
        weight *= adj.col_scale[adj.col[edge].long()].double()
    return edge, weight.square_()


def _edges(begin: Tensor, end: Tensor) -> Tensor:
    """int64[K]: ``begin[0] .. end[0], begin[1] .. end[1], …``."""
    count = end - begin
    first = torch.repeat_interleave(begin - (count.cumsum(0) - count), count)
    return first + torch.arange(first.numel(), device=first.device)


def _sums(begin: Tensor, end: Tensor, col: Tensor, value: Tensor) -> Tensor:
    """float32 [R]: for each row the sum of ``value`` over its columns."""
    edge = _edges(begin, end)
    row = torch.repeat_interleave(torch.arange(len(begin), device=begin.device), end - begin)
    return torch.zeros(len(begin), device=begin.device).index_add_(0, row, value[col[edge].long()])
