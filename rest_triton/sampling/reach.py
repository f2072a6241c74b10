"""The nodes within some edges of given ones: those that their results depend on."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..ops import Adjacency, halo
from .batch import Batch

MOST = 254  # edges that a distance in uint8 can tell apart


@dataclass(frozen=True, eq=False)
class Reach:
    """The distances of all nodes to the nearest of some targets, along edges.

    The result of a target by a model of L layers depends on the nodes within L edges. Of those, the input of layer l is
    needed within L - l edges.

    Args:
        distance: uint8[N]: the number of edges, ``hops + 1`` if there are more than ``hops``. hops: the layers.
    """

    distance: Tensor
    hops: int

    @staticmethod
    def of(adj: Adjacency, targets: Tensor, hops: int) -> "Reach":
        """The distances to the nodes in ``targets``, bool[N]."""
        if hops > MOST:
            raise ValueError(f"hops is {hops}; distances of up to {MOST} edges are kept")
        distance = torch.full((adj.num_nodes,), hops + 1, dtype=torch.uint8)
        front = targets.cpu().nonzero().squeeze(1)
        distance[front] = 0
        for hop in range(1, hops + 1):
            near = halo(adj, front.to(adj.rowptr.device)).cpu()
            front = near[distance[near] > hop]
            distance[front] = hop
        return Reach(distance, hops)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of nodes within 0, 1, … ``hops`` edges."""
        return tuple(torch.bincount(self.distance, minlength=self.hops + 1)[: self.hops + 1].cumsum(0).tolist())

    @cached_property
    def numbers(self) -> Tensor:
        """int32[N]: the nodes numbered by distance and id. Those within some edges have the first numbers."""
        order = self.distance.argsort(stable=True)
        numbers = torch.empty(order.numel(), dtype=torch.int32)
        numbers[order] = torch.arange(order.numel(), dtype=torch.int32)
        return numbers

    def within(self, begin: int, end: int, hops: int) -> Tensor:
        """int64[K]: the nodes of ``begin .. end`` within some edges, ascending."""
        return begin + (self.distance[begin:end] <= hops).nonzero().squeeze(1)

    def trimmed(self, batch: Batch) -> Batch:
        """The batch with the rows of each layer that its results and rows of tables need."""
        rows = batch.on("cpu").rows
        away, order = self.distance[rows].sort(stable=True)
        sizes = torch.bincount(away, minlength=self.hops + 2).cumsum(0).tolist()
        counts = tuple(sizes[self.hops - layer] for layer in range(self.hops + 1))
        if counts[-1] == len(batch):
            return batch
        made = Batch(batch.num_nodes, nodes=rows[order[: counts[0]]], clusters=batch.clusters, counts=counts)
        return made.on(batch.device)
