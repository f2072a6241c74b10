"""GAS (GNNAutoScale; Fey et al., 2021): batches of clusters; neighbours outside of a batch are read from tables."""

from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from ..kernels._hash import mix64
from ..sampling.batch import Batch, ClusterBatches
from .base import Method
from .engine import Engine


class GAS(Method):
    """Batches of ``batch_size`` clusters, in another order each epoch. An epoch has at most ``max_steps`` updates."""

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        super().__init__(config, ptr, device, graph)
        batch_size = min(config.batch_size, ptr.numel() - 1)  # a small graph may have fewer clusters than num_parts
        self.clusters = ClusterBatches(ptr, batch_size, seed=mix64(config.seed) >> 1, device=device)

    def batches(self, epoch: int) -> list[Batch]:
        most = self.config.max_steps * self.config.accumulate or None
        return self.clusters.epoch(epoch)[:most]

    def cover(self) -> list[Batch]:
        return self.clusters.epoch(0)  # without the limit of max_steps

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        return batch if self.reach is None or batch.counts is not None else self.reach.trimmed(batch)

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        # The first layer that reads a table computes the most rows, and so has the largest halo.
        return batch.block(self.first_table(engine.model)).halo(engine.inputs.adj)
