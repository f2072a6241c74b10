"""Batches whose layers compute different rows: the exact L-hop neighbourhood of some targets, without tables."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.methods.baselines.full import Full
from rest_triton.methods.engine import Engine
from rest_triton.methods.loss import mean_loss
from rest_triton.nn import APPNP, GCN, GCNII, HistoryGNN
from rest_triton.ops import Adjacency, halo
from rest_triton.sampling.batch import Batch

NODES, FEATURES, CLASSES = 60, 7, 4
MODELS: dict[str, Callable[[], HistoryGNN]] = {
    "gcn": lambda: GCN(FEATURES, 8, CLASSES, 3),
    "gcn-residual": lambda: GCN(FEATURES, 8, CLASSES, 3, residual=True),
    "gcn-linear": lambda: GCN(FEATURES, 8, CLASSES, 2, linear=True),
    "appnp": lambda: APPNP(FEATURES, 8, CLASSES, 3),
    "gcnii": lambda: GCNII(FEATURES, 8, CLASSES, 3, shared_weights=False, residual=True),
}


def graph(directed: bool) -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 2, (2, 90), generator=g)
    x, y = torch.randn(NODES, FEATURES, generator=g), torch.randint(0, CLASSES, (NODES,), generator=g)
    return Graph.from_edges(edges, NODES, symmetrise=not directed, x=x, y=y, train_mask=torch.rand(NODES, generator=g) < 0.5)


def field(adj: Adjacency, targets: Tensor, layers: int) -> Batch:
    """The targets, then what each layer reads of them, with its number of rows."""
    rows, counts = targets, [targets.numel()]
    for _ in range(layers):
        rows = torch.cat([rows, halo(adj, rows)])
        counts.append(rows.numel())
    return Batch(NODES, nodes=rows, counts=tuple(reversed(counts)))


def engine(model: HistoryGNN, data: Graph, adj: Adjacency | None = None) -> Engine:
    method = Full(Config(dataset="graph", method="full"), torch.tensor([0, NODES]), "cpu")
    assert isinstance(data.x, Tensor)
    return Engine(model, method, data.adjacency("gcn") if adj is None else adj, data.x, History(NODES, []), seed=3)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_the_gradient_of_an_exact_neighbourhood_is_that_of_the_whole_graph(kind: str, directed: bool) -> None:
    torch.manual_seed(1)
    model, data = MODELS[kind](), graph(directed)
    run = engine(model, data)
    targets = torch.tensor([41, 3, 17, 22, 58])
    batch = field(run.inputs.adj, targets, model.num_layers)
    assert batch.counts is not None and batch.counts[0] > batch.counts[1] > batch.counts[-1] == 5 and len(batch) < NODES
    assert data.y is not None
    y = data.y[targets]
    ours = run.gradients(batch, 1, lambda logits: F.cross_entropy(logits, y))
    everyone = Batch(NODES, ranges=((0, NODES),))
    exact = run.gradients(everyone, 1, lambda logits: F.cross_entropy(logits[targets], y))
    assert ours is not None and exact is not None
    torch.testing.assert_close(ours[1], exact[1][targets])
    torch.testing.assert_close(ours[0], exact[0])


def test_position_maps_are_restored() -> None:
    model, data = MODELS["gcnii"](), graph(True)
    run = engine(model, data)
    run.train(field(run.inputs.adj, torch.arange(4), 3), 1, lambda logits: logits.sum())
    for position in run.maps["compute"]._free:
        assert torch.equal(position, ~torch.arange(NODES, dtype=torch.int32))


def test_a_batch_can_have_an_adjacency_of_its_own() -> None:
    """Edges inside the batch alone, renormalised, as in Cluster-GCN: other nodes have no effect."""
    torch.manual_seed(1)
    model, data = MODELS["gcn"](), graph(False)
    run = engine(model, data)
    inside = torch.arange(20)
    row = torch.repeat_interleave(torch.arange(NODES), data.degree)
    kept = (row < 20) & (data.col < 20)
    cut = Graph.from_edges(torch.stack([data.col[kept].long(), row[kept]]), NODES, x=data.x).adjacency("gcn")
    assert isinstance(data.x, Tensor)
    alone = data.x.clone()
    alone[20:] = 1e6
    results = []
    for x in (data.x, alone):
        run.inputs.features.rows = x
        results.append(run.predict(Batch(NODES, nodes=inside, adj=cut), 1))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert not torch.allclose(results[0], run.predict(Batch(NODES, nodes=inside), 1))


def test_a_weighted_loss() -> None:
    data = graph(False)
    assert data.train_mask is not None and data.y is not None
    nodes, weight, logits = torch.arange(30), torch.rand(30), torch.randn(30, CLASSES)
    found = mean_loss(data, Batch(NODES, nodes=nodes, weight=weight), torch.device("cpu"))(logits)
    chosen = data.train_mask[:30]
    expected = (weight * F.cross_entropy(logits, data.y[:30], reduction="none"))[chosen].sum()
    assert found is not None
    torch.testing.assert_close(found, expected)
