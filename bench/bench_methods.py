"""Epochs of every method relative to GAS, and of LMC and VR-GCN relative to their authors' pipelines in torch.

GCN 3 x 256 on ``--graph``, 40 and 5 of 80 clusters in a batch; sampled methods have as many nodes in a batch, fan-out 10.
A line for each target says whether it holds:

    lmc                    at most 1.25 times an epoch of GAS
    graphfm, lmc-coded     what their extra rows and edges cost by :mod:`bench.work`, and 15 %
    vrgcn, refresh         what their rows cost by :mod:`bench.work`, and for each edge that aggregates read, with its
                           sampling, at most 1.5 times what GAS takes
    pipelines              at least 3 times as long as ours

What REST and REST-IS add to each method has no target.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.methods.engine import Engine
from rest_triton.sampling.batch import Batch
from rest_triton.training.trainer import Trainer

from . import lmc_pipeline, work
from .bench_epoch import clustered, epochs, network, settings, shares
from .harness import Bench
from .lmc_pipeline import LMC
from .pygas_models import GCN
from .vrgcn_pipeline import VRGCN

OF_CLUSTERS = ("lmc", "lmc-coded", "graphfm")
SAMPLED = ("vrgcn", "refresh", "graphfm-ib")
FANOUT, ROUNDS = 10, 5
LMC_MOST, MARGIN, PER_EDGE_MOST, PIPELINE_LEAST = 1.25, 1.15, 1.5, 3.0


def config_of(bench: Bench, batch_size: int, method: str) -> Config:
    config = settings("gcn", bench, batch_size, method=method)
    if method not in (*SAMPLED, "mvs"):
        return config
    nodes = load_data(config).graph.num_nodes * config.batch_size // config.num_parts
    return config.changed(batch_nodes=nodes, **({} if method == "mvs" else {"fanout": str(FANOUT)}))


def case_of(config: Config) -> str:
    width = f"{config.num_layers} x {config.hidden_channels}"
    return f"gcn {width}, {config.batch_size} of {config.num_parts} clusters, {Path(config.dataset).stem}"


@dataclass
class Reads:
    """The edges that the aggregates of an epoch's forwards read, and the rows that its layers compute.

    Args:
        sampled: neighbours in samples. everything: neighbours in sums over whole neighbourhoods. rows: of all layers.
        done: of all layers, as :mod:`bench.work` counts.
    """

    sampled: int = 0
    everything: int = 0
    rows: int = 0
    done: work.Work = field(default_factory=work.Work)


def counted(trainer: Trainer) -> tuple[Callable[[], object], Reads]:
    """(one more epoch at each call, what the last one has read)."""
    reads, run, method = Reads(), epochs(trainer), trainer.method
    prepare, rowptr, widths = method.prepare, trainer.loaded.adj.rowptr, widths_of(trainer)
    controls = trainer.config.base == "vrgcn"

    def prepared(engine: Engine, batch: Batch, step: int, **options: Any) -> Batch:
        made = prepare(engine, batch, step, **options)
        assert made.samples is not None and made.counts is not None
        for layer, sample in enumerate(made.samples):
            count, drawn, whole = made.counts[layer + 1], 0, 0
            if sample is not None:
                drawn = sample.adj.num_edges
                if controls and not sample.complete:
                    rows = made.rows[:count]
                    whole = int((rowptr[rows + 1] - rowptr[rows]).sum())
            reads.rows, reads.sampled, reads.everything = reads.rows + count, reads.sampled + drawn, reads.everything + whole
            reads.done += work.sampled(count, drawn, whole, layer, widths)
        return made

    def epoch() -> None:
        reads.sampled, reads.everything, reads.rows, reads.done = 0, 0, 0, work.Work()
        run()

    method.prepare = prepared  # type: ignore[method-assign]
    return epoch, reads


def widths_of(trainer: Trainer) -> list[int]:
    """The widths of features, hidden layers and the result."""
    config, classes = trainer.config, trainer.loaded.graph.num_classes
    assert classes is not None
    return [trainer.engine.inputs.features.width, *[config.hidden_channels] * (config.num_layers - 1), classes]


def work_of(trainer: Trainer) -> tuple[dict[str, work.Work], list[work.Size]]:
    """(an epoch's work by method, its batches' sizes)."""
    engine, widths, sizes = trainer.engine, widths_of(trainer), []
    for batch in trainer.method.cover():
        halo = batch.halo(engine.inputs.adj)
        first = widths[-1] < widths[-2] and engine.inputs.transforms_first(batch, halo, *widths[-2:])
        sizes.append(replace(work.size(engine.inputs.adj, batch), transforms_first=first))
    ways = {"gas": work.gas, "graphfm": work.graphfm, "lmc-coded": work.lmc_coded}
    return {name: sum((way(size, widths) for size in sizes), work.Work()) for name, way in ways.items()}, sizes


@pytest.mark.parametrize("batch_size", [40, 5])
def bench_methods(bench: Bench, batch_size: int) -> None:
    config = config_of(bench, batch_size, "gas")
    loaded = load_data(config)
    gas = Trainer(config, loaded)
    runs: dict[str, Callable[[], object]] = {"gas": epochs(gas)}
    trainers, reads = {"gas": gas}, dict[str, Reads]()
    for name in (*OF_CLUSTERS, *SAMPLED, "mvs"):
        trainers[name] = Trainer(config_of(bench, batch_size, name), loaded)
        if name in SAMPLED:
            runs[name], reads[name] = counted(trainers[name])
        else:
            runs[name] = epochs(trainers[name])
    best = bench.in_turn("methods", case_of(config), runs, rounds=ROUNDS)
    of_gas = shares(runs["gas"])
    for name, trainer in trainers.items():
        held = sum(table.rows.nbytes for table in trainer.history.all_tables)
        bench.lines.append(f"  {held / 2**20:8.0f} MiB of tables: {name}")

    bench.judge("lmc: epochs of gas", best["lmc"] / best["gas"], most=LMC_MOST)
    done, sizes = work_of(gas)
    for name in ("graphfm", "lmc-coded"):
        most = MARGIN * work.bound(done[name], done["gas"], of_gas)
        bench.judge(f"{name}: epochs of gas", best[name] / best["gas"], most=most)
        ratios = [f"{getattr(done[name], kind) / getattr(done['gas'], kind):.2f} x {kind}" for kind in vars(work.Work())]
        bench.lines.append(f"{'':18}counted: {', '.join(ratios)}")
    total = {
        kind: sum(getattr(size, kind) for size in sizes) for kind in ("rows", "halo", "edges", "across", "within", "all")
    }
    bench.lines.append(
        f"{'':18}rows {total['rows']:,}, of halos {total['halo']:,}; edges {total['edges']:,}, of halos {total['all']:,}, "
        f"into batch {total['across']:,}, into batch or halo {total['within']:,}"
    )

    edges = (config.num_layers - 1) * loaded.adj.num_edges  # the first aggregate is computed once
    rows, per_edge = config.num_layers * loaded.adj.num_nodes, best["gas"] / edges
    bench.lines.append(f"{'':18}gas: {rows:,} rows, {edges:,} edges, {1e9 * per_edge:.0f} ns each")
    for name, read in reads.items():
        if name in ("vrgcn", "refresh"):
            allowed = replace(read.done, edges=PER_EDGE_MOST * read.done.edges)
            bench.judge(f"{name}: epochs of gas", best[name] / best["gas"], most=work.bound(allowed, done["gas"], of_gas))
        both = read.sampled + read.everything
        bench.lines.append(
            f"{'':18}{name}: {read.rows:,} rows, {read.sampled:,} sampled edges, {read.everything:,} of all neighbours; "
            f"a whole epoch per edge read {best[name] / both / per_edge:.2f}, per sampled edge "
            f"{best[name] / read.sampled / per_edge:.2f} of gas"
        )


@pytest.mark.parametrize("method", ["gas", *OF_CLUSTERS, *SAMPLED, "mvs"])
def bench_refreshes(bench: Bench, method: str) -> None:
    """Epochs with REST and with REST-IS against the method's own, 5 of 80 clusters."""
    config = config_of(bench, 5, method)
    loaded = load_data(config)
    forms = {method: config} | {f"{method}{form}": config.changed(method=method + form) for form in ("+rest", "+rest-is")}
    if method == "lmc":
        forms["lmc+rest, both ways"] = config.changed(method="lmc+rest", gradient_frequency=1)
    forms.setdefault("gas", config_of(bench, 5, "gas"))
    runs: dict[str, Callable[[], object]] = {name: epochs(Trainer(c, loaded)) for name, c in forms.items()}
    bench.in_turn("refreshes", f"{method}: {case_of(config)}", runs, rounds=4)


