"""PyG's layers with histories: equal to the layer on the whole graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, ReLU, Sequential

from rest_triton.config import Config
from rest_triton.data.convert import to_pyg
from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.methods.engine import Engine
from rest_triton.methods.gas import GAS
from rest_triton.nn import HistoryGNN
from rest_triton.nn.pyg import PyGLayer
from rest_triton.sampling.batch import Batch, ClusterBatches

pyg = pytest.importorskip("torch_geometric.nn")

NODES, FEATURES, CLASSES = 70, 6, 3
PTR = torch.tensor([0, 20, 41, 55, NODES])
CONVS: dict[str, Callable[[int, int], Module]] = {
    "gat": lambda a, b: pyg.GATConv(a, b),
    "gatv2": lambda a, b: pyg.GATv2Conv(a, b),
    "gin": lambda a, b: pyg.GINConv(Sequential(Linear(a, b), BatchNorm1d(b), ReLU(), Linear(b, b)), train_eps=True),
    "pna": lambda a, b: pyg.PNAConv(a, b, ["mean", "max", "std"], ["identity"], torch.tensor([3, 9, 20])),
    "sage": lambda a, b: pyg.SAGEConv(a, b),
    "transformer": lambda a, b: pyg.TransformerConv(a, b),
}


class Model(HistoryGNN):
    normalise = "sum"

    def __init__(self, kind: str) -> None:
        super().__init__([8, 8])
        self.convs = ModuleList(PyGLayer(CONVS[kind](a, b)) for a, b in ((FEATURES, 8), (8, 8), (8, CLASSES)))

    def layer(self, layer: int, ctx: Any) -> Tensor:
        h = self.convs[layer](ctx)
        return h if layer == 2 else ctx.output(h)


def graph() -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 2, (2, 160), generator=g)  # two nodes are isolated
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(0, CLASSES, (NODES,), generator=g)
    return Graph.from_edges(edges, NODES, x=x, y=y, train_mask=torch.ones(NODES, dtype=torch.bool))


def engine(model: HistoryGNN, data: Graph) -> Engine:
    method = GAS(Config(dataset="graph", num_parts=4, batch_size=2), PTR, "cpu")
    assert isinstance(data.x, Tensor)
    return Engine(model, method, data.adjacency("sum"), data.x, History(NODES, model.history_dims))


def plain(model: Model, data: Graph) -> Tensor:
    """The layers on the whole graph, as a PyG user has them."""
    found = to_pyg(data)
    h = found.x
    for layer, conv in enumerate(model.convs):
        h = conv.conv(h, found.edge_index)
        h = h if layer == 2 else F.relu(h)
    return h


@pytest.mark.parametrize("kind", CONVS)
def test_equal_to_the_layer_on_the_whole_graph(kind: str) -> None:
    torch.manual_seed(0)
    model, data = Model(kind).eval(), graph()
    run = engine(model, data)
    expected = plain(model, data)
    torch.testing.assert_close(run.exact(), expected)
    run.fill()
    for batch in ClusterBatches(PTR, 2).epoch(0):  # with exact rows in the tables, a batch is exact
        torch.testing.assert_close(run.predict(batch, 1), expected[batch.rows])
    assert data.y is not None
    loss = F.cross_entropy(expected, data.y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    everyone = Batch(NODES, ranges=((0, NODES),))
    ours = run.gradients(everyone, 1, lambda logits: F.cross_entropy(logits, data.y))
    assert ours is not None
    torch.testing.assert_close(ours[0], truth)


def test_stale_rows_count(kind: str = "sage") -> None:
    torch.manual_seed(0)
    model, data = Model(kind).eval(), graph()
    run = engine(model, data)
    run.fill()
    run.history.tables[0].rows.mul_(2)
    batch = ClusterBatches(PTR, 2).batch([0, 1])
    assert not torch.allclose(run.predict(batch, 1), plain(model, data)[batch.rows])


def test_a_refresh_leaves_running_statistics() -> None:
    torch.manual_seed(0)
    model, data = Model("gin"), graph()
    run = engine(model, data)
    run.fill()
    before = [b.clone() for b in model.buffers()]
    run.refresh(ClusterBatches(PTR, 2).batch([0, 1]), 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    run.train(ClusterBatches(PTR, 2).batch([0, 1]), 1, lambda logits: logits.sum())
    assert not all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    assert model.convs[0].conv.training


def test_a_refresh_by_running_statistics() -> None:
    """Without dropout it is one in eval mode. The layer is in its mode again afterwards."""
    torch.manual_seed(0)
    model, data = Model("gin"), graph()
    batch, tables = ClusterBatches(PTR, 2).batch([0, 1]), []
    for options in (dict(running=True), dict(training=False), dict()):
        run = engine(model, data)
        run.fill()
        run.refresh(batch, 1, **options)
        tables.append(run.history.tables[-1].rows)
    assert torch.equal(tables[0], tables[1]) and not torch.allclose(tables[0], tables[2])
    assert all(module.training for module in model.modules())
    assert all(norm.track_running_stats for norm in model.modules() if isinstance(norm, BatchNorm1d))


def test_layers_that_need_the_degrees_of_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match=r"GCNConv normalises by the degrees of neighbours.*normalize=False"):
        PyGLayer(pyg.GCNConv(3, 4))
    PyGLayer(pyg.GCNConv(3, 4, normalize=False))
