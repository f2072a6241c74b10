"""Clusters: a graph's nodes in groups with few edges between them, and the order that makes each group a range of rows."""

import heapq
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from . import metis as metis_worker
from .graph import Graph
from ..kernels.cpu.partition import Greedy, breadth_first, cut_edges
from ..utils.machine import available_memory
from ..ops import check
from ..utils.progress import Progress, notice, progress

Method = Literal["metis", "stream", "random"]
PARTITIONERS: tuple[str, ...] = get_args(Method)
FORMAT = "rest_triton partition 1"  # of the files; another number for another content
MOST_SEEDS = 2**31  # METIS may be built with 32-bit integers

SLACK = 5  # percent that a streamed cluster may be larger than the mean
MOST_PASSES = 10  # over the edges after the first one
LEAST_GAIN = 0.01  # of the cut, by a pass: with less the next one is not worth its time


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """Clusters of a graph's nodes, none of them empty.

    Args:
        ptr: int64[K+1]; cluster k is nodes ``ptr[k] .. ptr[k+1]`` of the permuted graph, those of high degree first.
        order: int64[N]; node i of the permuted graph is node ``order[i]`` of the original.
        method: who made it: "metis", "stream" or "random".
        cut: the share of directed edges whose ends are in different clusters.
        balance: the size of the largest cluster over that of the mean one.
        fingerprint: of the graph that it was made for, or None if that is not known.
    """

    ptr: Tensor
    order: Tensor
    method: str
    cut: float
    balance: float
    fingerprint: str | None = None

    @property
    def num_clusters(self) -> int:
        return self.ptr.numel() - 1

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
                f"the partition was made for another graph, of {self.order.numel():,} nodes, than {graph.name}, of "
                f"{graph.num_nodes:,}; apply it to the graph that was given to partition(), before any change of its edges"
            )
        return graph.permute(self.order)

    def describe(self) -> str:
        """One line for people: ``40 clusters by metis: 12.3 % of edges cut, balance 1.03``."""
        clusters = f"{self.num_clusters:,} cluster{'s' * (self.num_clusters != 1)} by {self.method}"
        return f"{clusters}: {100 * self.cut:.1f} % of edges cut, balance {self.balance:.2f}"

    def __repr__(self) -> str:
        return f"Partition({self.describe()})"


def partition(
    graph: Graph, num_parts: int, *, method: Method = "metis", seed: int = 0, root: Path | str | None = None
) -> Partition:
    """Divide the nodes of a graph into ``num_parts`` clusters of about equal size.

    Directions, self-loops and duplicates of edges do not matter for where a node goes; ``cut`` counts the edges as they are.

    Args:
        num_parts: how many. More than there are nodes means one node each.
        method: ``metis``: METIS's multilevel k-way partitioning, few edges cut. ``stream``: greedy passes over the edges, in
            the memory of a few numbers per node, clusters at most 5 % larger than the mean; it also takes over where METIS
            fails, and says so. ``random``: nothing but the sizes is looked at.
        seed: 0 to 2^31 - 1. The same graph, num_parts, method and seed give the same clusters.
        root: the folder in whose ``partitions`` results are kept and looked for; None keeps nothing.

    Example::

        clusters = partition(graph, 40, root="data")  # Partition(40 clusters by metis: 12.3 % of edges cut, balance 1.03)
        graph = clusters.apply(graph)
    """
    _check(graph, num_parts, method, seed)
    if num_parts > graph.num_nodes:
        notice(f"{graph.name} has {graph.num_nodes:,} nodes for {num_parts:,} clusters: each node is a cluster of its own")
        num_parts = graph.num_nodes
    key = f"{graph.fingerprint}-{method}-{num_parts}-{seed}"
    path = None
    if root is not None:
        path = Path(root, "partitions", f"{key}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)  # or fail, before the work rather than after it
        kept = _load(path, key, graph, num_parts)
        if kept is not None:
            if kept.method != method:
                notice(f"{graph.name} is divided by {kept.method}, as {method} could not do it; to try again, remove {path}")
            return kept
    with progress(f"dividing {graph.name} into {num_parts:,} clusters") as shown:
        cluster, made_by = _divide(graph, num_parts, method, seed, path, shown)
        shown.say("ordering")
        made = _arrange(graph, cluster, num_parts, made_by)
    if path is not None:
        _save(path, key, made)
    return made


def _check(graph: Graph, num_parts: int, method: str, seed: int) -> None:
    if not isinstance(num_parts, int) or isinstance(num_parts, bool) or num_parts < 1:
        raise ValueError(f"num_parts is {num_parts!r}; it must be a whole number of clusters, 1 or more")
    if method not in PARTITIONERS:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(PARTITIONERS)}")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < MOST_SEEDS:
        raise ValueError(f"seed is {seed!r}; it must be a whole number from 0 to {MOST_SEEDS - 1}")
    if graph.num_nodes == 0:
        raise ValueError(f"{graph.name} has no nodes; there is nothing to divide into clusters")


