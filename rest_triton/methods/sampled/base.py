"""The base class of methods with batches of training nodes and sampled neighbours."""

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from ...config import Config
from ...data.graph import Graph
from ...kernels._hash import mix64
from ...sampling.batch import Batch
from ...sampling.sample import Known, fields
from ..base import Method
from ..engine import Engine

ORDER, SAMPLES = 0x0DE5, 0x5A3B  # make these draws differ from each other's and from the refreshes'


class SampledMethod(Method):
    """Batches of ``batch_nodes`` training nodes. Every row reads at most ``fanout`` of its neighbours.

    Samples depend on (seed, step, row, layer) alone. The first aggregate of a model that reads features is exact: it is
    computed once for the whole graph. Batches for refreshes are of all nodes: groups of consecutive ids, ``batch_size`` of
    them with ``batch_nodes`` nodes.
    """

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
        most = self.config.max_steps * self.config.accumulate
        return NodeBatches(self.num_nodes, shuffled, self.config.batch_nodes, self.device, most)

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
        if not engine.model.encodes or engine.inputs.exact_input:
            fanouts[0] = None
        if refreshing and not self.refreshes_last:
            fanouts[-1] = None
        maps = engine.maps[engine.streams.current]
        return fields(engine.inputs.adj, batch.rows, fanouts, maps, seed, known=known, gradients=not refreshing)


class NodeBatches(Sequence[Batch]):
    """Consecutive batches of a list of nodes.

    Args:
        nodes: int64[K]. size: nodes in a batch; the last one may have fewer. most: of batches; 0: no limit.
    """

    def __init__(self, num_nodes: int, nodes: Tensor, size: int, device: str, most: int = 0) -> None:
        self.num_nodes, self.device = num_nodes, device
        self.pieces = nodes.split(size)[: most or None] if nodes.numel() else ()

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return Batch(self.num_nodes, nodes=self.pieces[index]).on(self.device)
