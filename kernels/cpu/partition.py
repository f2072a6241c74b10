"""Streaming partition and the edge cut, on a CPU.

Nodes come one at a time. Node g goes to the cluster k with the highest score

    (neighbours of g in k) * (capacity - size of k)          linear deterministic greedy, times the capacity

If no neighbour's cluster has room, it goes to the smallest cluster. Only the clusters of neighbours are scored, so a pass
costs O(edges + nodes) for any number of clusters. Each placement depends on the previous ones, so there is one thread. The
time of a pass goes into reading the clusters of neighbours, one random read per edge; they are prefetched.
"""

import numpy as np
import torch
from numba import njit

from .intrinsics import load_i32, load_i64, load_index, next_ticket, prefetch_near, store_i32, store_i64
from .pool import Task, chunk_size

COUNT, CHUNK = 1, 2
ROWPTR, COL, COL_WIDE, CLUSTER = range(3, 7)
ROOTS, QUEUE, NODES = 7, 8, 9
CUT_COUNTS = 7
ORDER, BEGIN, END, EDGES, CAPACITY, SIZE, NEIGHBOURS, TOUCHED, FIRST, AFTER, BEFORE, LEAST = range(7, 19)

UNSEEN, UNPLACED = -2, -1
AHEAD = 48  # edges between the prefetch of a neighbour's cluster and its use
NODES_PER_LAUNCH = 1 << 20  # Ctrl-C takes effect between two launches


@Task
def breadth_first_task(block):
    """queue = all nodes, breadth first from the roots in turn. cluster: UNSEEN becomes UNPLACED."""
    rowptr, col, wide, cluster = block[ROWPTR], block[COL], block[COL_WIDE], block[CLUSTER]
    queue = block[QUEUE]
    begin = end = 0
    for i in range(block[NODES]):
        root = load_i64(block[ROOTS] + 8 * i)
        if load_i32(cluster + 4 * root) != UNSEEN:
            continue
        store_i32(cluster + 4 * root, np.int32(UNPLACED))
        store_i64(queue + 8 * end, root)
        end += 1
        while begin < end:
            g = load_i64(queue + 8 * begin)
            begin += 1
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)):
                c = load_index(col, wide, k)
                if load_i32(cluster + 4 * c) == UNSEEN:
                    store_i32(cluster + 4 * c, np.int32(UNPLACED))
                    store_i64(queue + 8 * end, c)
                    end += 1


@njit
def resize(block, k, change):
    """size[k] += change; move k to the list of clusters of its new size; least = the smallest size."""
    first, after, before = block[FIRST], block[AFTER], block[BEFORE]
    size = load_i64(block[SIZE] + 8 * k)
    left, right = load_i64(before + 8 * k), load_i64(after + 8 * k)
    if left >= 0:
        store_i64(after + 8 * left, right)
    else:
        store_i64(first + 8 * size, right)
    if right >= 0:
        store_i64(before + 8 * right, left)
    # Sizes change by one, so the smallest size needs no search.
    least = load_i64(block[LEAST])
    if size == least and (change < 0 or load_i64(first + 8 * size) < 0):
        store_i64(block[LEAST], size + change)
    size += change
    head = load_i64(first + 8 * size)
    store_i64(block[SIZE] + 8 * k, size)
    store_i64(before + 8 * k, -1)
    store_i64(after + 8 * k, head)
    store_i64(first + 8 * size, k)
    if head >= 0:
        store_i64(before + 8 * head, k)


@njit
def best_cluster(block, g):
    """The cluster with the highest score for g; ties go to the smaller, then to the first. -1 if none has room."""
    rowptr, col, wide, cluster = block[ROWPTR], block[COL], block[COL_WIDE], block[CLUSTER]
    neighbours, touched, capacity, last = block[NEIGHBOURS], block[TOUCHED], block[CAPACITY], block[EDGES] - 1
    count = 0
    for e in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)):
        prefetch_near(cluster + 4 * load_index(col, wide, min(e + AHEAD, last)))
        k = np.int64(load_i32(cluster + 4 * load_index(col, wide, e)))
        if k >= 0:
            seen = load_i64(neighbours + 8 * k)
            if seen == 0:
                store_i64(touched + 8 * count, k)
                count += 1
            store_i64(neighbours + 8 * k, seen + 1)
    best, best_score, best_room = -1, 0, 0
    for i in range(count):
        k = load_i64(touched + 8 * i)
        room = capacity - load_i64(block[SIZE] + 8 * k)
        score = load_i64(neighbours + 8 * k) * room
        store_i64(neighbours + 8 * k, 0)
        if score > best_score or (score == best_score and room > best_room):
            best, best_score, best_room = k, score, room
    return best


