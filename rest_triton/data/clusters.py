"""Load the data of a run: the graph permuted to the order of its clusters."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Config
from ..methods.options import placed
from ..ops import Adjacency
from ..utils.errors import UserError
from ..utils.split_text import FORMS
from .datasets import load, prepared_folder
from .datasets.splits import with_split
from .features import Reordered, SparseRows, kept, stays_sparse
from .graph import MASKS, Graph, Normalisation
from .partition import partition


@dataclass(frozen=True, eq=False)
class ClusterData:
    """A data set divided into clusters. All node arrays are in the order of the clusters.

    Args:
        graph: labels and masks. It has no edges and no features: those are in ``adj`` and ``x``.
        adj: the normalised adjacency, on the model's device.
        x: features [N, D], on the model's device. They are dense, or so sparse that products by them are cheaper. With
            ``--features`` or ``--feature-dtype`` they are as the data set has them, and taken in the order of the clusters.
        ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]``.
        order: int64[N]; node i here is node ``order[i]`` of the data set.
        fingerprint: of the permuted graph; checkpoints and histories are tied to it.
        about: a description to print.
        nonzeros: stored elements of the data set's features, None if it stores them dense.
        folder: for what is computed from features, graph and order alone. normalise: of ``adj``.
        partition_summary: :meth:`Partition.summary` of the clusters: asked, method, fallback, cut, balance, num_parts, ...
    """

    graph: Graph
    adj: Adjacency
    x: Tensor | SparseRows | Reordered
    ptr: Tensor
    order: Tensor
    fingerprint: str
    about: str
    partition_summary: dict[str, Any] = field(default_factory=dict)
    nonzeros: int | None = None
    folder: Path | None = None
    normalise: Normalisation = "gcn"


def load_data(config: Config, normalise: Normalisation = "gcn", *, named_edges: bool = False) -> ClusterData:
    """Load the data set of a configuration and divide it into clusters.

    ``config.device`` is ``cpu`` or ``cuda``. named_edges: the reverse knows the edges' names also without edge dropout, as
    attention dropout needs. UserError if the data set lacks what training needs.
    """
    graph = load_graph(config)
    _refuse_untrainable(config.dataset, graph)
    num_parts = min(config.num_parts, graph.num_nodes)
    clusters = partition(graph, num_parts, method=config.partition, root=config.root)
    about = f"{graph}\n{clusters.describe()}"
    nonzeros = graph.x.index.numel() if isinstance(graph.x, SparseRows) else None
    later = None
    if stored_apart(config):  # they are never in memory as a whole
        assert graph.x is not None
        later = Reordered(graph.x, clusters.order)
        if nonzeros is not None and stays_sparse(nonzeros, *graph.x.shape):
            raise UserError(
                f"features is {config.features} in {config.feature_dtype}, but those of {config.dataset} are sparse, which "
                "has one place and format; give --features device --feature-dtype float32"
            )
        graph = replace(graph, x=None)
    # Each form of the graph is released when the next one exists.
    graph = clusters.apply(graph)
    fingerprint = graph.fingerprint
    adj = graph.adjacency(normalise)
    if config.edge_dropout > 0 or named_edges:
        adj = with_named_edges(adj)
    adj = adj.to(config.device)
    x = kept(graph.x).to(config.device) if graph.x is not None else later
    assert x is not None
    split = config.split if isinstance(config.split, int) else 0
    folder = prepared_folder(config.dataset, config.root, split) / f"features-{fingerprint[:12]}"
    # The adjacency holds the edges; a second copy would waste memory.
    rowptr, col = torch.zeros(graph.num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=graph.col.dtype)
    graph = replace(graph, rowptr=rowptr, col=col, x=None)
    return ClusterData(
        graph, adj, x, clusters.ptr, clusters.order, fingerprint, about, clusters.summary(), nonzeros, folder, normalise
    )  # fmt: skip


def stored_apart(config: Config) -> bool:
    """Whether features have another place or format than the model's device and that of the data set."""
    return (placed(config).features, config.feature_dtype) != ("device", "float32")


def load_graph(config: Config) -> Graph:
    """The data set of a configuration, with its split, in the data set's order."""
    if isinstance(config.split, str):
        return with_split(load(config.dataset, config.root), config.split)
    return load(config.dataset, config.root, split=config.split)


def with_named_edges(adj: Adjacency) -> Adjacency:
    """The adjacency with a reverse that has edge ids, as edge dropout needs. Takes 8 to 16 bytes per edge."""
    has_ids = adj.reverse is not None and adj.reverse.edge_id is not None
    return adj if has_ids else replace(adj, reverse=None).with_reverse()


def refuse_without(name: str, **present: bool) -> None:
    """UserError if something that training needs is missing."""
    missing = [what for what, is_present in present.items() if not is_present]
    if missing:
        way_out = f"; --split makes masks: {FORMS}" if all(what in MASKS for what in missing) else ""
        raise UserError(
            f"{name} has no {' and no '.join(missing)}; training needs features, labels, train_mask and val_mask{way_out}"
        )


def _refuse_untrainable(name: str, graph: Graph) -> None:
    refuse_without(
        name, features=graph.num_features > 0, labels=bool(graph.num_classes),
        train_mask=graph.train_mask is not None, val_mask=graph.val_mask is not None,
    )  # fmt: skip
    for mask in ("train_mask", "val_mask"):
        if not bool(getattr(graph, mask).any()):
            raise UserError(f"{mask} of {name} selects no node; select some for training and some for validation")
