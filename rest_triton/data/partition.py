"""Partitions of a graph into clusters with few edges between them, each a range of rows after a permutation."""

import heapq
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.cpu.partition import cut_edges
from ..ops import check
from ..utils.errors import UserError
from ..utils.files import replacing
from ..utils.progress import notice, progress
from .graph import Graph
from .partitioners import PARTITIONERS, REMOVED, choices_of, divide

FORMAT = "rest_triton partition 1"  # raise the number when an array of the file changes its meaning
NOT_RECORDED = "METIS failed in an earlier version, which did not record the reason"
MOST_SEEDS = 2**31  # METIS may be built with 32-bit integers


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Clusters of a graph's nodes, none of them empty.

    Args:
        ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]`` of the permuted graph, by descending degree.
        order: int64[N]; node i of the permuted graph is node ``order[i]`` of the original graph.
        method: the method that ran: "kaminpar", "metis" or "random"; "stream" in files of version 0.1.
        cut: the share of directed edges whose ends are in different clusters.
        balance: the size of the largest cluster divided by the mean size.
        fingerprint: of the graph that was divided; None if unknown.
        asked: the method that was asked for; None: ``method``.
        fallback: why ``method`` ran instead of ``asked``, or instead of the first choice of "auto"; None if it did not.
    """

    ptr: Tensor
    order: Tensor
    method: str
    cut: float
    balance: float
    fingerprint: str | None = None
    asked: str | None = None
    fallback: str | None = None

    def __post_init__(self) -> None:
        if self.asked is None:
            object.__setattr__(self, "asked", self.method)

    @property
    def num_clusters(self) -> int:
        return self.ptr.numel() - 1

    def summary(self) -> dict[str, Any]:
        """Plain values for a run's summary: methods, fallback, quality and sizes."""
        sizes = self.ptr.diff()
        return {
            "asked": self.asked,
            "method": self.method,
            "fallback": self.fallback,
            "cut": self.cut,
            "balance": self.balance,
            "num_parts": self.num_clusters,
            "num_nodes": self.order.numel(),
            "smallest": int(sizes.min()),
            "largest": int(sizes.max()),
        }

    @cached_property
    def inverse(self) -> Tensor:
        """int64[N]; node g of the original graph is node ``inverse[g]`` of the permuted one."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(self.order.numel())
        return inverse

    def apply(self, graph: Graph) -> Graph:
        """The graph with its nodes in the order of the clusters."""
        if graph.num_nodes != self.order.numel() or self.fingerprint not in (None, graph.fingerprint):
            raise ValueError(
                f"the partition was made for another graph of {self.order.numel():,} nodes; {graph.name} has "
                f"{graph.num_nodes:,}. Apply it to the graph that was given to partition(), with the same edges"
            )
        return graph.permute(self.order)

    def describe(self) -> str:
        """One line: ``40 clusters by metis: 12.3 % of edges cut, balance 1.03``; also a fallback, if there was one."""
        clusters = f"{self.num_clusters:,} cluster{'s' * (self.num_clusters != 1)} by {self.method}"
        because = "" if self.asked == "auto" else f"instead of {self.asked}: "
        instead = f" ({because}{self.fallback})" if self.fallback else ""
        return f"{clusters}: {100 * self.cut:.1f} % of edges cut, balance {self.balance:.2f}{instead}"

    def __repr__(self) -> str:
        return f"Partition({self.describe()})"


def partition(
    graph: Graph, num_parts: int, *, method: str = "auto", seed: int = 0, root: Path | str | None = None
) -> Partition:
    """Divide the nodes of a graph into ``num_parts`` clusters of about equal size.

    Directions, self-loops and duplicates of edges do not affect the clusters. ``cut`` counts the edges as they are.

    Args:
        num_parts: the number of clusters; beyond the number of nodes, each node is a cluster.
        method: ``kaminpar``, ``metis``: multilevel k-way partitioning, few edges cut, clusters about 3 % above the mean
            size at most. ``auto``: clusters below ``root`` that one of them made; else KaMinPar, or METIS where KaMinPar is
            not installed, lacks memory or fails. ``Partition.fallback`` has the reason. ``random``: equal sizes, edges
            ignored.
        seed: 0 to 2^31 - 1. The same graph, num_parts, method and seed give the same clusters.
        root: the folder below which ``partitions`` caches the results; None: no cache.

    Example::

        clusters = partition(graph, 40, root="data")  # Partition(40 clusters by kaminpar: 12.3 % of edges cut, balance 1.03)
        graph = clusters.apply(graph)
    """
    _check(graph, num_parts, method, seed)
    if num_parts > graph.num_nodes:
        notice(f"{graph.name} has {graph.num_nodes:,} nodes for {num_parts:,} clusters: each node is a cluster of its own")
        num_parts = graph.num_nodes
    folder = None if root is None else Path(root, "partitions")
    files = _files(folder or Path(), graph.fingerprint, num_parts, method, seed)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # fails before the work, not after it
        for choice, path in files.items():
            cached = _load(path, graph, num_parts, choice, method)
            if cached is not None:
                return cached
    if method == REMOVED:
        raise UserError(
            f"partition is {method!r}, which is gone; give --partition kaminpar. For a run of version 0.1, copy its "
            f"clusters to {Path(root or 'data', 'partitions', files[method].name)}"
        )
    with progress(f"dividing {graph.name} into {num_parts:,} clusters") as shown:
        cluster, used, fallback = divide(graph, num_parts, tuple(files), seed, folder, shown)
        shown.say("ordering")
        result = arrange(graph, cluster, num_parts, used, method, fallback)
    if folder is not None:
        _save(files[used], result)
    return result


def is_kept(root: Path | str, fingerprint: str, num_parts: int, method: str, seed: int = 0) -> bool:
    """Whether a file below ``root`` has the clusters of a graph. Its content is not checked."""
    files = _files(Path(root, "partitions"), fingerprint, num_parts, method, seed)
    return any(path.exists() for path in files.values())


def _files(folder: Path, fingerprint: str, num_parts: int, method: str, seed: int) -> dict[str, Path]:
    """The file of each partitioner that ``method`` may be."""
    return {choice: folder / f"{fingerprint}-{choice}-{num_parts}-{seed}.npz" for choice in choices_of(method)}


def _check(graph: Graph, num_parts: int, method: str, seed: int) -> None:
    for name, value in (("num_parts", num_parts), ("seed", seed)):
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}; it must be an int")
    if method not in (*PARTITIONERS, REMOVED):
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(PARTITIONERS)}")
    if num_parts < 1:
        raise UserError(f"num_parts is {num_parts}; it must be at least 1")
    if not 0 <= seed < MOST_SEEDS:
        raise UserError(f"seed is {seed}; it must be from 0 to {MOST_SEEDS - 1}")
    if graph.num_nodes == 0:
        raise UserError(f"{graph.name} has no nodes; there is nothing to divide into clusters")


def arrange(
    graph: Graph, cluster: Tensor, num_parts: int, method: str, asked: str | None = None, fallback: str | None = None
) -> Partition:
    """The partition with node g in ``cluster[g]``, int32[N], after empty clusters have been given a node."""
    sizes = torch.bincount(cluster, minlength=num_parts)
    order = _by_cluster_and_degree(graph, cluster)
    if int(sizes.min()) == 0:
        cluster, sizes = _fill_empty(cluster, sizes, order)
        order = _by_cluster_and_degree(graph, cluster)
    cut = cut_edges(graph.rowptr.contiguous(), graph.col.contiguous(), cluster) / max(1, graph.num_edges)
    balance = int(sizes.max()) * num_parts / graph.num_nodes
    ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return Partition(ptr, order, method, cut, balance, graph.fingerprint, asked, fallback)


def _by_cluster_and_degree(graph: Graph, cluster: Tensor) -> Tensor:
    """Nodes sorted by cluster, then by descending degree, then by id."""
    degree = graph.degree
    most = int(degree.max())
    return torch.sort(cluster.long() * (most + 1) + (most - degree), stable=True).indices


def _fill_empty(cluster: Tensor, sizes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Move a node of lowest degree from the currently largest cluster into each empty one."""
    cluster, left = cluster.clone(), sizes.tolist()
    end = sizes.cumsum(0).tolist()
    largest = [(-size, k) for k, size in enumerate(left)]
    heapq.heapify(largest)
    for empty in torch.nonzero(sizes == 0).flatten().tolist():
        _, k = largest[0]
        end[k] -= 1
        left[k] -= 1
        cluster[order[end[k]]] = empty
        heapq.heapreplace(largest, (-left[k], k))
    return cluster, torch.bincount(cluster, minlength=sizes.numel())


