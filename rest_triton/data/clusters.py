"""From a configuration to what a run works on: the graph in the order of its clusters, and the way back."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import Config
from .datasets import load
from .features import SparseRows
from .graph import Graph, Normalisation
from ..ops import Adjacency
from .partition import partition


@dataclass(frozen=True, eq=False)
class ClusterData:
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


def load_data(config: Config, normalise: Normalisation = "gcn") -> ClusterData:
    """Load the data set of a configuration, whose device is ``cpu`` or ``cuda``, and divide it into clusters.

    ValueError if it cannot be trained on.
    """
    graph = load(config.dataset, config.root, split=config.split)
    _refuse_untrainable(config.dataset, graph)
    num_parts = min(config.num_parts, graph.num_nodes)
    clusters = partition(graph, num_parts, method=config.partition, root=config.root)  # type: ignore[arg-type]
    about = f"{graph}\n{clusters.describe()}"
    # Each form of the graph is let go of as soon as there is the next.
    graph = clusters.apply(graph)
    fingerprint = graph.fingerprint
    adj = graph.adjacency(normalise)
    if config.edge_dropout > 0:
        adj = with_named_edges(adj)
    adj = adj.to(config.device)
    x = graph.x.dense() if isinstance(graph.x, SparseRows) else graph.x
    assert x is not None
    x = x.to(config.device)
    # The adjacency has the edges, with self-loops; a copy without them would only take room.
    nobody = torch.zeros(graph.num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=graph.col.dtype)
    graph = replace(graph, rowptr=nobody[0], col=nobody[1], x=None)
    return ClusterData(graph, adj, x, clusters.ptr, clusters.order, fingerprint, about)


def with_named_edges(adj: Adjacency) -> Adjacency:
    """For dropout of edges: with a reverse that knows which edge is the mirror of which. 8 to 16 bytes per edge."""
    known = adj.reverse is not None and adj.reverse.edge_id is not None
    return adj if known else replace(adj, reverse=None).with_reverse()


def refuse_without(name: str, **there: bool) -> None:
    """ValueError if something that training needs is not there."""
    missing = [what for what, is_there in there.items() if not is_there]
    if missing:
        raise ValueError(
            f"{name} has no {' and no '.join(missing)}; training needs features, labels, train_mask and val_mask"
        )


def _refuse_untrainable(name: str, graph: Graph) -> None:
    refuse_without(
        name, features=graph.num_features > 0, labels=bool(graph.num_classes),
        train_mask=graph.train_mask is not None, val_mask=graph.val_mask is not None,
    )  # fmt: skip
    for mask, why in (("train_mask", "there is nothing to learn from"), ("val_mask", "no epoch would be the best one")):
        if not bool(getattr(graph, mask).any()):
            raise ValueError(f"{mask} of {name} holds no node: {why}; mark some in it")
