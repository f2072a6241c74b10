"""Full-batch training: all nodes in one batch, no tables. What the others are measured by, where it fits."""

import torch
from torch.nn import Module

from ..sampling.batch import Batch
from .base import Method


class Full(Method):
    """An epoch is one step."""

    def batches(self, epoch: int) -> list[Batch]:
        nodes = int(self.ptr[-1])
        clusters = tuple(range(self.ptr.numel() - 1))
        return [Batch(nodes, ranges=((0, nodes),), clusters=clusters, device=torch.device(self.device))]

    def widths(self, model: Module) -> list[int]:
        return []