def _save(path: Path, result: Partition) -> None:
    """Write the cache file. A failure is a notice: the partition itself is good."""
    try:
        with replacing(path) as file:
            np.savez(
                file, format=FORMAT, key=path.stem, ptr=result.ptr.numpy(), order=result.order.numpy(), method=result.method,
                cut=result.cut, balance=result.balance, asked=str(result.asked), fallback=result.fallback or "",
            )  # fmt: skip
    except OSError as error:
        notice(f"the partition is not cached: {error}")


def _load(path: Path, graph: Graph, num_parts: int, choice: str, asked: str) -> Partition | None:
    """The cached partition of ``choice``; None if there is no valid one. Says why another method ran, if one did."""
    if not path.exists():
        return None
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if str(file["format"]) != FORMAT or str(file["key"]) != path.stem:
                raise ValueError("it is of another version or graph")
            ptr, order = torch.from_numpy(file["ptr"]), torch.from_numpy(file["order"])
            method, cut = str(file["method"]), float(file["cut"])
            reason = str(file["fallback"]) if "fallback" in file else ""  # the first versions did not write it
        check.tensor("order", order, (torch.int64,), 1)
        check.tensor("ptr", ptr, (torch.int64,), 1)
        check.size("ptr", ptr, 0, num_parts + 1, "one per cluster, and the end")
        check.row_pointers("ptr", ptr, graph.num_nodes, "nodes")
        sizes = ptr.diff()
        if int(sizes.min()) < 1 or not torch.equal(order.sort().values, torch.arange(graph.num_nodes)):
            raise ValueError("a cluster is empty, or order is not a permutation of all nodes")
    except Exception as error:  # a damaged file can lead to any error
        notice(f"{path} cannot be used, the partition is made again: {error}")
        return None
    fallback = None
    if method != choice:  # of version 0.1, whose METIS was replaced where it failed
        fallback = reason or NOT_RECORDED
    elif asked == "auto":
        fallback = reason or None
    if fallback:
        notice(f"{graph.name} was divided by {method}: {fallback}. To try again, remove {path}")
    balance = int(sizes.max()) * num_parts / graph.num_nodes
    return Partition(ptr, order, method, cut, balance, graph.fingerprint, asked, fallback)
