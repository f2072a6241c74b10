"""GAT, GIN and PNA: equal to PyG's layers, or to plain torch, on the whole graph; and with exact tables."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.convert import to_pyg
from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.methods.engine import Engine
from rest_triton.methods.gas import GAS
from rest_triton.nn import GAT, GIN, PNA, HistoryGNN
from rest_triton.sampling.batch import Batch, ClusterBatches

pyg = pytest.importorskip("torch_geometric.nn")

NODES, FEATURES, CLASSES, LAYERS = 70, 6, 3, 3
PTR = torch.tensor([0, 20, 41, 55, NODES])


def graph(directed: bool) -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 2, (2, 160), generator=g)  # two nodes are isolated
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(0, CLASSES, (NODES,), generator=g)
    mask = torch.ones(NODES, dtype=torch.bool)
    return Graph.from_edges(edges, NODES, symmetrise=not directed, x=x, y=y, train_mask=mask)


def engine(model: HistoryGNN, data: Graph) -> Engine:
    method = GAS(Config(dataset="graph", num_parts=4, batch_size=2), PTR, "cpu")
    assert isinstance(data.x, Tensor)
    adj = data.adjacency(model.normalise)
    return Engine(model, method, adj, data.x, History(NODES, model.history_dims), seed=5)


def gat(model: Any, data: Graph) -> Tensor:
    found = to_pyg(data)
    h = found.x
    for layer, ours in enumerate(model.convs):
        conv = pyg.GATConv(h.shape[1], ours.lin.out_features // ours.heads, heads=ours.heads)
        state = dict(ours.state_dict())
        conv.load_state_dict(state)
        for name in state:  # the parameters themselves, so that gradients reach the model
            owner = conv.lin if name == "lin.weight" else conv
            del owner._parameters[name.removeprefix("lin.")]
            setattr(owner, name.removeprefix("lin."), ours.lin.weight if owner is conv.lin else getattr(ours, name))
        h = conv(h, found.edge_index)
        h = h if layer == LAYERS - 1 else F.elu(h)
    return h


def gin(model: Any, data: Graph) -> Tensor:
    found = to_pyg(data)
    source, target = found.edge_index
    h = found.x
    for layer in range(LAYERS):
        z = (1 + model.eps[layer]) * h + torch.zeros_like(h).index_add(0, target, h[source])
        h = model.second[layer](F.relu(model.first[layer](z)))
        h = h if layer == LAYERS - 1 else F.relu(h)
    return h


def pna(model: Any, data: Graph) -> Tensor:
    found = to_pyg(data)
    source, target = found.edge_index
    degree = torch.bincount(target, minlength=NODES).clamp_min(1)
    scale = ((degree + 1).log() / (degree + 1).log().mean())[:, None]
    h = found.x
    for layer in range(LAYERS):
        rows = []
        for node in range(NODES):
            near = h[source[target == node]]
            if len(near) == 0:
                none = torch.zeros(h.shape[1])
                rows.append(torch.cat([none, none, none, torch.full((h.shape[1],), 1e-5).sqrt()]))
                continue
            deviation = ((near * near).mean(0) - near.mean(0) ** 2).relu() + 1e-5
            rows.append(torch.cat([near.mean(0), near.amin(0), near.amax(0), deviation.sqrt()]))
        z = torch.stack(rows)
        h = model.lins[layer](torch.cat([h, z, scale * z, z / scale], 1))
        h = h if layer == LAYERS - 1 else F.relu(h)
    return h


KINDS: dict[str, tuple[Callable[[], HistoryGNN], Callable[[Any, Graph], Tensor]]] = {
    "gat": (lambda: GAT(FEATURES, 8, CLASSES, LAYERS, heads=2), gat),
    "gin": (lambda: GIN(FEATURES, 8, CLASSES, LAYERS), gin),
    "pna": (lambda: PNA(FEATURES, 8, CLASSES, LAYERS), pna),
}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_whole_graph(kind: str, directed: bool) -> None:
    torch.manual_seed(0)
    make, plain = KINDS[kind]
    model, data = make(), graph(directed)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1 if kind == "pna" else 0.4)  # PNA sums 13 times as many products
    run = engine(model, data)
    expected = plain(model, data)
    torch.testing.assert_close(run.exact(), expected, rtol=1e-4, atol=1e-4)
    run.fill()
    for batch in ClusterBatches(PTR, 2).epoch(0):  # with exact rows in the tables, a batch is exact
        torch.testing.assert_close(run.predict(batch, 1), expected[batch.rows], rtol=1e-4, atol=1e-4)
    assert data.y is not None
    y, parameters = data.y, list(model.parameters())
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(F.cross_entropy(expected, y), parameters)])
    everyone = Batch(NODES, ranges=((0, NODES),))
    ours = run.gradients(everyone, 1, lambda logits: F.cross_entropy(logits, y))
    assert ours is not None
    torch.testing.assert_close(ours[0], truth, rtol=1e-3, atol=1e-4)


def test_the_halo_gives_gradients_to_the_weights_of_gat() -> None:
    """One layer: the gradient of a batch is that of its loss on the whole graph, by way of the halo's rows, too."""
    torch.manual_seed(0)
    model, data = GAT(FEATURES, 8, CLASSES, 1), graph(True)
    run = engine(model, data)
    batch = ClusterBatches(PTR, 2).batch([1, 2])
    assert data.y is not None and batch.halo(run.inputs.adj).numel() > 0
    y = data.y
    ours = run.gradients(batch, 1, lambda logits: F.cross_entropy(logits, y[batch.rows]))
    everyone = Batch(NODES, ranges=((0, NODES),))
    truth = run.gradients(everyone, 1, lambda logits: F.cross_entropy(logits[batch.rows], y[batch.rows]))
    assert ours is not None and truth is not None
    torch.testing.assert_close(ours[0], truth[0])


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads is 3; it must divide hidden_channels, 8"):
        GAT(4, 8, 2, 2, heads=3)
