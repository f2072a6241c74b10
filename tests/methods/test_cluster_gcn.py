"""Cluster-GCN: a batch is a graph of its own, normalised by its own degrees."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import ClusterLoader
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import subgraph

from bench.pyg_cluster import Clusters
from rest_triton.config import Config
from rest_triton.data.graph import Graph
from rest_triton.history.history import History
from rest_triton.methods.baselines.full import Full
from rest_triton.methods.engine import Engine
from rest_triton.ops import debug, edges_inside, history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.utils.errors import UserError

from ..history.runs import MODELS, NODES, PTR, Run, same_results

CLUSTER: dict[str, Any] = dict(method="cluster")


def inside(run: Run, batch: Batch) -> Tensor:
    """int64 [2, E]: the edges inside of a batch, relabelled, by PyG."""
    of: Graph = run.graph
    edges = torch.stack([of.col.long(), torch.repeat_interleave(torch.arange(NODES), of.degree)])
    return subgraph(batch.rows, edges, relabel_nodes=True, num_nodes=NODES)[0]


def prepared(run: Run, *clusters: int) -> Batch:
    return run.trainer.method.prepare(run.engine, run.batch(*clusters), 1)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_all_clusters_in_a_batch_are_full_batch_training(model: str, directed: bool) -> None:
    """Bitwise, with dropout."""
    options: dict[str, Any] = dict(directed=directed, edge_dropout=0.2 if model != "gat" else 0.0)
    ours, full = Run(model, **CLUSTER, batch_size=6, **options), Run(model, method="full", **options)
    assert ours.losses(4) == full.losses(4) and same_results(ours, full)


@pytest.mark.parametrize("edge_dropout", [0.0, 0.3])
@pytest.mark.parametrize("model", MODELS)
def test_nodes_outside_have_no_effect(model: str, edge_dropout: float) -> None:
    """Their features are NaN. One row of a batch is enough to find a layer that reads them."""
    if model == "gat" and edge_dropout:
        return
    found = []
    for poisoned in (False, True):
        run = Run(model, **CLUSTER, edge_dropout=edge_dropout)
        batch = prepared(run, 1, 4)
        outside = torch.ones(NODES, dtype=torch.bool)
        outside[batch.rows] = False
        if poisoned:
            run.engine.inputs.features.rows[outside] = torch.nan
        with debug():  # which refuses positions beyond the rows that are there
            loss = run.engine.train(batch, 1, lambda logits: logits.square().sum())
        assert loss is not None and bool(torch.isfinite(loss))
        gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
        found.append([loss, run.engine.predict(batch, 1), *gradients])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("directed", [False, True])
def test_degrees_are_those_inside(directed: bool) -> None:
    run = Run("gcn", **CLUSTER, directed=directed)
    batch = prepared(run, 0, 3)
    rows, count = batch.rows, len(batch)
    edges, weight = gcn_norm(inside(run, batch), None, count, flow="source_to_target")
    expected = torch.zeros(count, count).index_put_((edges[1], edges[0]), weight, accumulate=True)
    position = torch.full((NODES,), -1, dtype=torch.int32)
    position[rows] = torch.arange(count, dtype=torch.int32)
    assert batch.adj is not None and batch.closed
    found = history_spmm(batch.adj, rows, position, torch.eye(count), None)
    torch.testing.assert_close(found, expected)
    whole = history_spmm(run.data.adj, rows, position, torch.eye(count), None)
    assert not torch.allclose(found, whole)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("model", ["gcn", "gcn-linear", "gcn-norm", "appnp", "gcnii", "gin", "gat"])
def test_a_batch_is_a_graph_of_its_own(model: str, directed: bool) -> None:
    """Its results are those of full batch on the subgraph that PyG cuts out."""
    run = Run(model, **CLUSTER, directed=directed)
    batch = prepared(run, 2, 5)
    assert isinstance(run.graph.x, Tensor)
    alone = Graph.from_edges(inside(run, batch), len(batch), x=run.graph.x[batch.rows])
    method = Full(run.config.changed(method="full"), torch.tensor([0, len(batch)]), "cpu")
    assert isinstance(alone.x, Tensor)
    engine = Engine(run.model, method, alone.adjacency(run.model.normalise), alone.x, History(len(batch), []))
    run.model.eval()
    torch.testing.assert_close(run.engine.predict(batch, 1), engine.predict(method.batches(0)[0], 1), rtol=1e-5, atol=1e-5)


def test_batches_are_of_clusters_and_every_node_is_in_one() -> None:
    """As ClusterLoader's: clusters in random order, joined; METIS is that of GAS."""
    run, gas = Run("gcn", **CLUSTER), Run("gcn", method="gas")
    for epoch in (1, 2):
        ours = [batch.rows.tolist() for batch in run.trainer.method.batches(epoch)]
        assert ours == [batch.rows.tolist() for batch in gas.trainer.method.batches(epoch)]
        assert sorted(node for rows in ours for node in rows) == list(range(NODES))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("directed", [False, True])
def test_batches_are_those_of_pygs_cluster_loader(directed: bool, size: int) -> None:
    """The same nodes and the same edges between them, for the clusters that PyG draws. The last batch may be smaller."""
    run = Run("gcn", **CLUSTER, directed=directed)
    adj, cluster_of = run.data.adj, torch.repeat_interleave(torch.arange(6), PTR.diff())
    torch.manual_seed(0)
    drawn = []
    for theirs in ClusterLoader(Clusters(run.graph, PTR), batch_size=size, shuffle=True):
        clusters = cluster_of[theirs.n_id].unique().tolist()
        batch = prepared(run, *clusters)
        assert batch.rows.tolist() == sorted(theirs.n_id.tolist())
        position = torch.full((NODES,), -1, dtype=torch.int32)
        position[batch.rows] = torch.arange(len(batch), dtype=torch.int32)
        rowptr, edge = edges_inside(adj, batch.rows, position)
        ours = torch.stack([adj.col[edge].long(), torch.repeat_interleave(batch.rows, rowptr.diff())])
        ours = ours[:, ours[0] != ours[1]]  # the loops of the normalisation, which PyG's layer adds
        edges = theirs.n_id[theirs.edge_index]
        edges = edges[:, edges[0] != edges[1]]
        assert sorted(ours.T.tolist()) == sorted(edges.T.tolist()) and edges.numel() > 0
        drawn += clusters
    assert sorted(drawn) == list(range(6))


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_it_learns_and_is_evaluated_exactly(model: str) -> None:
    run = Run(model, **CLUSTER, dropout=0.0, lr=0.05)
    losses = run.losses(60)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6]) and run.history.all_tables == []
    full = Run(model, method="full", dropout=0.0)
    full.model.load_state_dict(run.model.state_dict())
    assert torch.equal(run.engine.exact(), full.engine.exact())
    assert run.trainer.evaluate() == full.trainer.evaluate()


def test_a_refresh_is_refused() -> None:
    with pytest.raises(UserError, match=r"method is 'cluster\+rest', but cluster has no tables to refresh; give --method"):
        Config(dataset="cora", method="cluster+rest")
