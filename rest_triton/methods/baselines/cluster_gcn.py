"""Cluster-GCN (Chiang et al., 2019): batches of clusters, without the edges that leave a batch."""

from dataclasses import replace

import torch
from torch import Tensor

from ...data.csr import degree_scale
from ...nn.model import HistoryGNN
from ...ops import Adjacency, edges_inside
from ...sampling.batch import Batch
from ..engine import Engine
from ..gas import GAS


class ClusterGCN(GAS):
    """A batch is the subgraph of its clusters, normalised anew: degrees count the edges inside. Evaluation is of the graph.

    A model's own normalisation is used on the subgraph, so one batch of all nodes is full batch.
    """

    fills = False
    ahead = True

    def begin(self, engine: Engine, step: int) -> None:
        """There are no tables."""

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        return {}

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        adj, maps = engine.inputs.adj, engine.maps[engine.streams.current]
        with maps.enter(batch) as position:
            return replace(batch, adj=renormalised(adj, batch.rows, position), closed=True)


def renormalised(adj: Adjacency, rows: Tensor, position: Tensor) -> Adjacency:
    """The adjacency with the scales of the subgraph of ``rows``. position: the map with these rows entered."""
    if adj.row_scale is None:
        return adj
    root = adj.col_scale is not None
    rowptr, _ = edges_inside(adj, rows, position)
    scale = torch.zeros_like(adj.row_scale)
    scale[rows] = degree_scale(rowptr.cpu(), root=root).to(scale.device)
    both = scale if root else None
    reverse = None if adj.reverse is None else replace(adj.reverse, row_scale=both, col_scale=scale)
    return replace(adj, row_scale=scale, col_scale=both, reverse=reverse)
