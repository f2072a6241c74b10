"""Methods without tables against the libraries that a user would take instead: DGL, GraphBolt and PyG.

Sampling alone and epochs of ``sage``: batches of 1,024 training nodes, fan-out 10,10,10, on ``--graph`` with self-loops; GCN
3 x 256 with BatchNorm. DGL, GraphBolt and NeighborLoader run in an environment of their own (``--peers PYTHON``), with as
many threads as ours, round by round in turn with ours. ClusterLoader runs in this one, on the clusters of ``cluster``.

Each library has the fastest of its settings. A line for each target says whether it holds:

    sampling    edges per second at least 2 times DGL's
    sage        DGL's and PyG's epochs at least 4 times as long
    cluster     PyG's epochs at least 3 times as long
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from rest_triton.data.clusters import load_data
from rest_triton.history.streams import COMPUTE
from rest_triton.ops import Adjacency
from rest_triton.sampling.sample import fields
from rest_triton.training.trainer import Trainer

from .bench_epoch import clustered, epochs, network, settings
from .bench_methods import case_of, counted, one_more
from .harness import OURS, Bench
from .peer import Peer, hand_over
from .pyg_cluster import ClusterGCN, Clusters
from .pygas_models import GCN

AHEAD = "ours, the next batch prepared on a thread"
FANOUT, BATCH_NODES, ROUNDS = 10, 1024, 5
SAMPLING_LEAST, EPOCH_LEAST, CLUSTER_LEAST = 2.0, 4.0, 3.0
WITHOUT = "DGL, GraphBolt and NeighborLoader are left out: name the Python of their environment, --peers PYTHON"

DGL, GRAPHBOLT, PYG = "dgl_rounds", "graphbolt_rounds", "pyg_rounds"
SAMPLERS = [
    (DGL, "sampling"),
    (DGL, "sampling, int32"),
    (DGL, "sampling, worker"),
    (DGL, "sampling, int32, worker"),
    (GRAPHBOLT, "sampling"),
    (PYG, "sampling"),
    (PYG, "sampling, 2 workers"),
]
TRAINERS = [
    (DGL, "epoch"),
    (DGL, "epoch, norm both"),
    (DGL, "epoch, worker"),
    (PYG, "epoch"),
    (PYG, "epoch, 2 workers"),
    (PYG, "epoch, trimmed"),
]
ONCE = (DGL, "epoch, first aggregate once")  # not what a user would take: it shows what this alone saves


def trainer_of(bench: Bench) -> Trainer:
    nodes, fanout = (64, 3) if bench.tiny else (BATCH_NODES, FANOUT)
    config = settings("gcn", bench, 5, method="sage", batch_nodes=nodes, fanout=str(fanout))
    return Trainer(config, load_data(config))


@contextmanager
def started(
    bench: Bench, trainer: Trainer, programs: Sequence[tuple[str, str]]
) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """(the programs that run, why others do not)."""
    if bench.peers is None:
        bench.lines.append(WITHOUT)
        yield {}, {}
        return
    config, graph = trainer.config, trainer.loaded.graph
    adj, x = trainer.loaded.adj, trainer.loaded.x
    assert isinstance(x, torch.Tensor) and graph.y is not None and graph.train_mask is not None
    arrays = dict(rowptr=adj.rowptr, col=adj.col, x=x, y=graph.y, train=torch.nonzero(graph.train_mask).squeeze(1))
    options = dict(
        fanouts=config.fanouts, batch_nodes=config.batch_nodes, hidden=config.hidden_channels, classes=graph.num_classes,
        dropout=config.dropout, lr=config.lr,
    )  # fmt: skip
    running, failed = dict[str, Peer](), dict[str, str]()
    with TemporaryDirectory() as folder:
        hand_over(Path(folder), arrays, options)
        try:
            for program, variant in programs:
                name = f"{program.removesuffix('_rounds')}: {variant}"
                try:
                    running[name] = Peer(
                        bench.peers,
                        Path(folder),
                        program,
                        variant,
                        keep_freed_memory=bench.keep_freed_memory,
                        passive=bench.tiny,
                    )
                except RuntimeError as failure:
                    failed[name] = f"not run: {failure}"
            yield running, failed
        finally:
            for peer in running.values():
                peer.close()


class Sampling:
    """Samples an epoch as ``sage`` does, but for all layers: its first one reads an aggregate that is computed once.

    gradients: with the transposes, which backward needs, and which the other libraries do not make.
    """

    def __init__(self, trainer: Trainer, *, gradients: bool) -> None:
        self.trainer, self.gradients, self.numbers = trainer, gradients, itertools.count(1)
        self.counts = dict(edges=0, rows=0)

    def __call__(self) -> None:
        config, engine, counts = self.trainer.config, self.trainer.engine, dict(edges=0, rows=0)
        number = next(self.numbers)
        for step, batch in enumerate(self.trainer.method.batches(number)):
            made = fields(
                engine.inputs.adj, batch.rows, config.fanouts, engine.maps[COMPUTE], (number << 32) + step,
                gradients=self.gradients,
            )  # fmt: skip
            assert made.samples is not None and made.counts is not None
            counts["edges"] += sum(sample.adj.num_edges for sample in made.samples if sample is not None)
            counts["rows"] += sum(made.counts[1:])
        self.counts = counts


def ahead(trainer: Trainer) -> Callable[[], object]:
    """Epochs in which a thread prepares the next batch, also where there are too few cores for the default."""
    trainer.ahead = True
    return epochs(trainer)


def title(trainer: Trainer) -> str:
    config, adj = trainer.config, trainer.loaded.adj
    fanouts = ",".join(map(str, config.fanouts))
    assert isinstance(adj, Adjacency) and trainer.loaded.graph.train_mask is not None
    seeds = int(trainer.loaded.graph.train_mask.sum())
    return (
        f"{Path(config.dataset).stem}, {adj.num_nodes:,} nodes, {adj.num_edges:,} edges, {seeds:,} seeds, batches of "
        f"{config.batch_nodes:,}, fan-out {fanouts}"
    )


def fastest(seconds: Mapping[str, float], library: str) -> float | None:
    """The best seconds of a library's judged variants, None if none of them ran."""
    found = [s for name, s in seconds.items() if name.startswith(f"{library}: ") and not name.endswith("once")]
    return min(found, default=None)