@Task
def place_task(block):
    """For each node in turn: remove it from its cluster, if any, and put it where it scores highest."""
    for i in range(block[BEGIN], block[END]):
        g = load_i64(block[ORDER] + 8 * i) if block[ORDER] else i
        place = block[CLUSTER] + 4 * g
        old = np.int64(load_i32(place))
        if old >= 0:
            resize(block, old, -1)
        new = best_cluster(block, g)
        if new < 0:
            new = load_i64(block[FIRST] + 8 * load_i64(block[LEAST]))
        store_i32(place, np.int32(new))
        resize(block, new, 1)


@Task
def cut_task(block):
    """counts[t] = edges of the t-th chunk of rows whose ends are in different clusters."""
    count, chunk, rowptr, col, wide = block[COUNT], block[CHUNK], block[ROWPTR], block[COL], block[COL_WIDE]
    cluster = block[CLUSTER]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        cut = 0
        for g in range(begin, min(begin + chunk, count)):
            own = load_i32(cluster + 4 * g)
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)):
                cut += load_i32(cluster + 4 * load_index(col, wide, k)) != own
        store_i64(block[CUT_COUNTS] + 8 * ticket, cut)


def cut_edges(rowptr: torch.Tensor, col: torch.Tensor, cluster: torch.Tensor) -> int:
    """The number of edges between different clusters. cluster: int32[N]."""
    count = rowptr.numel() - 1
    if col.numel() == 0:
        return 0
    chunk = chunk_size(count, 64, 4096)
    counts = torch.empty(-(-count // chunk), dtype=torch.int64)
    cut_task.launch(count, chunk, rowptr, col, int(col.dtype == torch.int64), cluster, counts)
    return int(counts.sum())


class Greedy:
    """Clusters that are filled by passes over a graph's nodes. Every pass starts from the result of the previous one.

    ``cluster``, int32[N], is the cluster of each node, -1 before the first pass. No cluster exceeds ``capacity``.
    rowptr int64[N+1] and col int32 or int64 [E], contiguous, are of an undirected graph without self-loops.
    """

    def __init__(self, rowptr: torch.Tensor, col: torch.Tensor, clusters: int, capacity: int) -> None:
        nodes = rowptr.numel() - 1
        if clusters * capacity < nodes:
            raise ValueError(f"{clusters} clusters of {capacity} cannot hold {nodes} nodes; raise the capacity")
        self.rowptr, self.col, self.capacity = rowptr, col, capacity
        self.cluster = torch.full((nodes,), UNPLACED, dtype=torch.int32)
        # Clusters of one size form a linked list, so that the smallest cluster is known: first of each size, before, after.
        self.size, self.neighbours, self.touched = torch.zeros(3, clusters, dtype=torch.int64)
        self.first = torch.full((capacity + 1,), -1)
        self.first[0] = 0
        self.before = torch.arange(-1, clusters - 1)
        self.after = torch.arange(1, clusters + 1)
        self.after[-1] = -1
        self.least = torch.zeros(1, dtype=torch.int64)

    def place(self, order: torch.Tensor | None = None) -> None:
        """One pass: each node is removed and put where it scores highest, in this order, int64[N] (None: by id)."""
        nodes, wide = self.cluster.numel(), int(self.col.dtype == torch.int64)
        for begin in range(0, nodes, NODES_PER_LAUNCH):
            place_task.launch(
                1, 1, self.rowptr, self.col, wide, self.cluster, order, begin, min(begin + NODES_PER_LAUNCH, nodes),
                self.col.numel(), self.capacity, self.size, self.neighbours, self.touched,
                self.first, self.after, self.before, self.least,
            )  # fmt: skip


def breadth_first(rowptr: torch.Tensor, col: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
    """All nodes, int64[N], breadth first from ``roots[0]``, then from the first root that was not reached, and so on.

    roots: int64[N], a permutation.
    """
    nodes = roots.numel()
    queue = torch.empty(nodes, dtype=torch.int64)
    marks = torch.full((nodes,), UNSEEN, dtype=torch.int32)
    breadth_first_task.launch(1, 1, rowptr, col, int(col.dtype == torch.int64), marks, roots, queue, nodes)
    return queue
