"""From a configuration to what a run works on: the graph in the order of its clusters, and the way back."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .config import Config
from .datasets import load
from .features import SparseRows
from .graph import Graph, Normalisation
from .ops import Adjacency
from .partition import partition


@dataclass(frozen=True, eq=False)
class Loaded:
    """What all runs on a data set have in common.

    Args:
        graph: labels and masks, in the order of the clusters; edges and features are in the other two.
        adj: the normalised adjacency. x: features, dense [N, D]. Both where the model computes.
        ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]``.
        order: int64[N]; node i here is node ``order[i]`` of the data set.
        fingerprint: of graph and clusters: what tables and checkpoints belong to.
        about: lines for people.
    """

    graph: Graph
    adj: Adjacency
    x: Tensor
    ptr: Tensor
    order: Tensor
    fingerprint: str
    about: str


def load_for(config: Config, normalise: Normalisation = "gcn") -> Loaded:
    """Load the data set of a configuration, whose device is ``cpu`` or ``cuda``, and divide it into clusters.

    ValueError if it cannot be trained on.
    """
    graph = load(config.dataset, config.root, split=config.split)
    _refuse_untrainable(graph)
    parts = min(config.parts, graph.num_nodes)
    clusters = partition(graph, parts, method=config.partition, root=config.root)  # type: ignore[arg-type]
    about = f"{graph}\n{clusters.describe()}"
    # Each form of the graph is let go of as soon as there is the next.
    graph = clusters.apply(graph)
    fingerprint = graph.fingerprint
    adj = graph.adjacency(normalise).to(config.device)
    x = graph.x.dense() if isinstance(graph.x, SparseRows) else graph.x
    assert x is not None
    x = x.to(config.device)
    # The adjacency has the edges, with self-loops; a copy without them would only take room.
    nobody = torch.zeros(graph.num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=graph.col.dtype)
    graph = replace(graph, rowptr=nobody[0], col=nobody[1], x=None)
    return Loaded(graph, adj, x, clusters.ptr, clusters.order, fingerprint, about)


def _refuse_untrainable(graph: Graph) -> None:
    missing = [
        what
        for what, there in (
            ("features", graph.x is not None),
            ("labels", graph.y is not None),
            ("a train_mask", graph.train_mask is not None),
            ("a val_mask", graph.val_mask is not None),
        )
        if not there
    ]
    if missing:
        raise ValueError(f"{graph.name} has no {', no '.join(missing)}; training needs features, labels and a split")
    if not bool(graph.train_mask.any()):  # type: ignore[union-attr]
        raise ValueError(f"train_mask of {graph.name} holds no node; there is nothing to learn from")
