"""Whole epochs of ours and of PyGAS's pipeline, on the same graph, with the same weights, batches and settings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData
from rest_triton.data.datasets import load
from rest_triton.data.graph import Graph
from rest_triton.data.partition import partition
from rest_triton.sampling.batch import ClusterLoader
from rest_triton.training import trainer as trainers
from rest_triton.training.trainer import Trainer

from . import pygas_models
from .measure import best
from .pygas import PyGAS
from .split import Split

PARTS, TINY = 80, "synthetic:nodes=1600,edges=16000,features=32,classes=8"
# The settings of PyGAS's runs on arxiv for GCN and GCNII, but for one width and one number of clusters; it has none for
# APPNP. ``input: exact``: as PyGAS, halo rows of what is made of features alone are computed anew at every step.
MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(num_layers=3, batch_norm=True, dropout=0.5),
    "appnp": dict(num_layers=5, alpha=0.1, dropout=0.5, input="exact"),
    "gcnii": dict(num_layers=4, alpha=0.2, theta=0.5, batch_norm=True, dropout=0.3, input="exact"),
}
NAMES = {"gcn": "GCN", "appnp": "APPNP", "gcnii": "GCNII"}
THEIRS = "PyGAS's pipeline"


def settings(model: str, dataset: str, root: str, tiny: bool, **changes: Any) -> Config:
    common: dict[str, Any] = dict(dataset=dataset, root=root, device="cpu", num_parts=PARTS, model=model)
    return Config(**(common | dict(hidden_channels=16 if tiny else 256) | MODELS[model] | changes))


def title(config: Config) -> str:
    width = f"{config.num_layers} x {config.hidden_channels}"
    return f"{NAMES[config.model]} {width}, {config.batch_size} of {config.num_parts} clusters"


def epochs(trainer: Trainer) -> Callable[[], object]:
    """One more epoch at each call."""
    trainer.begin()
    numbers = iter(range(1, 1 << 30))
    return lambda: trainer.epoch(next(numbers))


def permuted(config: Config) -> tuple[Graph, torch.Tensor]:
    graph = load(config.dataset, config.root)
    clusters = partition(graph, config.num_parts, root=config.root)
    return clusters.apply(graph), clusters.ptr


def pygas(config: Config, graph: Graph, ptr: torch.Tensor, like: Trainer) -> PyGAS:
    """With the weights that ours begins with."""
    assert graph.num_classes is not None
    kinds: dict[str, Any] = {"gcn": pygas_models.GCN, "appnp": pygas_models.APPNP, "gcnii": pygas_models.GCNII}
    options = {name: value for name, value in MODELS[config.model].items() if name not in ("num_layers", "input")}
    if config.model == "gcnii":
        options["drop_input"] = False
    model = kinds[config.model](graph.num_features, config.hidden_channels, graph.num_classes, config.num_layers, **options)
    model.load_state_dict(like.model.state_dict(), strict=False)
    made = PyGAS(graph, ptr, config.batch_size, model, lr=config.lr, seed=0)
    made.fill()
    return made


def our_shares(trainer: Trainer, epoch: Callable[[], object]) -> dict[str, float]:
    """What an epoch of ours is spent on."""
    split = Split()
    engine, schedule = trainer.engine, trainer.schedule
    loss_for, update, before = trainers.loss_for, engine.update, schedule.before
    zero_grad = trainer.optimizer.zero_grad
    try:
        trainers.loss_for = split.around("data", loss_for)
        engine.update = split.around("optimizer", update)
        trainer.optimizer.zero_grad = split.around("optimizer", zero_grad)
        schedule.before = split.around("refresh", before)
        return split.shares(epoch)
    finally:
        trainers.loss_for, engine.update, schedule.before = loss_for, update, before
        trainer.optimizer.zero_grad = zero_grad


def their_shares(theirs: PyGAS, epoch: Callable[[], object]) -> dict[str, float]:
    """Likewise. Transposing the adjacency for backward belongs to the aggregate."""
    split = Split(moving="history")
    cut, step, optimizer = theirs.subgraph, theirs._step, theirs.optimizer.step
    transpose = split.around("aggregate", lambda subgraph: subgraph.adj.transposed)

    def stepping(subgraph: Any) -> float:
        transpose(subgraph)
        return step(subgraph)

    try:
        theirs.subgraph = split.around("data", cut)
        theirs._step = stepping
        theirs.optimizer.step = split.around("optimizer", optimizer)
        return split.shares(epoch)
    finally:
        theirs.subgraph, theirs._step, theirs.optimizer.step = cut, step, optimizer


def overhead(trainer: Trainer, rounds: int) -> float:
    """Seconds of a step that are not spent on data: the same steps on a graph of as many clusters, two nodes in each."""
    nodes = PARTS * 2
    ring = torch.arange(nodes)
    masks = {name: torch.full((nodes,), name == "train_mask") for name in ("train_mask", "val_mask", "test_mask")}
    graph = Graph.from_edges(
        torch.stack([ring, ring.roll(1)]), nodes, symmetrise=True, x=torch.randn(nodes, 4), y=ring % 3, **masks
    )
    assert isinstance(graph.x, torch.Tensor)
    ptr = torch.arange(0, nodes + 1, 2)
    loaded = ClusterData(graph, graph.adjacency("gcn"), graph.x, ptr, ring, graph.fingerprint, "a ring")
    small = Trainer(trainer.config.changed(hidden_channels=4), loaded)
    return best({"": epochs(small)}, rounds)[""] / len(ClusterLoader(ptr, trainer.config.batch_size))


def epochs_of(theirs: PyGAS) -> Callable[[], object]:
    numbers = iter(range(1, 1 << 30))
    return lambda: partial(theirs.epoch, next(numbers))()
