"""Cluster-GCN by PyG's own classes: what epochs of ``cluster`` are compared with."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader
from torch_geometric.nn import GCNConv

from rest_triton.data.graph import Graph

from .pygas_models import GCN


class Clusters(ClusterData):  # type: ignore[misc]
    """PyG's clusters of a graph, with bounds that are given instead of PyG's METIS.

    Args:
        graph: with clusters side by side. ptr: int64[K+1], their bounds.
    """

    def __init__(self, graph: Graph, ptr: Tensor) -> None:
        self.bounds = ptr
        target = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
        data = Data(torch.as_tensor(graph.x), torch.stack([graph.col.long(), target]), y=graph.y)
        data.train_mask, data.n_id = graph.train_mask, torch.arange(graph.num_nodes)
        super().__init__(data, len(ptr) - 1, log=False)

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.num_parts), self.bounds.diff())


class ClusterGCN:
    """Trains a GCN on PyG's batches of clusters.

    Args:
        clusters: of the training. batch_size: clusters in a batch. lr: of Adam. model: its weights, norms, dropout are used.
    """

    def __init__(self, clusters: Clusters, batch_size: int, model: GCN, lr: float) -> None:
        self.loader, self.model = ClusterLoader(clusters, batch_size=batch_size, shuffle=True), model
        self.convs = torch.nn.ModuleList(GCNConv(c.lin.in_features, c.lin.out_features) for c in model.convs)  # type: ignore
        self.convs.load_state_dict(model.convs.state_dict())
        self.optimizer = torch.optim.Adam([*self.convs.parameters(), *model.bns.parameters()], lr=lr, fused=True)

    def logits(self, batch: Any) -> Tensor:
        x: Tensor = batch.x
        for layer, conv in enumerate(self.convs):
            x = conv(x, batch.edge_index)
            if layer < len(self.convs) - 1:
                x = F.dropout(self.model.activate(layer, x), self.model.dropout, self.model.training)
        return x

    def epoch(self, number: int) -> list[float]:
        """One step for each batch; the losses. number: ignored, each epoch draws anew."""
        return [self.step(batch) for batch in self.loader]

    def step(self, batch: Any) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.logits(batch)[batch.train_mask], batch.y[batch.train_mask])
        loss.backward()
        self.optimizer.step()
        return loss.item()
