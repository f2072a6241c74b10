"""Batches: the rows of a step, and the position maps by which ops find a node's embedding.

A batch is a list of row ids; no subgraph is built. Entering a batch writes the ids into a position map.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from ..kernels._hash import mix64
from ..ops import Adjacency, check, gather_rows, halo

if TYPE_CHECKING:
    from .sample import Sample

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes that are computed together.

    Args:
        num_nodes: of the whole graph.
        ranges: the nodes as ranges of ids, ascending and disjoint, or None for a list of ids.
        nodes: int64[R], distinct: the ids, where the nodes are not ranges.
        clusters: the numbers of the batch's clusters.
        device: of ``rows``.
        found: the halo, where :meth:`with_halo` has computed it.
        counts: the number of rows of each layer's input and of the result, where they differ. Each layer's rows are the
            first of ``nodes``, so the targets come first. None: all rows in every layer.
        adj: the batch's adjacency, where it is not the graph's: a sampled or renormalised one, with the same nodes.
        samples: for each layer the sampled neighbours of its rows; None in a layer that reads all. See :func:`fields`.
        closed: edges that leave the batch do not count.
        weight: float32[R], the weight of each row's loss. The loss is then the weighted sum instead of the mean.

    :class:`ClusterBatches` and :func:`node_batch` make batches.
    """

    num_nodes: int
    ranges: tuple[tuple[int, int], ...] | None = None
    nodes: Tensor | None = None
    clusters: tuple[int, ...] = ()
    device: torch.device = CPU
    found: Tensor | None = None
    counts: tuple[int, ...] | None = None
    adj: Adjacency | None = None
    samples: "tuple[Sample | None, ...] | None" = None
    closed: bool = False
    weight: Tensor | None = None

    def __len__(self) -> int:
        if self.ranges is not None:
            return sum(end - begin for begin, end in self.ranges)
        assert self.nodes is not None
        return self.nodes.numel()

    @cached_property
    def rows(self) -> Tensor:
        """int64[R], the ids of the rows, in the order of their embeddings in x."""
        if self.ranges is None:
            assert self.nodes is not None
            return self.nodes
        rows = torch.empty(len(self), dtype=torch.int64, device=self.device)
        for at, begin, end in self._places():
            torch.arange(begin, end, out=rows[at : at + end - begin])
        return rows

    def block(self, layer: int) -> "Block":
        """The rows of a layer, counted from 0. Layer -1 encodes features."""
        if self.counts is None:
            return Block(self, self)
        return Block(self._first(self.counts[layer + 1]), self._first(self.counts[max(layer, 0)]))

    def _first(self, count: int) -> "Batch":
        if count == len(self):
            return replace(self, counts=None, samples=None)
        assert self.nodes is not None, "rows that differ from layer to layer are listed by id"
        return Batch(self.num_nodes, nodes=self.nodes[:count], device=self.device, adj=self.adj)

    def on(self, device: torch.device | str) -> "Batch":
        """The same batch with its rows on another device."""
        device = torch.device(device)
        if device == self.device:
            return self
        nodes, found, weight = (
            None if t is None else t.to(device, non_blocking=True) for t in (self.nodes, self.found, self.weight)
        )
        return replace(self, nodes=nodes, device=device, found=found, weight=weight)

    def halo(self, adj: Adjacency) -> Tensor:
        """int64[H]: the neighbours of the batch that are not in it, distinct and ascending."""
        return halo(adj, self.rows) if self.found is None else self.found

    def with_halo(self, adj: Adjacency) -> "Batch":
        """The same batch with its halo computed. On a GPU the host waits for its size, so call it before a step."""
        return replace(self, found=self.halo(adj))

    def take(self, per_node: Tensor) -> Tensor:
        """The batch's rows of a tensor with one row per node. It is a view if the batch is one range."""
        if self.ranges is not None:
            pieces = [per_node[begin:end] for begin, end in self.ranges]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        rows = self.rows.to(per_node.device)
        if per_node.dim() == 2 and per_node.dtype in check.ROW_DTYPES:
            return gather_rows(per_node, rows)
        return per_node[rows]

    def write_positions(self, position: Tensor) -> None:
        """Enter the batch: ``position[rows[i]] = i``."""
        if self.ranges is None:
            position[self.rows] = torch.arange(len(self), dtype=position.dtype, device=position.device)
            return
        for at, begin, end in self._places():
            torch.arange(at, at + end - begin, out=position[begin:end])

    def restore_positions(self, position: Tensor) -> None:
        """Leave the batch: ``position[g] = ~g`` for its rows, so that each is read from its row of a table."""
        if self.ranges is None:
            position[self.rows] = ~self.rows.to(position.dtype)
            return
        for begin, end in self.ranges:
            torch.arange(~begin, ~end, -1, out=position[begin:end])

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """(first row, begin, end) of each range."""
        assert self.ranges is not None
        at = 0
        for begin, end in self.ranges:
            yield at, begin, end
            at += end - begin


@dataclass(frozen=True, eq=False)
class Block:
    """The rows of one layer: ``rows`` are computed, ``source`` are those of its input and begin with ``rows``."""

    rows: Batch
    source: Batch

    @property
    def narrows(self) -> bool:
        """Whether the layer computes fewer rows than it reads."""
        return len(self.rows) < len(self.source)

    def halo(self, adj: Adjacency) -> Tensor:
        """int64[H]: the neighbours of the computed rows that are not rows of the input, distinct and ascending."""
        if not self.narrows:
            return self.rows.halo(adj)
        outside = self.rows.halo(adj)
        return outside[~torch.isin(outside, self.source.rows)]


