"""A history-based GNN written directly on the ops: what a stranger would do with them.

    python -m rest_triton.demo [--dataset synthetic:arxiv@0.5] [--epochs 12]

Prepares a graph, divides it into clusters, trains a 3-layer GCN on batches of them (GNNAutoScale's way: in-batch rows fresh,
all other neighbours from history tables), shows loss, exact test accuracy and the mean age of the rows, then compares one
aggregate with plain torch.
"""

import argparse
import sys
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .batches import Batch, ClusterBatches, PositionMaps
from .datasets import load
from .features import SparseRows
from .graph import Graph
from .malloc import keep_freed_memory
from .ops import Adjacency, activate, history_spmm, use_backend
from .partition import partition
from .progress import progress

PARTS, PER_BATCH, WIDTH, LAYERS = 100, 10, 128, 3


class HistoryGCN(torch.nn.Module):
    """GCN whose layers read neighbours out of the batch from tables: layer l + 1 reads ``tables[l]``."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.adj, nodes = graph.adjacency("gcn"), graph.num_nodes
        widths = [graph.num_features] + [WIDTH] * (LAYERS - 1) + [graph.num_classes or 0]
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(widths))
        self.tables = [torch.zeros(nodes, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS - 1)]
        self.written_at = torch.zeros(nodes, dtype=torch.int32)
        self.maps = PositionMaps(nodes)
        x = graph.x.dense() if isinstance(graph.x, SparseRows) else graph.x
        self.first = history_spmm(self.adj, torch.arange(nodes), self.maps.outside, None, x)  # constant: computed once

    def forward(self, batch: Batch, position: Tensor, step: int) -> Tensor:
        """Logits of the batch; its activations are written into the tables on the way."""
        h = batch.take(self.first)
        for layer, lin in enumerate(self.lins):
            z = h if layer == 0 else history_spmm(self.adj, batch.rows, position, h, self.tables[layer - 1])
            h = lin(z)
            if layer < LAYERS - 1:
                h = activate(h, dropout=0.3, seed=step * LAYERS + layer, rows=batch.rows, history=self.tables[layer])
        return h

    @torch.no_grad()
    def exact(self) -> Tensor:
        """Logits of all nodes, layer by layer over complete tables."""
        everyone, h = torch.arange(self.adj.num_nodes), self.first
        for layer, lin in enumerate(self.lins):
            z = h if layer == 0 else history_spmm(self.adj, everyone, self.maps.outside, None, h)
            h = activate(lin(z)) if layer < LAYERS - 1 else lin(z)
        return h


def train(model: HistoryGCN, graph: Graph, batches: ClusterBatches, epochs: int) -> None:
    assert graph.y is not None and graph.train_mask is not None and graph.test_mask is not None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    print(f"{'epoch':>5} {'loss':>8} {'test accuracy':>14} {'mean row age':>13} {'seconds':>8}")
    for epoch in range(1, epochs + 1):
        begin, losses = time.perf_counter(), []
        with progress(f"epoch {epoch}") as shown:
            for number, batch in enumerate(batches.epoch(epoch)):
                step += 1
                shown.say(f"batch {number + 1} of {len(batches)}")
                chosen = batch.take(graph.train_mask)
                with model.maps.enter(batch) as position:
                    loss = F.cross_entropy(model(batch, position, step)[chosen], batch.take(graph.y)[chosen])
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()
                model.written_at[batch.rows] = step
                losses.append(loss.item())
        seconds = time.perf_counter() - begin
        age = (step - model.written_at).float().mean()
        accuracy = (model.exact().argmax(1) == graph.y)[graph.test_mask].float().mean()
        print(
            f"{epoch:5} {sum(losses) / len(losses):8.4f} {100 * accuracy:12.2f} % {age:11.1f}   {seconds:8.2f}", flush=True
        )


def compare(adj: Adjacency, batch: Batch, maps: PositionMaps) -> None:
    """One aggregate of a batch: the fused op, and its definition in torch."""
    x, table = torch.randn(len(batch), WIDTH), torch.randn(adj.num_nodes, WIDTH)
    times: dict[str, float] = {}
    results: dict[str, Tensor] = {}
    with maps.enter(batch) as position:
        for backend in ("kernel", "torch"):
            with use_backend(backend):
                for _ in range(3):
                    begin = time.perf_counter()
                    results[backend] = history_spmm(adj, batch.rows, position, x, table)
                    times[backend] = min(times.get(backend, 1e9), time.perf_counter() - begin)
    error = (results["kernel"] - results["torch"]).abs().max()
    print(
        f"One aggregate, {len(batch)} rows with {len(batch.halo(adj))} halo rows, width {WIDTH}: "
        f"{1e3 * times['kernel']:.1f} ms; by its definition in plain torch {1e3 * times['torch']:.0f} ms; "
        f"largest difference {error:.1e}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="rest_triton.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--dataset", default="synthetic:arxiv@0.5", help="see rest_triton.datasets.load (default: %(default)s)"
    )
    parser.add_argument("--root", default="data", help="folder for prepared graphs and clusters (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over all clusters (default: %(default)s)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs is {options.epochs}; train for at least 1")
    keep_freed_memory()
    torch.manual_seed(0)
    try:
        graph = load(options.dataset, options.root)
        if graph.x is None or graph.y is None or graph.multilabel or graph.train_mask is None or graph.test_mask is None:
            parser.exit(1, f"{graph} cannot be trained on here: it needs features, one label per node, and a split\n")
        clusters = partition(graph, PARTS, root=options.root)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        parser.exit(1, f"{error}\n")
    graph = clusters.apply(graph)
    batches = ClusterBatches(clusters.ptr, min(PER_BATCH, clusters.num_clusters))
    print(f"{graph}\n{clusters.describe()}\n{LAYERS}-layer GCN, {batches.per_batch} clusters per batch, bfloat16 histories")
    model = HistoryGCN(graph)
    train(model, graph, batches, options.epochs)
    compare(model.adj, batches.epoch(0)[0], model.maps)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
