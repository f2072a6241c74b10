"""GraphSAINT: what the samplers draw, and that the weights make aggregates and loss unbiased."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.kernels._hash import mix64
from rest_triton.methods.baselines.cluster_gcn import subgraph
from rest_triton.methods.baselines.saint import COUNTED, SAINT, NodeSAINT
from rest_triton.ops import debug, history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.utils.errors import UserError

from ..history.runs import FEATURES, NODES, PTR, Run
from .unbiased import unbiased

METHODS = ["saint-node", "saint-edge", "saint-walk"]
MODELS = ["gcn", "gcn-linear", "gcn-norm", "appnp", "gcnii", "gin"]
SIZE = {"saint-node": 60, "saint-edge": 15, "saint-walk": 10}


def made(method: str, model: str = "gcn", **more: Any) -> tuple[Run, SAINT]:
    run = Run(model, **(dict(method=method, subgraph_nodes=SIZE[method], walk_length=3, coverage=5.0) | more))
    assert isinstance(run.trainer.method, SAINT)
    return run, run.trainer.method


def drawn(method: SAINT, draws: int) -> Tensor:
    """bool [draws, N]: the nodes of subgraphs."""
    found = torch.zeros(draws, NODES, dtype=torch.bool)
    for seed in range(draws):
        found[seed, method._nodes(seed)] = True
    return found


def edges(run: Run) -> tuple[Tensor, Tensor]:
    """(sources, targets) of the adjacency."""
    adj = run.data.adj
    return adj.col.long(), torch.repeat_interleave(torch.arange(NODES), adj.rowptr.diff())


def avoids(run: Run, nodes: list[int]) -> float:
    """The probability that one draw of a sampler has none of these nodes, by its definition on dense matrices.

    All are walks: from a node by degree, of no step; from a uniform node, of one step, which is an edge by 1 / degree of its
    ends; and from a training node.
    """
    name, of = run.config.method, run.graph.without_self_loops()
    step = torch.zeros(NODES, NODES, dtype=torch.float64)
    target = torch.repeat_interleave(torch.arange(NODES), of.degree)
    step.index_put_((target, of.col.long()), (1 / of.degree.double())[target], accumulate=True)
    step.diagonal().add_((of.degree == 0).double())
    assert run.graph.train_mask is not None
    roots, steps = {
        "saint-node": (run.data.adj.rowptr.diff(), 0),
        "saint-edge": (torch.ones(NODES), 1),
        "saint-walk": (run.graph.train_mask, run.config.walk_length),
    }[name]
    at = roots.double() / roots.sum()
    at[nodes] = 0
    for _ in range(steps):
        at = at @ step
        at[nodes] = 0
    return float(at.sum())


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_drawn(method: str, directed: bool) -> None:
    """How often 2000 subgraphs hold each node, and each edge, against exact probabilities; and against uniform ones."""
    run, saint = made(method, directed=directed)
    found, (source, target) = drawn(saint, 2000), edges(run)
    size = run.config.subgraph_nodes
    none = torch.tensor([avoids(run, [v]) for v in range(NODES)], dtype=torch.float64) ** size
    assert unbiased(found, 1 - none)
    pairs = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:300]
    u, v = source[pairs], target[pairs]
    neither = torch.tensor([avoids(run, list(ends)) for ends in zip(u.tolist(), v.tolist(), strict=True)]) ** size
    assert unbiased(found[:, u] & found[:, v], 1 - none[u] - none[v] + neither)
    reached = none < 1 - 1e-9  # walks from training nodes do not reach the others
    share = found[:, reached].double().mean()
    assert not unbiased(found[:, reached], share.expand(int(reached.sum())))


def test_an_edge_is_drawn_by_the_degrees_of_its_ends() -> None:
    """The paper's probability, 1 / deg(u) + 1 / deg(v), of one draw."""
    run, saint = made("saint-edge", subgraph_nodes=200_000)
    of = run.graph.without_self_loops()
    both = saint.sample(torch.Generator().manual_seed(0)).view(2, -1).sort(0).values
    both = both[:, both[0] != both[1]]  # isolated nodes are drawn alone
    count = torch.zeros(NODES, NODES).index_put_((both[0], both[1]), torch.ones(both.shape[1]), accumulate=True)
    u = torch.repeat_interleave(torch.arange(NODES), of.degree)
    weight = torch.zeros(NODES, NODES).index_put_((u, of.col.long()), 1 / of.degree.float()[u], accumulate=True)
    expected = (weight + weight.T).triu(1)
    expected *= both.shape[1] / expected.sum()
    assert bool((count[expected == 0] == 0).all())
    z = ((count - expected) / expected.sqrt())[expected > 0]
    assert float(z.abs().max()) < 5 and float(z.square().mean().sqrt()) < 1.25


