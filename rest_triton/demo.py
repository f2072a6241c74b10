"""A history-based GNN written directly on the ops: what a stranger would do with them, on a graph made up here.

    python -m rest_triton.demo [--nodes 40000] [--epochs 12]

Trains a 3-layer GCN on batches of clusters (GNNAutoScale's way: in-batch rows fresh, all other neighbours from history
tables), shows loss, exact test accuracy and the mean age of the rows, then compares one aggregate with plain torch.
"""

import argparse
import sys
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .malloc import keep_freed_memory
from .ops import Adjacency, activate, halo, history_spmm, use_backend

CLASSES, CLUSTERS, PER_BATCH, WIDTH, LAYERS = 10, 100, 10, 128, 3


def make_graph(nodes: int, degree: int = 15) -> tuple[Adjacency, Tensor, Tensor]:
    """(normalised adjacency, features, labels): clusters of mostly one class, four of five edges inside a cluster,
    features that say little by themselves."""
    g = torch.Generator().manual_seed(0)
    size = nodes // CLUSTERS
    cluster = torch.arange(nodes) // size
    labels = torch.where(
        torch.rand(nodes, generator=g) < 0.7, cluster % CLASSES, torch.randint(0, CLASSES, (nodes,), generator=g)
    )
    a = torch.randint(0, nodes, (nodes * degree // 2,), generator=g)
    near = (a // size) * size + torch.randint(0, size, a.shape, generator=g)
    b = torch.where(
        torch.rand(a.shape, generator=g) < 0.8, near.clamp(max=nodes - 1), torch.randint(0, nodes, a.shape, generator=g)
    )
    loops = torch.arange(nodes)
    source, target = torch.cat([a, b, loops]), torch.cat([b, a, loops])
    order = torch.argsort(target)
    counts = torch.bincount(target, minlength=nodes)
    scale = counts.float().rsqrt()
    adj = Adjacency(F.pad(counts.cumsum(0), (1, 0)), source[order].int(), row_scale=scale, col_scale=scale).undirected()
    features = F.one_hot(labels, 64).float() + 1.5 * torch.randn(nodes, 64, generator=g)
    return adj, features, labels


class HistoryGCN(torch.nn.Module):
    """GCN whose layers read neighbours out of the batch from tables: layer l + 1 reads ``tables[l]``."""

    def __init__(self, adj: Adjacency, features: Tensor) -> None:
        super().__init__()
        self.adj, nodes = adj, adj.num_nodes
        widths = [features.shape[1]] + [WIDTH] * (LAYERS - 1) + [CLASSES]
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(widths))
        self.tables = [torch.zeros(nodes, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS - 1)]
        self.written_at = torch.zeros(nodes, dtype=torch.int32)
        self.outside = ~torch.arange(nodes, dtype=torch.int32)  # every node reads its own row of a table
        self.position = self.outside.clone()
        everyone = torch.arange(nodes)
        self.first = history_spmm(adj, everyone, self.outside, None, features)  # constant: computed once

    def forward(self, rows: Tensor, step: int) -> Tensor:
        """Logits of ``rows``; their activations are written into the tables on the way."""
        h = self.first[rows]
        for layer, lin in enumerate(self.lins):
            z = h if layer == 0 else history_spmm(self.adj, rows, self.position, h, self.tables[layer - 1])
            h = lin(z)
            if layer < LAYERS - 1:
                h = activate(h, dropout=0.3, seed=step * LAYERS + layer, rows=rows, history=self.tables[layer])
        return h

    @torch.no_grad()
    def exact(self) -> Tensor:
        """Logits of all nodes, layer by layer over complete tables."""
        everyone, h = torch.arange(self.adj.num_nodes), self.first
        for layer, lin in enumerate(self.lins):
            z = h if layer == 0 else history_spmm(self.adj, everyone, self.outside, None, h)
            h = activate(lin(z)) if layer < LAYERS - 1 else lin(z)
        return h


def train(model: HistoryGCN, labels: Tensor, epochs: int) -> None:
    nodes = model.adj.num_nodes
    training = torch.rand(nodes, generator=torch.Generator().manual_seed(1)) < 0.1
    clusters = torch.arange(nodes).chunk(CLUSTERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step, tty = 0, sys.stderr.isatty()
    print(f"{'epoch':>5} {'loss':>8} {'test accuracy':>14} {'mean row age':>13} {'seconds':>8}")
    for epoch in range(1, epochs + 1):
        begin, losses = time.perf_counter(), []
        shuffled = torch.randperm(CLUSTERS, generator=torch.Generator().manual_seed(epoch)).chunk(CLUSTERS // PER_BATCH)
        for done, some in enumerate(shuffled):
            step += 1
            rows = torch.cat([clusters[int(c)] for c in some])
            model.position[rows] = torch.arange(len(rows), dtype=torch.int32)  # enter the batch
            chosen = training[rows]
            loss = F.cross_entropy(model(rows, step)[chosen], labels[rows][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.position[rows] = model.outside[rows]  # leave it
            model.written_at[rows] = step
            losses.append(loss.item())
            if tty:
                print(f"\r  batch {done + 1}/{len(shuffled)}", end="", file=sys.stderr, flush=True)
        if tty:
            print("\r" + " " * 20 + "\r", end="", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - begin
        age = (step - model.written_at).float().mean()
        accuracy = (model.exact().argmax(1) == labels)[~training].float().mean()
        print(
            f"{epoch:5} {sum(losses) / len(losses):8.4f} {100 * accuracy:12.2f} % {age:11.1f}   {seconds:8.2f}", flush=True
        )


def compare(adj: Adjacency, rows: Tensor) -> None:
    """One aggregate of a batch: the fused op, and its definition in torch."""
    x, table = torch.randn(len(rows), WIDTH), torch.randn(adj.num_nodes, WIDTH)
    position = ~torch.arange(adj.num_nodes, dtype=torch.int32)
    position[rows] = torch.arange(len(rows), dtype=torch.int32)
    times: dict[str, float] = {}
    results: dict[str, Tensor] = {}
    for backend in ("kernel", "torch"):
        with use_backend(backend):
            for _ in range(3):
                begin = time.perf_counter()
                results[backend] = history_spmm(adj, rows, position, x, table)
                times[backend] = min(times.get(backend, 1e9), time.perf_counter() - begin)
    error = (results["kernel"] - results["torch"]).abs().max()
    print(
        f"One aggregate, {len(rows)} rows with {len(halo(adj, rows))} halo rows, width {WIDTH}: "
        f"{1e3 * times['kernel']:.1f} ms; by its definition in plain torch {1e3 * times['torch']:.0f} ms; "
        f"largest difference {error:.1e}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="rest_triton.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=40_000, help="size of the graph (default: 40000)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over all clusters (default: 12)")
    options = parser.parse_args()
    if options.nodes < 10 * CLUSTERS:
        parser.error(f"--nodes is {options.nodes}; {CLUSTERS} clusters need at least {10 * CLUSTERS} nodes")
    if options.epochs < 1:
        parser.error(f"--epochs is {options.epochs}; train for at least 1")
    keep_freed_memory()
    torch.manual_seed(0)
    adj, features, labels = make_graph(options.nodes)
    print(
        f"{adj.num_nodes} nodes, {adj.num_edges} edges, {CLUSTERS} clusters, {PER_BATCH} per batch; "
        f"{LAYERS}-layer GCN, bfloat16 histories."
    )
    model = HistoryGCN(adj, features)
    train(model, labels, options.epochs)
    compare(adj, torch.arange(options.nodes // 10))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
