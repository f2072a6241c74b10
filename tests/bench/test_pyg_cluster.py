"""PyG's Cluster-GCN in the benchmark computes what ``cluster`` computes, from the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import bench_epoch
from bench.harness import Bench
from bench.pyg_cluster import ClusterGCN, Clusters
from bench.pygas_models import GCN
from rest_triton.data.clusters import load_data
from rest_triton.training.trainer import Trainer


@pytest.mark.parametrize("batch_size", [5, 40])
def test_results_are_ours(tmp_path: Path, batch_size: int) -> None:
    bench = Bench(None, True, "", str(tmp_path), torch.device("cpu"))
    config = bench_epoch.settings("gcn", bench, batch_size, method="cluster", dropout=0.0)
    ours, (graph, ptr) = Trainer(config, load_data(config)), bench_epoch.clustered(config)
    model = bench_epoch.network(GCN, config, graph, ours.model)
    theirs = ClusterGCN(Clusters(graph, ptr), config.batch_size, model, config.lr)
    cluster_of, batches = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff()), list[Any](theirs.loader)
    assert len(batches) == -(-config.num_parts // config.batch_size)
    for batch in batches:
        of = ours.method.refresh_batches(1, 0).batch(cluster_of[batch.n_id].unique().tolist())
        prepared = ours.method.prepare(ours.engine, of, 1)
        found = ours.engine.gradients(prepared, 1, lambda logits: logits.sum(), training=True)
        assert found is not None
        results = torch.empty(graph.num_nodes, graph.num_classes or 0)
        results[of.rows] = found[1]
        logits: Tensor = theirs.logits(batch)
        torch.testing.assert_close(logits, results[batch.n_id], rtol=1e-4, atol=1e-5)
    assert len(theirs.epoch(1)) == len(batches)