def node_batch(nodes: Tensor, num_nodes: int) -> Batch:
    """A batch of distinct nodes, int64[R], for methods that sample nodes instead of clusters.

    Example::

        batch = node_batch(torch.randperm(graph.num_nodes)[:1000], graph.num_nodes)
    """
    check.tensor("nodes", nodes, (torch.int64,), 1)
    check.in_range("nodes", nodes, 0, num_nodes, "the node ids")
    check.unique("nodes", nodes)
    return Batch(num_nodes, nodes=nodes, device=nodes.device)


class Lazy(Sequence[Batch]):
    """Batches that are made when they are asked for.

    Args:
        make: returns the batch of an index. size: their number.
    """

    def __init__(self, make: Callable[[int], Batch], size: int) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self.make(i) for i in range(self.size)[index]]
        return self.make(range(self.size)[index])


class PositionMaps:
    """A pool of position maps. Each entered batch has its own map; maps are used again.

    A map is int32[N]. A node outside of the batch is read from its row of a table (``~id``).

    Example::

        maps = PositionMaps(graph.num_nodes)
        with maps.enter(batch) as position:
            z = history_spmm(adj, batch.rows, position, x, table)
            z.sum().backward()  # within the block: backward reads the map again
    """

    def __init__(self, num_nodes: int, device: torch.device | str = "cpu") -> None:
        if num_nodes >= 2**31:
            raise ValueError(f"there are {num_nodes} nodes; a position map is int32 and can tell apart {2**31 - 1} of them")
        self.num_nodes, self.device = num_nodes, torch.device(device)
        self._free: list[Tensor] = []
        self._everywhere_outside: Tensor | None = None

    @property
    def outside(self) -> Tensor:
        """The map without a batch: all nodes are read from a table. Do not write to it."""
        if self._everywhere_outside is None:
            self._everywhere_outside = self._new()
        return self._everywhere_outside

    def _new(self) -> Tensor:
        return torch.arange(-1, ~self.num_nodes, -1, dtype=torch.int32, device=self.device)

    @contextmanager
    def enter(self, batch: Batch) -> Iterator[Tensor]:
        """A map in which the batch's nodes are rows of x, until the block ends. The map is restored also after an error."""
        if batch.num_nodes != self.num_nodes:
            raise ValueError(f"the batch is of a graph with {batch.num_nodes} nodes, the maps of one with {self.num_nodes}")
        position = self.take()
        try:
            batch.write_positions(position)
            yield position
        finally:
            batch.restore_positions(position)
            self.give_back(position)

    def take(self) -> Tensor:
        """A map without a batch, for the caller alone. The caller restores it before :meth:`give_back`."""
        try:
            return self._free.pop()  # not after a look at what is free: another thread may take the last one
        except IndexError:
            return self._new()

    def give_back(self, position: Tensor) -> None:
        self._free.append(position)


class ClusterBatches:
    """Batches of clusters, in another order each epoch.

    Args:
        ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]``.
        batch_size: clusters in a batch. The last batch of an epoch may have fewer.
        seed: the order of epoch e depends on (seed, e) alone, so an epoch can be repeated or resumed.
        device: of the batches' rows.

    Example::

        for batch in ClusterBatches(partition.ptr, 5, seed=1).epoch(0):
            ...
    """

    def __init__(self, ptr: Tensor, batch_size: int, seed: int = 0, device: torch.device | str = "cpu") -> None:
        check.tensor("ptr", ptr, (torch.int64,), 1)
        check.row_pointers("ptr", ptr, int(ptr[-1]) if ptr.numel() else 0, "nodes")
        self.bounds: list[int] = ptr.tolist()
        self.num_clusters, self.num_nodes = len(self.bounds) - 1, self.bounds[-1]
        if not 1 <= batch_size <= max(1, self.num_clusters):
            raise ValueError(
                f"batch_size is {batch_size}; there are {self.num_clusters} clusters, so 1 to {self.num_clusters} fit"
            )
        self.batch_size, self.seed, self.device = batch_size, seed, torch.device(device)

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_clusters // self.batch_size)

    def epoch(self, number: int) -> list[Batch]:
        """The batches of an epoch. Every cluster is in exactly one of them."""
        generator = torch.Generator().manual_seed(mix64(mix64(self.seed) + number) >> 1)
        shuffled: list[int] = torch.randperm(self.num_clusters, generator=generator).tolist()
        return [self.batch(shuffled[at : at + self.batch_size]) for at in range(0, self.num_clusters, self.batch_size)]

    def batch(self, clusters: Sequence[int]) -> Batch:
        """The batch of these clusters, in any order.

        Its rows are ascending, so that memory is read from front to back and adjacent clusters are one range.
        """
        chosen = sorted(clusters)
        if len(set(chosen)) != len(chosen) or (chosen and not 0 <= chosen[0] <= chosen[-1] < self.num_clusters):
            raise ValueError(f"clusters are {list(clusters)}; they must be distinct, from 0 to {self.num_clusters - 1}")
        ranges: list[tuple[int, int]] = []
        for k in chosen:
            begin, end = self.bounds[k], self.bounds[k + 1]
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
        return Batch(self.num_nodes, ranges=tuple(ranges), clusters=tuple(chosen), device=self.device)
