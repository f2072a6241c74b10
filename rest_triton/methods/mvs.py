"""MVS-GNN (Cong et al., 2020): batches of training nodes, drawn by their importance for the gradient."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from ..kernels._hash import mix64
from ..nn.context import Context
from ..nn.inference import Inference, LayerwiseContext
from ..sampling.batch import Batch, Lazy
from .base import Method
from .engine import Engine

IMPORTANCE, DRAWS = 0x1417, 0xD7A3  # make these draws differ from each other's and from the refreshes'
SMALLEST = 1e-30  # importance: also a node whose gradient is zero now can be drawn


class MVS(Method):
    """GAS's forward for training nodes that are drawn, each by itself, with ``p = min(1, importance / threshold)``.

    The threshold makes ``batch_nodes`` the expected size. The loss is the sum of ``ce / (p n)`` over the drawn nodes. ``n``
    is the number of nodes that are drawn from, so the expectation of the loss is their mean loss.

    Every ``importance_every`` steps, and before the first, an exact pass fills all rows of all tables. Another share of the
    training nodes, ``importance_share``, is then drawn from, by the importance that follows from the pass. Batches of other
    nodes exist only for refreshes: groups of consecutive ids, ``batch_size`` of them with ``batch_nodes`` nodes.
    """

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        if graph is None or graph.train_mask is None or graph.y is None:
            raise ValueError("mvs draws training nodes: make it with a graph that has labels and a training mask")
        nodes = graph.num_nodes
        size = max(1, -(-config.batch_nodes // config.batch_size))
        super().__init__(config, torch.tensor([*range(0, nodes, size), nodes]), device, graph)
        self.labels, self.num_nodes = graph.y, nodes
        self.training = torch.nonzero(graph.train_mask).squeeze(1)
        self._draw_from(self.training, torch.ones(len(self.training)), -1)

    def _draw_from(self, nodes: Tensor, importance: Tensor, step: int) -> None:
        self.nodes, self.importance, self.renewed = nodes, importance, step
        self.probabilities = probabilities(importance, self.config.batch_nodes)

    def batches(self, epoch: int) -> Sequence[Batch]:
        """As many as hold all training nodes. Each is drawn when it is asked for, by the importance of then."""
        count = -(-len(self.training) // self.config.batch_nodes)
        most = self.config.max_steps * self.config.accumulate or count
        seed = mix64(mix64(self.config.seed + DRAWS) + epoch)
        return Lazy(lambda index: self.draw(mix64(seed + index) >> 1), min(count, most))

    def cover(self) -> Sequence[Batch]:
        return self.refresh_batches(min(self.config.batch_size, len(self.ptr) - 1), 0).epoch(0)

    def draw(self, seed: int) -> Batch:
        """The batch of a seed."""
        p = self.probabilities
        kept = torch.rand(len(p), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < p
        weight = (1 / (p[kept] * len(p))).float()
        batch = Batch(self.num_nodes, nodes=self.nodes[kept], weight=weight)
        return batch.on(self.device)

    def draws(self, engine: Engine, epoch: int, most: int) -> Sequence[Batch]:
        """Each is drawn from other nodes, as batches between which many steps lie are. No table is written."""
        batches, drawn = self.batches(epoch), list[Batch]()
        with engine.inference() as made:
            made.run()
            for index in range(min(most, len(batches))):
                self.choose(made, epoch * len(batches) + index)
                drawn.append(batches[index])
        return drawn

    def begin(self, engine: Engine, step: int) -> None:
        with engine.inference(record_at=step) as made:
            self.renew(made, step)

    def after_backward(self, ctx: Context) -> None:
        if ctx.step - self.renewed >= self.config.importance_every:
            assert ctx.model is not None
            made = Inference(ctx.inputs, ctx.model, ctx.maps, ctx.reader, record_at=ctx.step)
            try:
                self.renew(made, ctx.step)
            finally:
                made.close()

    def renew(self, made: Inference, step: int) -> None:
        """Fill the tables by an exact pass, and draw from other nodes, by new importance."""
        made.run()
        self.choose(made, step)

    @torch.no_grad()
    def choose(self, made: Inference, step: int) -> None:
        """Draw from other nodes, by the importance that follows from an exact pass."""
        count = max(1, round(self.config.importance_share * len(self.training)))
        seed = mix64(mix64(self.config.seed + IMPORTANCE) + step) >> 1
        chosen = torch.randperm(len(self.training), generator=torch.Generator().manual_seed(seed))[:count]
        nodes = self.training[chosen.sort().values]
        some = Batch(self.num_nodes, nodes=nodes).on(self.device)
        ctx = LastLayer(
            made.inputs, some, made.maps, made.reader, only=made.model.num_layers - 1, places=made.places, transformed={},
            recording=False, step=step,
        )  # fmt: skip
        try:
            logits = made.model(ctx)
        finally:
            ctx.close()
        assert logits is not None
        y = self.labels[nodes].to(logits.device)
        self._draw_from(nodes, importance(logits, y, ctx.read_by_last_linear).cpu(), step)

    def state(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "importance": self.importance, "renewed": self.renewed}

    def load(self, state: dict[str, Any]) -> None:
        self._draw_from(state["nodes"], state["importance"], state["renewed"])


class LastLayer(LayerwiseContext):
    """The last layer for some nodes, over complete tables.

    ``read_by_last_linear``, [R, D], is the input of the linear map that ends the model, None if another operation does.
    """

    read_by_last_linear: Tensor | None = None

    def propagate_linear(self, weight: Tensor) -> Tensor:
        self.read_by_last_linear = self.propagate()
        return F.linear(self.read_by_last_linear, weight)

    def result(self, model: Any) -> Tensor | None:
        logits: Tensor = model.decode(self.h)
        if logits is not self.h:
            self.read_by_last_linear = self.h
        return logits


def importance(logits: Tensor, y: Tensor, read: Tensor | None) -> Tensor:
    """float32 [n]: the norm of the gradient of each node's cross entropy by weight and bias of the last linear map.

    read: [n, D], its input. None: by the result alone.
    """
    logits = logits.float()
    if y.dim() == 2:
        delta = (logits.sigmoid() - y) / y.shape[1]
    else:
        delta = logits.softmax(1) - F.one_hot(y, logits.shape[1])
    squared = 1.0 if read is None else read.float().square().sum(1) + 1
    return (delta.square().sum(1) * squared).sqrt()


def probabilities(g: Tensor, size: int) -> Tensor:
    """float64 [n]: ``min(1, g / threshold)``, with the sum ``size``; 1 for all if there are not more."""
    if len(g) <= size:
        return torch.ones(len(g), dtype=torch.float64)
    g = g.double().clamp_min(SMALLEST)
    descending = g.sort(descending=True).values
    # If the first k of them have 1, the others share size - k. It is the smallest k that leaves no other one above 1.
    others = descending.flip(0).cumsum(0).flip(0)[:size]
    threshold = others / (size - torch.arange(size))
    first = int((descending[:size] <= threshold).nonzero()[0])
    return (g / threshold[first]).clamp(max=1.0)
