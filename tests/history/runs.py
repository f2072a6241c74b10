"""Small runs for tests: the Trainer itself on a small graph, with tables wherever a test wants them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData, stored_apart, with_named_edges
from rest_triton.data.features import Reordered, SparseRows
from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.history.slots import Slots
from rest_triton.history.streams import Streams
from rest_triton.history.table import PinnedTable, Table, new_stamps
from rest_triton.nn import HistoryGNN, model_named
from rest_triton.sampling.batch import Batch
from rest_triton.training.trainer import Trainer

NODES, CLASSES, FEATURES = 120, 5, 12
PTR = torch.tensor([0, 17, 30, 52, 70, 95, 120])

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn", num_layers=3),
    "gcn-norm": dict(model="gcn", num_layers=3, drop_input=True, batch_norm=True, residual=True),
    "appnp": dict(model="appnp", num_layers=4, drop_input=True),
    "gcn-linear": dict(model="gcn", num_layers=2, drop_input=True, linear=True, residual=True),
    "gcnii": dict(model="gcnii", num_layers=4, drop_input=True),
    "gcnii-norm": dict(model="gcnii", num_layers=3, drop_input=True, shared_weights=False, batch_norm=True),
    "gat": dict(model="gat", num_layers=3, heads=2),
    "gin": dict(model="gin", num_layers=3),
    "pna": dict(model="pna", num_layers=3),
}


def graph(directed: bool = False) -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 3, (2, 500), generator=g)  # three nodes are isolated
    x = torch.randn(NODES, FEATURES, generator=g)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    part = torch.rand(NODES, generator=g)
    masks = dict(train_mask=part < 0.5, val_mask=(part >= 0.5) & (part < 0.75), test_mask=part >= 0.75)
    return Graph.from_edges(edges, NODES, symmetrise=not directed, x=x, y=y, **masks)


def data(directed: bool, config: Config, kind: type[HistoryGNN]) -> ClusterData:
    made = graph(directed)
    adj = made.adjacency(kind.normalise)
    adj = with_named_edges(adj) if config.edge_dropout > 0 or kind.drops_edges else adj
    assert isinstance(made.x, Tensor)
    x = made.x.to(config.device)
    return ClusterData(made, adj.to(config.device), x, PTR, torch.arange(NODES), made.fingerprint, "small")


class FarTable(PinnedTable):
    """A pinned table without a GPU: in ordinary memory."""

    @classmethod
    def new(
        cls, name: str, num_nodes: int, width: int, dtype: torch.dtype, device: torch.device, folder: Path | None
    ) -> Table:
        with _disable_current_modes():  # a recorder need not see it: the memory is freed after all streams were waited for
            return cls(name, torch.zeros(num_nodes, width, dtype=dtype), new_stamps(num_nodes, device))


class FarHistory(History):
    """On a CPU, tables as beside a GPU: rows are pulled, and written on the io stream."""

    def _tier(self) -> type[Table]:
        return FarTable


class Run:
    """A model in training, from a seed.

    Args:
        model: one of MODELS, another one of the package by its name, or a model.
        streams, far, folder: of its tables. directed: of its graph. x: features instead of its own.
        settings: of its Config.
    """

    def __init__(
        self, model: str | HistoryGNN = "gcn", *, method: str = "gas", streams: Streams | None = None, far: bool = False,
        directed: bool = False, folder: Path | None = None, x: Tensor | SparseRows | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        own = None if isinstance(model, str) else model
        kind = MODELS.get(model, dict(model=model)) if isinstance(model, str) else {}
        common = dict(
            dataset="small", device="cpu", num_parts=6, batch_size=2, hidden_channels=16, dropout=0.3, lr=0.02, method=method
        )
        self.config = Config(**(common | kind | settings))
        self.data = data(directed, self.config, model_named(self.config.model) if own is None else own)
        if x is not None:
            self.data = replace(self.data, x=x.to(self.config.device))
        if stored_apart(self.config):
            assert not isinstance(self.data.x, Reordered)
            self.data = replace(self.data, x=Reordered(self.data.x, torch.arange(NODES)), folder=folder)
        made: Any = None if own is None else lambda in_channels, out_channels: own
        history = partial(FarHistory if far else History, streams=streams)
        self.trainer = Trainer(self.config, self.data, made, folder=folder, history=history)
        self.engine, self.history, self.model = self.trainer.engine, self.trainer.history, self.trainer.model
        self.graph: Graph = self.data.graph
        self._batches = self._all_batches()
        self.trainer.begin()

    def _all_batches(self) -> Iterator[Sequence[Batch]]:
        for epoch in count(1):
            batches = self.trainer.method.batches(epoch)
            for first in range(0, len(batches), self.config.accumulate):
                yield batches[first : first + self.config.accumulate]

    def batch(self, *clusters: int) -> Batch:
        """The batch of these clusters; without any, of all nodes."""
        return self.trainer.method.refresh_batches(1, 0).batch(clusters or range(6))

    def step(self) -> list[Tensor]:
        """The next step of training, as the Trainer does it. Returns the losses of its batches."""
        return self.trainer.update(next(self._batches))

    @property
    def slots(self) -> Slots | None:
        """Those of a bounded cache."""
        return getattr(self.trainer.method, "slots", None)

    def losses(self, steps: int) -> list[float]:
        return [float(loss) for _ in range(steps) for loss in self.step()]

    def use(self, streams: Streams) -> None:
        """Go on with other streams: nothing is left to wait for."""
        self.history.streams.finish()
        self.history.streams = streams
        resources = [table.resource for table in self.history.all_tables]
        for resource in (*resources, self.engine.weights, self.engine.inputs.statistics):
            resource.written, resource.read = None, {}
        self.history._buffers.clear()

    def results(self) -> list[Tensor]:
        """What steps are for: weights, running statistics, the optimizer's memory, tables and their slots, gradients."""
        slots = [v for s in self.trainer.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        tables = [t for table in self.history.all_tables for t in (table.rows, table.stamp)]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        maps = [] if self.slots is None else [self.slots.slot_of, self.slots.node_of]
        return [*self.model.state_dict().values(), *slots, *tables, *maps, *gradients]

    def state(self) -> list[Tensor]:
        """Everything that steps change."""
        return [*self.results(), *(m for maps in self.engine.maps.values() for m in maps._free)]


def same_results(a: Run, b: Run) -> bool:
    """Bit by bit."""
    for run in (a, b):
        run.history.streams.finish()
    return all(map(torch.equal, a.results(), b.results()))


def disk(folder: Path) -> dict[str, Any]:
    return dict(history="disk", folder=folder)
