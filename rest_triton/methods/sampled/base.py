"""The base class of methods with batches of training nodes and sampled neighbours."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...config import Config
from ...data.graph import Graph
from ...kernels._hash import mix64
from ...sampling.batch import Batch, Lazy
from ...sampling.sample import Known, fields
from ..base import Method
from ..engine import Engine

ORDER, SAMPLES = 0x0DE5, 0x5A3B  # make these draws differ from each other's and from the refreshes'


class SampledMethod(Method):
    """Batches of ``batch_nodes`` training nodes. Every row reads at most ``fanout`` of its neighbours.

    Samples depend on (seed, step, row, layer) alone. The first aggregate of a model that reads features is exact: it is
    computed once for the whole graph. So is that of first embeddings that are computed for all neighbours. Batches for
    refreshes are of all nodes: groups of consecutive ids, ``batch_size`` of them with ``batch_nodes`` nodes.
    """

    ahead = True

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        if graph is None or graph.train_mask is None:
            raise ValueError(f"{config.base} has batches of training nodes: make it with a graph that has a training mask")
        nodes = graph.num_nodes
        size = max(1, -(-config.batch_nodes // config.batch_size))
        super().__init__(config, torch.tensor([*range(0, nodes, size), nodes]), device, graph)
        self.num_nodes = nodes
        self.training = torch.nonzero(graph.train_mask).squeeze(1)

    def batches(self, epoch: int) -> Sequence[Batch]:
        """The training nodes in another order each epoch."""
        generator = torch.Generator().manual_seed(mix64(mix64(self.config.seed + ORDER) + epoch) >> 1)
        shuffled = self.training[torch.randperm(len(self.training), generator=generator)]
        pieces = shuffled.split(self.config.batch_nodes)[: self.config.max_steps * self.config.accumulate or None]
        size = len(pieces) if shuffled.numel() else 0
        return Lazy(lambda index: Batch(self.num_nodes, nodes=pieces[index]).on(self.device), size)

    def cover(self) -> Sequence[Batch]:
        return self.refresh_batches(min(self.config.batch_size, len(self.ptr) - 1), 0).epoch(0)

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        return self.sampled(engine, batch, step, draw=draw, refreshing=refreshing)

    def sampled(
        self, engine: Engine, batch: Batch, step: int, *, draw: int, refreshing: bool, known: Known | None = None
    ) -> Batch:
        """The batch with sampled neighbours. known: see :func:`fields`."""
        seed = mix64(mix64(mix64(self.config.seed + SAMPLES) + step) + draw)
        fanouts: list[int | None] = list(self.config.fanouts)
        exact = min(len(fanouts), Method.first_table(self, engine.model))
        fanouts[:exact] = [None] * exact
        if refreshing and not self.refreshes_last:
            fanouts[-1] = None
        maps = engine.maps[engine.streams.current]
        return fields(engine.inputs.adj, batch.rows, fanouts, maps, seed, known=known, gradients=not refreshing)
