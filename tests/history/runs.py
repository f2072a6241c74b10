"""Small runs of whole training steps, for tests: a graph, a model, a store, an engine, and what they compute."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rest_triton.nn.scene import Scene
from torch import Tensor

from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.history.streams import Streams
from rest_triton.methods.engine import Engine, tables_of
from rest_triton.nn import APPNP, GCN, GCNII
from rest_triton.sampling.batch import Batch, ClusterLoader

NODES, CLASSES, FEATURES = 120, 5, 12
PTR = torch.tensor([0, 17, 30, 52, 70, 95, 120])

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "gcn": lambda: GCN(FEATURES, 16, CLASSES, 3, dropout=0.3),
    "gcn-norm": lambda: GCN(FEATURES, 16, CLASSES, 3, dropout=0.3, drop_input=True, batch_norm=True, residual=True),
    "appnp": lambda: APPNP(FEATURES, 16, CLASSES, 4, dropout=0.3),
    "gcn-linear": lambda: GCN(FEATURES, 16, CLASSES, 2, dropout=0.3, drop_input=True, linear=True, residual=True),
    "gcnii": lambda: GCNII(FEATURES, 16, CLASSES, 4, dropout=0.3),
    "gcnii-norm": lambda: GCNII(FEATURES, 16, CLASSES, 3, dropout=0.3, shared_weights=False, batch_norm=True),
}


def graph(directed: bool = False) -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 3, (2, 500), generator=g)  # three nodes are isolated
    x = torch.randn(NODES, FEATURES, generator=g)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    return Graph.from_edges(edges, NODES, symmetrise=not directed, x=x, y=y, train_mask=torch.rand(NODES, generator=g) < 0.5)


class FarStore(History):
    """On a CPU, tables as beside a GPU: rows are staged, and written by the io stream."""

    direct = False


class Run:
    """A model in training, from a seed."""

    def __init__(
        self, model: str | torch.nn.Module = "gcn", *, streams: Streams | None = None, far: bool = False,
        directed: bool = False, exact: bool = False,
        seed: int = 0, **store: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.graph, self.model = graph(directed), MODELS[model]() if isinstance(model, str) else model
        make = FarStore if far else History
        self.store = make(NODES, tables_of(self.model, exact), streams=streams, **store)
        assert isinstance(self.graph.x, Tensor)
        scene = Scene(self.graph.adjacency("gcn"), self.graph.x, self.store, seed=7, exact_input=exact)
        self.engine = Engine(scene, self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.batches, self.refresh_batches = ClusterLoader(PTR, 2, seed=1), ClusterLoader(PTR, 2, seed=2)
        self.engine.fill()

    def loss_of(self, batch: Batch) -> Callable[[Tensor], Tensor | None]:
        assert self.graph.train_mask is not None and self.graph.y is not None
        chosen, y = batch.take(self.graph.train_mask), batch.take(self.graph.y)
        return lambda logits: F.cross_entropy(logits[chosen], y[chosen]) if bool(chosen.any()) else None

    def step(self, number: int, method: str = "gas", frequency: int = 1) -> Tensor | None:
        """Step ``number``, from 1: ``gas``, ``rest`` or ``is``."""
        per_epoch = len(self.batches)
        batch = self.batches.epoch((number - 1) // per_epoch)[(number - 1) % per_epoch]
        first = (number - 1) * frequency
        others: Sequence[Batch] = [
            self.refresh_batches.epoch(i // per_epoch)[i % per_epoch] for i in range(first, first + frequency)
        ]
        return self.engine.step(
            batch, number, self.loss_of(batch), self.optimizer, refresh=others if method == "rest" else (),
            importance=frequency if method == "is" else 0,
        )  # fmt: skip

    def losses(self, steps: int, method: str = "gas", frequency: int = 1) -> list[float]:
        return [float(loss) for n in range(steps) if (loss := self.step(n + 1, method, frequency)) is not None]

    def use(self, streams: Streams) -> None:
        """Go on with other streams: nothing is left to wait for."""
        self.store.streams.finish()
        self.store.streams = self.engine.streams = streams
        for resource in (*(table.resource for table in self.store.tables), self.engine.weights):
            resource.written, resource.read = None, {}
        self.store._buffers.clear()

    def results(self) -> list[Tensor]:
        """What steps are for: weights, gradients, the optimizer's memory, the tables."""
        slots = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        tables = [t for table in self.store.tables for t in (table.rows, table.stamp)]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [
            *self.model.state_dict().values(),
            *slots,
            *tables,
            *gradients,
        ]

    def state(self) -> list[Tensor]:
        """Everything that steps change."""
        return [*self.results(), *(m for maps in self.engine.maps.values() for m in maps._free)]


def disk(folder: Path) -> dict[str, Any]:
    return dict(place="disk", folder=folder, fingerprint=graph().fingerprint)