@pytest.mark.parametrize("batch_size", [40, 5])
def bench_lmc_pipeline(bench: Bench, batch_size: int) -> None:
    config = config_of(bench, batch_size, "lmc-coded")
    loaded, (graph, ptr) = load_data(config), clustered(config)
    ours = {name: Trainer(config_of(bench, batch_size, name), loaded) for name in ("lmc-coded", "lmc")}
    runs: dict[str, Callable[[], object]] = {name: epochs(trainer) for name, trainer in ours.items()}
    pipelines = {"the authors' pipeline": False, "the authors' pipeline, batches cut once": True}
    for name, fixed in pipelines.items():
        model = network(lmc_pipeline.GCN, config, graph, ours["lmc-coded"].model)
        model.joint_norm = True
        theirs = LMC(graph, ptr, config.batch_size, model, lr=config.lr, beta=config.beta, score=config.score, fixed=fixed)
        theirs.fill()
        runs[name] = one_more(theirs.epoch)
    best = bench.in_turn("methods", f"LMC: {case_of(config)}", runs, rounds=ROUNDS)
    for name in pipelines:
        for method in ours:
            bench.judge(f"{name}: epochs of {method}", best[name] / best[method], least=PIPELINE_LEAST)


@pytest.mark.parametrize("batch_size", [40, 5])
def bench_vrgcn_pipeline(bench: Bench, batch_size: int) -> None:
    config = config_of(bench, batch_size, "vrgcn")
    ours, (graph, _) = Trainer(config, load_data(config)), clustered(config)
    model = network(GCN, config, graph, ours.model)
    theirs = VRGCN(graph, config.batch_nodes, model, lr=config.lr, fanout=FANOUT)
    theirs.fill()
    name = "the authors' pipeline"
    runs: dict[str, Callable[[], object]] = {"vrgcn": epochs(ours), name: one_more(theirs.epoch)}
    best = bench.in_turn("methods", f"VR-GCN: {case_of(config)}, fan-out {FANOUT}", runs, rounds=ROUNDS)
    bench.judge(f"{name}: epochs of vrgcn", best[name] / best["vrgcn"], least=PIPELINE_LEAST)


def one_more(epoch: Callable[[int], object]) -> Callable[[], object]:
    """One more epoch at each call."""
    numbers = iter(range(1, 1 << 30))
    return lambda: epoch(next(numbers))
