"""SGC (Wu et al., 2019): features are aggregated once, then a linear model is trained on their rows."""

import torch

from ...data.features import dense
from ...nn.features import Features, NodeRows
from ...ops import Adjacency, history_spmm
from ...sampling.batch import Batch
from ..engine import Engine
from .sage import SAGE


class SGC(SAGE):
    """Softmax regression on ``A^K x``, for ``K = num_layers``. Training reads no edge.

    The model is a GCN of one layer on ``A^(K-1) x``: its first aggregate is computed once for the whole graph.
    """

    layers = 1

    def bind(self, adj: Adjacency, x: NodeRows) -> NodeRows:
        assert not isinstance(x, Features), "sgc has its features on the device"
        x = dense(x)  # aggregates have the nonzeros of all neighbours
        nodes = torch.arange(adj.num_nodes, device=x.device)
        outside = ~nodes.int()
        for _ in range(self.config.num_layers - 1):
            x = history_spmm(adj, nodes, outside, None, x)
        return x

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        return batch