def bench_sage_sampling(bench: Bench) -> None:
    trainer = trainer_of(bench)
    ours, plain = Sampling(trainer, gradients=True), Sampling(trainer, gradients=False)
    with started(bench, trainer, SAMPLERS) as (peers, failed):
        runs: dict[str, Any] = {OURS: ours, "ours, without transposes": plain, **peers}
        best = bench.in_turn("sampling", title(trainer), runs, rounds=ROUNDS, left_out=failed)
        speed = {name: runs[name].counts["edges"] / seconds for name, seconds in best.items()}
        for name, edges in speed.items():
            bench.lines.append(f"  {edges / 1e6:8.1f} million edges per second: {name}; {_counts(runs[name].counts)}")
    least = fastest({name: 1 / edges for name, edges in speed.items()}, "dgl")
    if least is not None:
        bench.judge("sampling: edges per second of DGL", speed[OURS] * least, least=SAMPLING_LEAST)


def bench_sage_epoch(bench: Bench) -> None:
    trainer = trainer_of(bench)
    epoch, reads = counted(trainer)
    with started(bench, trainer, [*TRAINERS, ONCE]) as (peers, failed):
        runs: dict[str, Callable[[], object]] = {OURS: epoch, AHEAD: ahead(Trainer(trainer.config, trainer.loaded)), **peers}
        best = bench.in_turn("sage", title(trainer), runs, rounds=ROUNDS, left_out=failed)
        bench.lines.append(f"  an epoch of ours: {_counts(dict(edges=reads.sampled, rows=reads.rows))}")
        bench.lines.append(
            f"    and once before training, the features' aggregate over all {trainer.loaded.adj.num_edges:,} edges: so "
            "ours samples for one layer less, and its first layer is exact"
        )
        for name, peer in peers.items():
            bench.lines.append(f"  an epoch of {name}: {_counts(peer.counts)}")
    for library in ("dgl", "pyg"):
        if (seconds := fastest(best, library)) is not None:
            bench.judge(f"{library}'s epochs of sage", seconds / best[OURS], least=EPOCH_LEAST)


def _counts(counts: Mapping[str, int]) -> str:
    return f"{counts['edges']:,} edges, {counts['rows']:,} rows"


@pytest.mark.parametrize("batch_size", [40, 5])
def bench_cluster_epoch(bench: Bench, batch_size: int) -> None:
    config = settings("gcn", bench, batch_size, method="cluster")
    loaded, (graph, ptr) = load_data(config), clustered(config)
    ours = Trainer(config, loaded)
    theirs = ClusterGCN(Clusters(graph, ptr), config.batch_size, network(GCN, config, graph, ours.model), config.lr)
    name = "PyG's ClusterLoader"
    runs: dict[str, Callable[[], object]] = {
        OURS: epochs(ours),
        AHEAD: ahead(Trainer(config, loaded)),
        name: one_more(theirs.epoch),
    }
    best = bench.in_turn("cluster", case_of(config), runs, rounds=ROUNDS)
    bench.judge(f"{name}: epochs of cluster", best[name] / best[OURS], least=CLUSTER_LEAST)
