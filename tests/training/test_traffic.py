"""The planned bytes that a step moves, against those that steps move. Each node is a neighbour of all others, so that halos
are known."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.data.graph import Graph
from rest_triton.data.sizes import Sizes
from rest_triton.history.disk import DiskTable
from rest_triton.history.table import Table
from rest_triton.nn.features import Features
from rest_triton.sampling.batch import Batch
from rest_triton.training import memory
from rest_triton.training.plan import plan

from ..history import runs
from ..history.runs import CLASSES, FEATURES, NODES, Run


def complete() -> Graph:
    nodes = torch.arange(NODES)
    edges = torch.cartesian_prod(nodes, nodes).T
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(0, CLASSES, (NODES,), generator=g)
    masks = dict(train_mask=nodes % 3 == 0, val_mask=nodes % 3 == 1, test_mask=nodes % 3 == 2)
    return Graph.from_edges(edges[:, edges[0] != edges[1]], NODES, x=x, y=y, **masks)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes of rows that were fetched from and written to tables on disk, and of rows of features that were read."""
    found: Counter[str] = Counter()
    fetch, write, take, gather = DiskTable.fetch, Table.write, Features.take, Features.gather

    def row(rows: Any) -> int:
        return rows.shape[1] * rows.dtype.itemsize

    def fetched(self: DiskTable, nodes: Tensor, out: Tensor) -> None:
        if self.files:  # features have none that they remove
            found["tables"] += nodes.numel() * row(self.rows)
        fetch(self, nodes, out)

    def written(self: Table, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        found["tables"] += len(batch) * row(self.rows) * (1 if momentum == 1.0 else 2)
        write(self, batch, h, step, momentum)

    def taken(self: Features, batch: Batch) -> Any:
        found["features"] += len(batch) * row(self.rows) * (batch.ranges is not None)  # others are gathered
        return take(self, batch)

    def gathered(self: Features, nodes: Tensor) -> Any:
        found["features"] += nodes.numel() * row(self.rows)
        return gather(self, nodes)

    for kind, name, counted in ((DiskTable, "fetch", fetched), (Table, "write", written), (Features, "take", taken),
                                (Features, "gather", gathered)):  # fmt: skip
        monkeypatch.setattr(kind, name, counted)
    monkeypatch.setattr(runs, "graph", lambda directed: complete())
    monkeypatch.setattr(runs, "PTR", torch.arange(0, NODES + 1, NODES // 6))
    monkeypatch.setattr(memory.Run, "around", lambda self, rows: NODES - min(rows, NODES))
    return found


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("gas", {}),
    ("gas", dict(edge_dropout=0.3)),
    ("gas", dict(dropout=0.3, drop_input=True)),
    ("gas", dict(first="exact")),
    ("gas", dict(dtype="bfloat16", feature_dtype="float16")),
    ("gas+rest", dict(frequency=2)),
    ("gas+rest-is", dict(frequency=2)),
    ("graphfm", dict(push_momentum=0.3)),
    ("lmc+rest", dict(gradient_frequency=1)),
    ("cluster", {}),
]
REFUSED = [(method, more) for method, more in METHODS if "first" in more or method in ("graphfm", "lmc+rest")]  # for GAT
CASES = [
    (model, *case)
    for model in ("gcn", "gcnii", "gat", "gin", "gcn-linear")
    for case in METHODS
    if model != "gat" or case not in REFUSED
]


@pytest.mark.parametrize(("model", "method", "more"), CASES)
def test_bytes_of_a_step(model: str, method: str, more: dict[str, Any], moved: Counter[str], tmp_path: Path) -> None:
    settings = dict(history="disk", features="disk", drop_input=False, dropout=0.0) | more
    run = Run(model, method=method, folder=tmp_path, **settings)
    run.history.streams.finish()
    moved.clear()
    for _ in range(3):
        run.step()
    run.history.streams.finish()
    graph = run.graph
    sizes = Sizes(NODES, int(graph.num_edges), FEATURES, CLASSES)
    arrays = plan(sizes, run.config).arrays
    planned = {
        "tables": sum(a.moved for a in arrays if a.name in ("history tables", "gradient tables")),
        "features": sum(a.moved for a in arrays if a.name in ("features", "aggregated features")),
    }
    assert {name: moved[name] / 3 for name in planned} == pytest.approx(planned)
