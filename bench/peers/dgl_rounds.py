"""DGL: an epoch's sampling by NeighborSampler, and training epochs of a GCN on its blocks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import dgl
import psutil
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.nn import GraphConv
from protocol import Counts, Round, serve
from torch import Tensor, nn


def graph_of(given: SimpleNamespace, narrow: bool) -> dgl.DGLGraph:
    """narrow: with int32 instead of int64 ids."""
    kind = torch.int32 if narrow else torch.int64
    arrays = given.rowptr.to(kind), given.col.to(kind), torch.empty(0, dtype=kind)
    return dgl.graph(("csc", arrays), num_nodes=len(given.y), idtype=kind).formats("csc")


def loader_of(
    given: SimpleNamespace, graph: dgl.DGLGraph, fanouts: Sequence[int], worker: bool, **fetched: list[str]
) -> DataLoader:
    return DataLoader(
        graph, given.train.to(graph.idtype), NeighborSampler(fanouts, **fetched), batch_size=given.batch_nodes, shuffle=True,
        num_workers=int(worker), persistent_workers=worker,
    )  # fmt: skip


def cores(loader: DataLoader, worker: bool) -> AbstractContextManager[None]:
    """A core for the process that samples and another one for what it samples for, as DGL recommends."""
    if not worker:
        return nullcontext()
    first, *others = psutil.Process().cpu_affinity()
    return loader.enable_cpu_affinity(loader_cores=[first], compute_cores=others, verbose=False)


def counts_of(blocks: Sequence[dgl.DGLGraph]) -> Counts:
    return dict(edges=sum(b.num_edges() for b in blocks), rows=sum(b.num_dst_nodes() for b in blocks))


def total(counted: Sequence[Counts]) -> Counts:
    return {name: sum(one[name] for one in counted) for name in ("edges", "rows")}


def sampling(given: SimpleNamespace, *, narrow: bool = False, worker: bool = False) -> Round:
    loader = loader_of(given, graph_of(given, narrow), given.fanouts, worker)

    def run() -> Counts:
        with cores(loader, worker):
            return total([counts_of(blocks) for _, _, blocks in loader])

    return run


class GCN(nn.Module):
    """once: features are aggregated already, and the first layer reads no edges."""

    def __init__(self, widths: Sequence[int], norm: str, dropout: float, once: bool) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        first = [nn.Linear(*pairs[0])] if once else []
        self.layers = nn.ModuleList(first + [GraphConv(a, b, norm=norm) for a, b in pairs[len(first) :]])
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])
        self.dropout, self.once = dropout, once

    def forward(self, blocks: Sequence[dgl.DGLGraph], x: Tensor) -> Tensor:
        reads = [(), *((b,) for b in blocks)] if self.once else [(b,) for b in blocks]
        for number, (layer, block) in enumerate(zip(self.layers, reads, strict=True)):
            x = layer(*block, x)
            if number < len(self.norms):
                x = F.dropout(F.relu(self.norms[number](x)), self.dropout, self.training)
        return x


def training(given: SimpleNamespace, *, norm: str = "right", worker: bool = False, once: bool = False) -> Round:
    # With int32 ids DGL 2.1.0 transposes blocks wrongly now and then, on two threads, and ends.
    graph, fanouts = graph_of(given, narrow=False), given.fanouts[once:]
    graph.ndata["x"], graph.ndata["y"] = given.x, given.y
    if once:
        graph.update_all(dgl.function.copy_u("x", "m"), dgl.function.mean("m", "x"))
    loader = loader_of(given, graph, fanouts, worker, prefetch_node_feats=["x"], prefetch_labels=["y"])
    widths = [given.x.shape[1], *[given.hidden] * (len(given.fanouts) - 1), given.classes]
    model = GCN(widths, norm, given.dropout, once)
    optimizer = torch.optim.Adam(model.parameters(), lr=given.lr)

    def run() -> Counts:
        counted = []
        with cores(loader, worker):
            for _, _, blocks in loader:
                loss = F.cross_entropy(model(blocks, blocks[0].srcdata["x"]), blocks[-1].dstdata["y"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss.item()
                counted.append(counts_of(blocks))
        return total(counted)

    return run


if __name__ == "__main__":
    serve({
        "sampling": sampling,
        "sampling, int32": partial(sampling, narrow=True),
        "sampling, worker": partial(sampling, worker=True),
        "sampling, int32, worker": partial(sampling, narrow=True, worker=True),
        "epoch": training,
        "epoch, norm both": partial(training, norm="both"),
        "epoch, worker": partial(training, worker=True),
        "epoch, first aggregate once": partial(training, once=True),
    })  # fmt: skip