def _divide(graph: Graph, num_parts: int, method: str, seed: int, path: Path | None, shown: Progress) -> tuple[Tensor, str]:
    """The cluster of each node, int32[N], and the method that found it."""
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int32), method
    if num_parts == graph.num_nodes:
        return torch.arange(num_parts, dtype=torch.int32), method
    if method == "random":
        return _random(graph.num_nodes, num_parts, seed), method
    shown.say("edges both ways")
    graph = graph.symmetrise().without_self_loops()
    if method == "metis":
        shown.say("METIS")
        why = metis_worker.why_not(graph.num_nodes, graph.num_edges, metis_worker.index_dtype(), available_memory())
        if why is None:
            try:
                folder = None if path is None else path.parent
                found = metis_worker.run(graph.rowptr.numpy(), graph.col.numpy(), num_parts, seed, folder)
                return torch.from_numpy(found), method
            except metis_worker.MetisFailedError as error:
                why = str(error)
        notice(f"METIS cannot divide {graph.name}: {why}. The streaming partitioner takes over")
    return _stream(graph, num_parts, seed, shown), "stream"


def _random(nodes: int, num_parts: int, seed: int) -> Tensor:
    shuffled = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    return (shuffled % num_parts).to(torch.int32)


def _stream(graph: Graph, num_parts: int, seed: int, shown: Progress) -> Tensor:
    """Restreaming linear deterministic greedy (Nishimura and Ugander, 2013).

    The first pass goes breadth first from random roots: on lattices an order without locality ends with more than twice the
    cut. Later passes go by id: with every node placed, the order matters little, and memory is read from front to back.
    """
    rowptr, col = graph.rowptr.contiguous(), graph.col.contiguous()
    clusters = Greedy(rowptr, col, num_parts, capacity=-(-(100 + SLACK) * graph.num_nodes // (100 * num_parts)))
    roots = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    shown.say("streaming")
    clusters.place(breadth_first(rowptr, col, roots))
    cut = cut_edges(rowptr, col, clusters.cluster)
    for i in range(MOST_PASSES):
        shown.say(f"streaming, {100 * cut / max(1, graph.num_edges):.1f} % of edges cut after {i + 1} passes")
        before, cut_before = clusters.cluster.clone(), cut
        clusters.place()
        cut = cut_edges(rowptr, col, clusters.cluster)
        if cut >= cut_before:
            return before
        if cut > (1 - LEAST_GAIN) * cut_before:
            break
    return clusters.cluster


def _arrange(graph: Graph, cluster: Tensor, num_parts: int, method: str) -> Partition:
    """The partition that puts node g into ``cluster[g]``, once every cluster has a node."""
    sizes = torch.bincount(cluster, minlength=num_parts)
    order = _by_cluster_and_degree(graph, cluster)
    if int(sizes.min()) == 0:
        cluster, sizes = _fill_empty(cluster, sizes, order)
        order = _by_cluster_and_degree(graph, cluster)
    cut = cut_edges(graph.rowptr.contiguous(), graph.col.contiguous(), cluster) / max(1, graph.num_edges)
    balance = int(sizes.max()) * num_parts / graph.num_nodes
    ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return Partition(ptr, order, method, cut, balance, graph.fingerprint)


def _by_cluster_and_degree(graph: Graph, cluster: Tensor) -> Tensor:
    """Nodes by cluster, inside a cluster from high to low degree, those of one degree by id."""
    degree = graph.degree
    most = int(degree.max())
    return torch.sort(cluster.long() * (most + 1) + (most - degree), stable=True).indices


def _fill_empty(cluster: Tensor, sizes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Each empty cluster gets a node of the largest one at that time: one of lowest degree, which cuts least."""
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


def _save(path: Path, key: str, made: Partition) -> None:
    """All of the file or none of it. Without room for it the partition is still good: that is said, not raised."""
    scratch = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with open(scratch, "wb") as file:
            np.savez(
                file,
                format=FORMAT,
                key=key,
                method=made.method,
                cut=made.cut,
                ptr=made.ptr.numpy(),
                order=made.order.numpy(),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        notice(f"the partition is not kept for the next time: {error}")
    finally:
        scratch.unlink(missing_ok=True)


def _load(path: Path, key: str, graph: Graph, num_parts: int) -> Partition | None:
    """What was kept, or None if there is nothing, or nothing that can be trusted."""
    if not path.exists():
        return None
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if str(file["format"]) != FORMAT or str(file["key"]) != key:
                raise ValueError("it is of another version or graph")
            ptr, order = torch.from_numpy(file["ptr"]), torch.from_numpy(file["order"])
            method, cut = str(file["method"]), float(file["cut"])
        check.tensor("order", order, (torch.int64,), 1)
        check.tensor("ptr", ptr, (torch.int64,), 1)
        check.size("ptr", ptr, 0, num_parts + 1, "one per cluster, and the end")
        check.row_pointers("ptr", ptr, graph.num_nodes, "nodes")
        sizes = ptr.diff()
        if int(sizes.min()) < 1 or not torch.equal(order.sort().values, torch.arange(graph.num_nodes)):
            raise ValueError("a cluster is empty, or its order is not one of all nodes")
    except Exception as error:  # whatever a file that anything may have been done to leads to
        notice(f"{path} cannot be used, the partition is made again: {error}")
        return None
    return Partition(ptr, order, method, cut, int(sizes.max()) * num_parts / graph.num_nodes, graph.fingerprint)
