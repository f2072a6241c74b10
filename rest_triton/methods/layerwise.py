"""FastGCN (Chen et al., 2018) and LADIES (Zou et al., 2019): each layer reads nodes that are sampled for all its rows."""

from abc import abstractmethod

import torch
from torch import Tensor

from ..kernels._hash import mix64
from ..ops import Adjacency, edges_inside
from ..sampling.batch import Batch
from ..sampling.sample import Sample, edges_of
from .engine import Engine
from .sage import SAGE

PART = 1 << 16  # rows whose edges are listed at a time
LAYERS = 0x1AD1  # makes these draws differ from those of other methods


class Layerwise(SAGE):
    """``layer_nodes`` draws of nodes for each layer, with replacement and probabilities q.

    An aggregate sums over the drawn neighbours, each weighted by ``1 / (layer_nodes q)`` for every time it was drawn. So its
    expectation is that over all neighbours. With ``row_normalise`` the weights of a row are divided by their sum.
    """

    @abstractmethod
    def probabilities(self, adj: Adjacency, rows: Tensor) -> Tensor:
        """float64 [N]: q, up to a factor, for a layer that computes ``rows``."""

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        adj, layers = engine.inputs.adj, engine.model.num_layers
        exact = not engine.model.encodes or engine.inputs.exact_input
        seed = mix64(mix64(self.config.seed + LAYERS) + step)
        maps = engine.maps[engine.streams.current]
        position = maps.take()
        nodes, counts, samples = batch.rows, [len(batch)], list[Sample | None]()
        for layer in reversed(range(layers)):
            sample = None
            if layer > 0 or not exact:
                nodes, sample = self._layer(adj, nodes, position, mix64(seed + layer) >> 1)
            counts.insert(0, nodes.numel())
            samples.insert(0, sample)
        maps.give_back(position)
        return Batch(adj.num_nodes, nodes=nodes, device=nodes.device, counts=tuple(counts), samples=tuple(samples))

    def _layer(self, adj: Adjacency, rows: Tensor, position: Tensor, seed: int) -> tuple[Tensor, Sample]:
        """(rows and the drawn nodes, the sample)."""
        cumulated = self.probabilities(adj, rows).cumsum(0)
        size, generator = self.config.layer_nodes, torch.Generator().manual_seed(seed)
        drawn = torch.rand(size, generator=generator, dtype=torch.float64).to(cumulated.device) * cumulated[-1]
        found = torch.searchsorted(cumulated, drawn, right=True).clamp(max=adj.num_nodes - 1)
        chosen, times = found.unique(return_counts=True)
        q = cumulated.diff(prepend=cumulated.new_zeros(1))[chosen] / cumulated[-1]
        columns = torch.cat([rows, chosen[~torch.isin(chosen, rows)]])
        position[columns] = torch.arange(columns.numel(), dtype=torch.int32, device=columns.device)
        places = position[chosen]
        position[rows] = ~rows.int()  # rows that were not drawn are not read
        position[chosen] = places
        rowptr, edge = edges_inside(adj, rows, position)
        col = position[adj.col[edge].long()]
        position[columns] = ~columns.int()
        factor = torch.zeros(columns.numel(), device=columns.device)
        factor[places.long()] = (times / (size * q)).float()
        row_factor = self._row_factor(adj, rows, columns, rowptr, col, factor) if self.config.row_normalise else None
        made, by_node = edges_of(adj, rows, columns, rowptr, edge, col, row_factor=row_factor, column_factor=factor)
        return columns, Sample(made, by_node, None, partial=torch.arange(rows.numel(), device=rows.device))

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

    _columns: Tensor | None = None

    def probabilities(self, adj: Adjacency, rows: Tensor) -> Tensor:
        if self._columns is None:
            self._columns = column_weight(adj, torch.arange(adj.num_nodes, device=rows.device))
        return self._columns


class LADIES(Layerwise):
    """q is the squared norm of a node's column in the rows that the layer computes."""

    def probabilities(self, adj: Adjacency, rows: Tensor) -> Tensor:
        return column_weight(adj, rows)


def column_weight(adj: Adjacency, rows: Tensor) -> Tensor:
    """float64 [N]: for each node the sum over ``rows`` of its squared weights."""
    squared = torch.ones(len(rows)) if adj.row_scale is None else adj.row_scale[rows].square()
    begin, end = adj.rowptr[rows], adj.rowptr[rows + 1]
    found = torch.zeros(adj.num_columns, dtype=torch.float64, device=rows.device)
    for part in torch.arange(len(rows), device=rows.device).split(PART):
        edge = _edges(begin[part], end[part])
        value = torch.repeat_interleave(squared[part].double(), end[part] - begin[part])
        found.index_add_(0, adj.col[edge].long(), value)
    return found if adj.col_scale is None else found * adj.col_scale.double().square()


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