@pytest.mark.parametrize("directed", [False, True])
def test_walks_follow_edges(directed: bool) -> None:
    run, saint = made("saint-walk", directed=directed)
    walks = saint.sample(torch.Generator().manual_seed(0)).view(4, -1)
    of = run.graph
    assert of.train_mask is not None and bool(of.train_mask[walks[0]].all())
    for a, b in zip(walks[:-1].flatten().tolist(), walks[1:].flatten().tolist(), strict=True):
        others = set(of.col[of.rowptr[a] : of.rowptr[a + 1]].tolist()) - {a}
        assert b in others or (b == a and not others)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_pygs(method: str) -> None:
    """Of GraphSAINTSampler, from the same subgraphs: ``node_norm`` and ``edge_norm``, here written plainly."""
    run, saint = made(method, coverage=25.0)
    source, target = edges(run)
    of_node, of_edge, count = torch.zeros(NODES), torch.zeros(len(source)), 0
    while of_node.sum() < 25 * NODES:
        inside = torch.zeros(NODES, dtype=torch.bool)
        inside[saint._nodes(mix64(run.config.seed + COUNTED) + count)] = True
        of_node += inside
        of_edge += inside[source] & inside[target]
        count += 1
    node_norm = count / of_node / NODES
    edge_norm = of_node[target] / of_edge
    assert run.graph.train_mask is not None and saint.adj.edge_weight is not None
    seen, both = of_node > 0, of_edge > 0
    assert int(both.sum()) > 0.9 * len(source)
    torch.testing.assert_close(saint.weight[seen] * run.graph.train_mask.sum() / NODES, node_norm[seen])
    torch.testing.assert_close(saint.adj.edge_weight[both], edge_norm[both])
    assert bool(torch.isfinite(saint.weight).all()) and bool(torch.isfinite(saint.adj.edge_weight).all())
    assert len(saint.batches(1)) == -(-NODES // int(of_node.sum() / count))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_aggregates_and_loss_are_unbiased(method: str, directed: bool) -> None:
    """The mean of 400 subgraphs, weighted by counts in ten times as many or more. Without weights it is not exact."""
    run, saint = made(method, directed=directed, coverage=1200.0)
    h = torch.rand(NODES, FEATURES, generator=torch.Generator().manual_seed(1))
    often = drawn(saint, 200).float().mean(0) > 0.1
    assert run.graph.train_mask is not None
    training = run.graph.train_mask
    draws, position = [], torch.full((NODES,), -1, dtype=torch.int32)
    for seed in range(400):
        batch = saint.draw(seed)
        rows = batch.rows
        position[rows] = torch.arange(len(rows), dtype=torch.int32)
        assert batch.weight is not None
        each = []
        for adj, weight in ((saint.adj, batch.weight), (run.data.adj, batch.weight), (saint.adj, torch.ones(len(rows)))):
            found = torch.zeros(NODES, FEATURES)
            found[rows] = history_spmm(adj, rows, position, h[rows], None) * (weight * training.sum()).unsqueeze(1)
            each.append(found)
        losses = torch.zeros(NODES)
        losses[rows] = batch.weight
        draws.append((*each, losses))
        position[rows] = -1
    aggregates, no_edge_weights, no_node_weights, losses = (torch.stack(of) for of in zip(*draws, strict=True))
    exact = history_spmm(run.data.adj, torch.arange(NODES), run.engine.inputs.outside(), None, h)
    assert int(often.sum()) > 60
    assert unbiased(aggregates[:, often], exact[often])
    assert not unbiased(no_edge_weights[:, often], exact[often])
    assert not unbiased(no_node_weights[:, often], exact[often])
    of_nodes = torch.randn(NODES, 200, generator=torch.Generator().manual_seed(2)) * (training & often).unsqueeze(1)
    assert unbiased(losses @ of_nodes, of_nodes.sum(0) / training.sum())
    plain = (losses > 0).float()
    plain = plain / (plain * training).sum(1, keepdim=True).clamp(min=1)
    assert not unbiased(plain @ of_nodes, of_nodes.sum(0) / training.sum())


@pytest.mark.parametrize("coverage", [25.0, 0.0])
@pytest.mark.parametrize("model", MODELS)
def test_a_sampler_that_returns_everyone_is_full_batch_training(
    model: str, coverage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeSAINT, "sample", lambda self, generator: torch.arange(NODES))
    run, saint = made("saint-node", model, edge_dropout=0.2, coverage=coverage)
    assert len(saint.batches(1)) == 1
    if coverage:
        assert saint.adj.edge_weight is not None and bool((saint.adj.edge_weight == 1).all())
    full = Run(model, method="full", edge_dropout=0.2)
    torch.testing.assert_close(run.losses(6), full.losses(6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_without_weights_a_batch_is_that_of_cluster_gcn(method: str) -> None:
    """The subgraph is normalised by the degrees inside, and the loss is the mean of its training nodes."""
    run, saint = made(method, coverage=0.0)
    batch = saint.prepare(run.engine, saint.batches(1)[0], 1)
    other = subgraph(run.engine, Batch(NODES, nodes=batch.rows))
    assert batch.weight is None and batch.closed and batch.adj is not None and other.adj is not None
    assert torch.equal(batch.adj.row_scale, other.adj.row_scale) and batch.adj.edge_weight is None
    assert not torch.equal(batch.adj.row_scale, run.engine.inputs.adj.row_scale)
    sizes = [len(batch) for epoch in range(1, 6) for batch in saint.batches(epoch)]
    assert len(saint.batches(1)) == pytest.approx(NODES / (sum(sizes) / len(sizes)), abs=1.5)


@pytest.mark.parametrize("coverage", [25.0, 0.0])
@pytest.mark.parametrize("model", MODELS)
def test_nodes_outside_have_no_effect(model: str, coverage: float) -> None:
    found = []
    for poisoned in (False, True):
        run, saint = made("saint-walk", model, coverage=coverage)
        batch = saint.prepare(run.engine, saint.batches(1)[0], 1)
        outside = torch.ones(NODES, dtype=torch.bool)
        outside[batch.rows] = False
        if poisoned:
            run.engine.inputs.features.rows[outside] = torch.nan
        with debug():  # which refuses positions beyond the rows that are there
            loss = run.engine.train(batch, 1, lambda logits: logits.square().sum())
        assert loss is not None and bool(torch.isfinite(loss)) and bool(outside.any())
        found.append([loss, *(p.grad for p in run.model.parameters() if p.grad is not None)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("method", METHODS)
def test_subgraphs_depend_on_seed_epoch_and_number(method: str) -> None:
    (_, saint), (_, other), (_, third) = (made(method, seed=seed) for seed in (0, 0, 1))
    epochs = [[batch.rows.tolist() for batch in of.batches(e)] for of in (saint, other, third) for e in (1, 2)]
    assert epochs[:2] == epochs[2:4]
    assert len({tuple(rows) for epoch in epochs[:2] + epochs[4:] for rows in epoch}) == sum(
        map(len, epochs[:2] + epochs[4:])
    )
    assert torch.equal(saint.weight, other.weight) and not torch.equal(saint.weight, third.weight)
    assert [batch.rows.tolist() for batch in saint.batches(1)[1:]] == epochs[0][1:]
    assert len(made(method, max_steps=1, accumulate=2)[1].batches(1)) == 2
    assert sorted(node for batch in saint.cover() for node in batch.rows.tolist()) == list(range(NODES))


@pytest.mark.parametrize("coverage", [50.0, 0.0])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_it_learns_and_is_evaluated_exactly(model: str, method: str, coverage: float) -> None:
    run, _ = made(method, model, dropout=0.0, lr=0.05, subgraph_nodes=100, coverage=coverage)
    losses = run.losses(60)
    assert sum(losses[-9:]) < 0.9 * sum(losses[:9]) and run.history.all_tables == []
    full = Run(model, method="full", dropout=0.0)
    full.model.load_state_dict(run.model.state_dict())
    assert torch.equal(run.engine.exact(), full.engine.exact())


def test_a_subgraph_without_training_nodes_changes_no_weight() -> None:
    run, saint = made("saint-node")
    assert run.graph.train_mask is not None
    nodes = torch.nonzero(~run.graph.train_mask).flatten()
    before = [p.clone() for p in run.model.parameters()]
    assert run.trainer.update([Batch(NODES, nodes=nodes, closed=True, weight=saint.weight[nodes])]) == []
    assert all(map(torch.equal, run.model.parameters(), before))


@pytest.mark.parametrize("method", METHODS)
def test_what_is_refused(method: str) -> None:
    for options, message in (
        (dict(method=f"{method}+rest"), f"method is '{method}+rest', but {method} has no tables to refresh"),
        (dict(model="gat"), f"method is {method}, but model gat does not sum over neighbours; give --method gas, or"),
        (dict(subgraph_nodes=0), "subgraph_nodes is 0; it must be at least 1"),
        (dict(walk_length=0), "walk_length is 0; it must be at least 1"),
        (dict(coverage=-0.5), "coverage is -0.5; it must be at least 0"),
    ):
        with pytest.raises(UserError) as refusal:
            Config(**(dict(dataset="cora", method=method) | options))
        assert str(refusal.value).startswith(message)
    with pytest.raises(ValueError, match=f"{method} weighs training nodes: make it with a graph that has some"):
        NodeSAINT(Config(dataset="small", method=method), PTR, "cpu")
