"""Full-batch training: one batch of all nodes, without tables. An epoch is one step."""

import torch

from ...nn.model import HistoryGNN
from ...sampling.batch import Batch
from ..base import Method


class Full(Method):
    """Full-batch training, the reference for other methods."""

    def batches(self, epoch: int) -> list[Batch]:
        nodes = int(self.ptr[-1])
        clusters = tuple(range(self.ptr.numel() - 1))
        return [Batch(nodes, ranges=((0, nodes),), clusters=clusters, device=torch.device(self.device))]

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        return {}

    def first_table(self, model: HistoryGNN) -> int:
        return int(not model.encodes)
