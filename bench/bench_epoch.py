"""Whole epochs: ours against PyGAS's pipeline rebuilt from torch's fastest parts, what REST adds, and what bounds ours.

GCN, APPNP and GCNII of width 256 on ``--graph`` (default: synthetic:arxiv), 40 and 5 of 80 clusters in a batch. Every
variant trains one epoch in turn, round after round; evaluation is in none of them. Python and dispatch: the same steps
on a graph of two nodes per cluster. Shares: of the time of all torch ops in an epoch, by kind.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.data.datasets import load
from rest_triton.data.features import SparseRows
from rest_triton.data.graph import Graph
from rest_triton.data.partition import partition
from rest_triton.training.trainer import Trainer

from . import pygas_models
from .harness import OURS, Bench, Limit
from .pygas import PyGAS

ModelT = TypeVar("ModelT", bound=Any)

PARTS = 80
# The settings of PyGAS's runs on arxiv for GCN and GCNII, but for one width and one number of clusters; it has none for
# APPNP. ``first: exact``: as in PyGAS, what is made of features alone is computed anew for the halo at every step.
MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(num_layers=3, batch_norm=True, dropout=0.5),
    "appnp": dict(num_layers=5, alpha=0.1, dropout=0.5, first="exact"),
    "gcnii": dict(num_layers=4, alpha=0.2, theta=0.5, batch_norm=True, dropout=0.3, first="exact"),
}
PYGAS_MODELS: dict[str, Any] = {"gcn": pygas_models.GCN, "appnp": pygas_models.APPNP, "gcnii": pygas_models.GCNII}
THEIRS = "PyGAS's pipeline"
OVERHEAD = "the same steps without data: Python and dispatch"


def settings(model: str, bench: Bench, batch_size: int, **changes: Any) -> Config:
    tiny = dict(num_parts=16, batch_size=batch_size // 5, hidden_channels=16, partition="random")
    full = dict(num_parts=PARTS, batch_size=batch_size, hidden_channels=256)
    dataset = "synthetic:nodes=400,edges=3000,features=16,classes=8" if bench.tiny else bench.graph
    common: dict[str, Any] = dict(dataset=dataset, root=bench.root, device="cpu", model=model, method="gas")
    return Config(**(common | (tiny if bench.tiny else full) | MODELS[model] | changes))


def variants_of(model: str) -> dict[str, dict[str, Any]]:
    """The settings that are compared with GAS."""
    found: dict[str, dict[str, Any]] = {
        "REST, F = 1": dict(method="gas+rest", frequency=1),
        "REST-IS": dict(method="gas+rest-is"),
    }
    if model == "gcn":
        found |= {f"REST, F = {f}": dict(method="gas+rest", frequency=f) for f in (2, 3, 4, 5)}
        found["full batch"] = dict(method="full")
    else:
        found["first: cached"] = dict(first="cached")
    return found


def epochs(trainer: Trainer) -> Callable[[], object]:
    """One more epoch at each call."""
    trainer.begin()
    numbers = iter(range(1, 1 << 30))
    return lambda: trainer.epoch(next(numbers))


def clustered(config: Config) -> tuple[Graph, Tensor]:
    """The graph with clusters side by side, and their bounds: what load_data makes for ours, before it drops the edges."""
    graph = load(config.dataset, config.root)
    clusters = partition(graph, config.num_parts, method=config.partition, root=config.root)
    graph = clusters.apply(graph)
    if isinstance(graph.x, SparseRows):
        graph = replace(graph, x=graph.x.dense())
    return graph, clusters.ptr


def network(kind: type[ModelT], config: Config, graph: Graph, like: torch.nn.Module) -> ModelT:
    """A model of :mod:`bench.pygas_models` with the sizes and settings of a configuration and the weights of ``like``."""
    options = {name: getattr(config, name) for name in MODELS[config.model] if name not in ("num_layers", "first")}
    if config.model == "gcnii":
        options["drop_input"] = False
    assert graph.num_classes is not None
    model = kind(graph.num_features, config.hidden_channels, graph.num_classes, config.num_layers, **options)
    model.load_state_dict(like.state_dict(), strict=False)
    return model


def pygas(config: Config, like: torch.nn.Module) -> PyGAS:
    """PyGAS's pipeline on the same graph and clusters, with the weights that ``like`` has now."""
    graph, ptr = clustered(config)
    model = network(PYGAS_MODELS[config.model], config, graph, like)
    made = PyGAS(graph, ptr, config.batch_size, model, lr=config.lr, seed=0)
    made.fill()
    return made


#: by the beginnings of torch's names of ops; a product with a sparse matrix is an aggregate
KINDS = {
    "products": ("mm", "addmm", "_addmm"),
    "aggregates": ("history_spmm", "halo_spmm", "_sparse_mm"),
    "activations": ("activate", "column_moments", "native_", "relu", "threshold", "bernoulli"),
}


class Shares(TorchDispatchMode):
    """The seconds of every torch op that is called inside, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys((*KINDS, "others"), 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        sparse = any(isinstance(arg, torch.Tensor) and arg.layout == torch.sparse_csr for arg in args)
        kind = next((kind for kind, names in KINDS.items() if name.startswith(names)), "others")
        self.seconds["aggregates" if sparse else kind] += time.perf_counter() - begin
        return result


def shares(epoch: Callable[[], object]) -> dict[str, float]:
    with Shares() as found:
        epoch()
    whole = sum(found.seconds.values())
    return {kind: seconds / whole for kind, seconds in found.seconds.items()}


@pytest.mark.parametrize("batch_size", [40, 5])
@pytest.mark.parametrize("model", MODELS)
def bench_epoch(bench: Bench, model: str, batch_size: int) -> None:
    config = settings(model, bench, batch_size)
    loaded = load_data(config)
    trainer = Trainer(config, loaded)
    theirs = pygas(config, trainer.model)
    numbers = iter(range(1, 1 << 30))
    runs: dict[str, Callable[[], object]] = {OURS: epochs(trainer), THEIRS: lambda: theirs.epoch(next(numbers))}
    for name, changes in variants_of(model).items():
        runs[name] = epochs(Trainer(config.changed(**changes), loaded))
    nodes = 2 * config.num_parts
    small = config.changed(
        dataset=f"synthetic:nodes={nodes},edges={nodes},features=4,classes=3", partition="random", hidden_channels=4
    )
    limit = Limit(OVERHEAD, 0, epochs(Trainer(small, load_data(small))))
    width = f"{config.num_layers} x {config.hidden_channels}"
    case = f"{model} {width}, {config.batch_size} of {config.num_parts} clusters, {Path(config.dataset).stem}"
    bench.in_turn("epoch", case, runs, [limit], rounds=5)
    bench.benchmark.extra_info["shares"] = {name: shares(runs[name]) for name in (OURS, THEIRS)}
    for name, parts in bench.benchmark.extra_info["shares"].items():
        text = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in parts.items())
        bench.lines.append(f"  ops of {name}: {text}")
