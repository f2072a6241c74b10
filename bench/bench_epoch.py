"""Whole epochs: ours beside PyGAS's pipeline rebuilt from torch's parts, what REST adds, and what is left for Python.

A GCN of 3 layers of 256 with BatchNorm and dropout 0.5, 80 clusters, on ``--graph`` (default: synthetic:arxiv). Every
variant trains one epoch in turn, round after round; the best of each counts. Evaluation is in none of them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rest_triton.batches import ClusterBatches
from rest_triton.config import Config
from rest_triton.datasets import load
from rest_triton.graph import Graph
from rest_triton.loading import Loaded, load_for
from rest_triton.partition import partition
from rest_triton.trainer import Trainer

from .measure import Report, best
from .pygas import PyGAS
from .pygas_models import GCN

PARTS, TINY = 80, "synthetic:nodes=1600,edges=16000,features=32,classes=8"
METHODS: dict[str, dict[str, Any]] = {
    "GAS": dict(method="gas"),
    "GAS + REST, F = 1": dict(method="gas+rest"),
    "GAS + REST, F = 2": dict(method="gas+rest", frequency=2),
    "GAS + REST-IS": dict(method="gas+rest-is"),
    "full batch": dict(method="full"),
}


def settings(dataset: str, root: str, tiny: bool, **changes: Any) -> Config:
    hidden = 16 if tiny else 256
    common: dict[str, Any] = dict(dataset=dataset, root=root, device="cpu", parts=PARTS, num_layers=3)
    return Config(**common, hidden_channels=hidden, batch_norm=True, dropout=0.5, **changes)


def epochs(trainer: Trainer) -> Callable[[], object]:
    """One more epoch at each call."""
    trainer.begin()
    numbers = iter(range(1, 1 << 30))
    return lambda: trainer.epoch(next(numbers))


def permuted(config: Config) -> tuple[Graph, torch.Tensor]:
    graph = load(config.dataset, config.root)
    clusters = partition(graph, config.parts, root=config.root)
    return clusters.apply(graph), clusters.ptr


def pygas(config: Config, graph: Graph, ptr: torch.Tensor, like: Trainer) -> PyGAS:
    """With the weights that ours begins with."""
    assert graph.num_classes is not None
    model = GCN(graph.num_features, config.hidden_channels, graph.num_classes, 3, dropout=0.5, batch_norm=True)
    model.load_state_dict(like.model.state_dict(), strict=False)
    made = PyGAS(graph, ptr, config.per_batch, model, lr=config.lr, seed=0)
    made.fill()
    return made


def overhead(trainer: Trainer, steps: int) -> float:
    """Seconds of a step that are not spent on data: the same steps on a graph of as many clusters, a node in each."""
    nodes = PARTS * 2
    ring = torch.arange(nodes)
    masks = {name: torch.ones(nodes, dtype=torch.bool) if name == "train_mask" else torch.zeros(nodes, dtype=torch.bool)
             for name in ("train_mask", "val_mask", "test_mask")}  # fmt: skip
    graph = Graph.from_edges(
        torch.stack([ring, ring.roll(1)]), nodes, symmetrise=True, x=torch.randn(nodes, 4), y=ring % 3, **masks
    )
    assert isinstance(graph.x, torch.Tensor)
    ptr = torch.arange(0, nodes + 1, 2)
    loaded = Loaded(graph, graph.adjacency("gcn"), graph.x, ptr, ring, graph.fingerprint, "a ring")
    small = Trainer(trainer.config.changed(hidden_channels=4), loaded)
    return best({"": epochs(small)}, steps)[""] / len(ClusterBatches(ptr, trainer.config.per_batch))


@pytest.mark.parametrize("per_batch", [40, 5])
def bench_epoch(
    benchmark: Any, request: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: str, per_batch: int
) -> None:
    dataset, root = (TINY, str(tmp_path)) if tiny else (request.config.getoption("--graph"), "data")
    config = settings(dataset, root, tiny, per_batch=per_batch)
    loaded = load_for(config)
    ours = {name: Trainer(config.changed(**changes), loaded) for name, changes in METHODS.items()}
    graph, ptr = permuted(config)
    theirs = pygas(config, graph, ptr, ours["GAS"])
    numbers = iter(range(1, 1 << 30))
    variants: dict[str, Callable[[], object]] = {name: epochs(trainer) for name, trainer in ours.items()}
    variants["PyGAS's pipeline, from torch's parts"] = lambda: theirs.epoch(next(numbers))
    rounds = 1 if tiny else 5
    times = best(variants, rounds)
    gas = times["GAS"]
    rows = [(name, seconds, f"{seconds / gas:.2f} x GAS") for name, seconds in times.items()]
    steps = len(ours["GAS"].method.batches(1))
    outside = overhead(ours["GAS"], rounds)
    share = outside * steps / gas
    rows.append((f"{steps} steps without data: Python and dispatch", outside * steps, f"{100 * share:.1f} % of GAS's epoch"))
    slowest = times["PyGAS's pipeline, from torch's parts"]
    report.table(
        f"an epoch of GCN 3 x {config.hidden_channels} on {dataset}, {per_batch} of {PARTS} clusters: PyGAS takes "
        f"{slowest / gas:.1f} times as long (product: {theirs.product})",
        rows,
    )
    benchmark.extra_info |= {"against_pygas": slowest / gas, "overhead": share} | {
        f"relative {name}": seconds / gas for name, seconds in times.items()
    }
    benchmark.pedantic(variants["GAS"], rounds=1)
