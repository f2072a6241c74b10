"""PyG: an epoch's sampling by NeighborLoader, and training epochs of a GCN on what it samples."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from protocol import Counts, Round, serve
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCNConv
from torch_geometric.utils import trim_to_layer


def loader_of(given: SimpleNamespace, workers: int, **per_node: Tensor) -> NeighborLoader:
    target = torch.repeat_interleave(torch.arange(len(given.y)), given.rowptr.diff())
    data = Data(edge_index=torch.stack([given.col.long(), target]), num_nodes=len(given.y), **per_node)
    return NeighborLoader(
        data, given.fanouts, input_nodes=given.train, batch_size=given.batch_nodes, shuffle=True, is_sorted=True,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip


def sampling(given: SimpleNamespace, *, workers: int = 0) -> Round:
    loader = loader_of(given, workers)

    def run() -> Counts:
        counted = [(batch.num_edges, batch.num_nodes) for batch in loader]
        return dict(edges=sum(edges for edges, _ in counted), rows=sum(rows for _, rows in counted))

    return run


class GCN(nn.Module):
    """Self-loops are in the graph. trimmed: a layer computes only what the next ones read."""

    def __init__(self, widths: Sequence[int], dropout: float, trimmed: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(a, b, add_self_loops=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])
        self.dropout, self.trimmed = dropout, trimmed
        self.counted = dict(edges=0, rows=0)

    def forward(self, batch: Data) -> Tensor:
        x, edges = batch.x, batch.edge_index
        for layer, conv in enumerate(self.convs):
            if self.trimmed:
                x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            self.counted["edges"] += edges.shape[1]
            self.counted["rows"] += len(x)
            x = conv(x, edges)
            if layer < len(self.norms):
                x = F.dropout(F.relu(self.norms[layer](x)), self.dropout, self.training)
        return x[: batch.batch_size]


def training(given: SimpleNamespace, *, workers: int = 0, trimmed: bool = False) -> Round:
    loader = loader_of(given, workers, x=given.x, y=given.y)
    if trimmed and "num_sampled_nodes" not in next(iter(loader)):
        raise ImportError("trim_to_layer needs pyg-lib: torch-sparse does not count the nodes of a hop")
    model = GCN([given.x.shape[1], *[given.hidden] * (len(given.fanouts) - 1), given.classes], given.dropout, trimmed)
    optimizer = torch.optim.Adam(model.parameters(), lr=given.lr)

    def run() -> Counts:
        model.counted = dict(edges=0, rows=0)
        for batch in loader:
            loss = F.cross_entropy(model(batch), batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return model.counted

    return run


if __name__ == "__main__":
    serve({
        "sampling": sampling,
        "sampling, 2 workers": partial(sampling, workers=2),
        "epoch": training,
        "epoch, 2 workers": partial(training, workers=2),
        "epoch, trimmed": partial(training, trimmed=True),
    })  # fmt: skip
