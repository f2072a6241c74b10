"""Edges in any order to CSR, on a CPU: a counting sort in two levels.

A bucket holds 2^shift consecutive node ids. First the edges are scattered into buckets. Each chunk of edges has its own
cursors, which come from a histogram. Then every bucket is sorted in cache. There are no atomics and every step is stable,
so the number of threads does not change the result. In its bucket, an edge is stored as its value, already in the result's
array, and 2 bytes for the node within the bucket.

Bytes: each end of an edge is read twice; (index size + 2) per edge are written and read, and the index again written.
"""

import ctypes

import numpy as np
import torch
from numba import njit

from .intrinsics import load_i64, load_index, load_u16, load_u64, next_ticket, store_i64, store_index, store_u16, store_u64
from .pool import Task
from .radix import sort_words

COUNT, CHUNK = 1, 2
SOURCE, SOURCE_WIDE, TARGET, TARGET_WIDE, ROWPTR, NODES, MIRROR, SHIFT, BUCKETS, CURSORS = range(3, 13)
VALUES, VALUES_WIDE, LOW, NAMES, NAMES_WIDE = range(13, 18)
A_VALUES, A_WIDE, A_LOW, A_NAMES, A_NAMES_WIDE, A_STARTS, A_KEPT = range(3, 10)
A_DEGREES, A_NODES, A_SHIFT, A_BITS, A_UNIQUE, A_LARGEST = range(10, 16)

BUCKET_EDGES = 1 << 16  # edges of a bucket: two buffers of 8 bytes per edge fit a second-level cache
MOST_BUCKETS = 1 << 12  # the number of places that one thread writes to at a time
MOST_SHIFT = 16  # the node within its bucket is a uint16
CHUNKS_PER_THREAD = 4
NARROW = 1 << 31  # up to this number of nodes or edges, int32 is enough


@njit(forceinline=True)
def row_of(rowptr, nodes, k):
    """The row of edge k: the last non-empty row that starts at or before k."""
    low, high = 0, nodes
    while high - low > 1:
        middle = (low + high) // 2
        if load_i64(rowptr + 8 * middle) <= k:
            low = middle
        else:
            high = middle
    return low


@Task
def count_task(block):
    """cursors[chunk, b] = how many edges of the chunk belong to bucket b."""
    count, chunk, target, wide = block[COUNT], block[CHUNK], block[TARGET], block[TARGET_WIDE]
    source, source_wide, shift = block[SOURCE], block[SOURCE_WIDE], block[SHIFT]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        cursors = block[CURSORS] + 8 * ticket * block[BUCKETS]
        for k in range(begin, min(begin + chunk, count)):
            cursor = cursors + 8 * (load_index(target, wide, k) >> shift)
            store_i64(cursor, load_i64(cursor) + 1)
            if block[MIRROR]:
                cursor = cursors + 8 * (load_index(source, source_wide, k) >> shift)
                store_i64(cursor, load_i64(cursor) + 1)


@njit(forceinline=True)
def put(cursors, shift, key, value, values, wide, low):
    """Put the edge (value -> key) into the next place of key's bucket, and return that place."""
    cursor = cursors + 8 * (key >> shift)
    place = load_i64(cursor)
    store_i64(cursor, place + 1)
    store_index(values, wide, place, value)
    store_u16(low + 2 * place, np.uint16(key & ((1 << shift) - 1)))
    return place


@Task
def scatter_task(block):
    """Put every edge into its bucket. With ROWPTR the sources are the rows of a CSR."""
    count, chunk, target, wide = block[COUNT], block[CHUNK], block[TARGET], block[TARGET_WIDE]
    source, source_wide, shift = block[SOURCE], block[SOURCE_WIDE], block[SHIFT]
    rowptr, values, values_wide, low, names = block[ROWPTR], block[VALUES], block[VALUES_WIDE], block[LOW], block[NAMES]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        cursors = block[CURSORS] + 8 * ticket * block[BUCKETS]
        g, row_end = 0, 0
        if rowptr != 0:
            g = row_of(rowptr, block[NODES], begin)
            row_end = load_i64(rowptr + 8 * (g + 1))
        for k in range(begin, min(begin + chunk, count)):
            if rowptr != 0:
                while k >= row_end:
                    g += 1
                    row_end = load_i64(rowptr + 8 * (g + 1))
                s = g
            else:
                s = load_index(source, source_wide, k)
            t = load_index(target, wide, k)
            place = put(cursors, shift, t, s, values, values_wide, low)
            if names != 0:
                store_index(names, block[NAMES_WIDE], place, k)
            if block[MIRROR]:
                put(cursors, shift, s, t, values, values_wide, low)


@Task
def arrange_task(block):
    """Sort each bucket by node, and also by value if BITS > 0 (the bits of a value). UNIQUE removes duplicates.

    Writes the kept edges to the front of the bucket, degrees[node + 1] and kept[bucket]. With NAMES, places in the bucket
    are sorted, and values and names are fetched by them.
    """
    values, wide, low, names, shift = block[A_VALUES], block[A_WIDE], block[A_LOW], block[A_NAMES], block[A_SHIFT]
    largest, bits, degrees = block[A_LARGEST], block[A_BITS], block[A_DEGREES]
    memory = np.empty(2 * largest + 2048, np.uint64)
    fetched = np.empty(2 * largest if names != 0 else 1, np.int64)
    first = memory.ctypes.data
    second = first + 8 * largest
    counters = second + 8 * largest
    pairs = fetched.ctypes.data
    value_bits = np.uint64(48)
    value_mask = np.uint64((1 << 48) - 1)
    while True:
        bucket = next_ticket(block)
        if bucket >= block[COUNT]:
            break
        begin = load_i64(block[A_STARTS] + 8 * bucket)
        count = load_i64(block[A_STARTS] + 8 * bucket + 8) - begin
        for i in range(count):
            value = np.uint64(i if names != 0 else load_index(values, wide, begin + i))
            store_u64(first + 8 * i, (np.uint64(load_u16(low + 2 * (begin + i))) << value_bits) | value)
        words = sort_words(first, second, count, 0, bits, counters)
        other = second if words == first else first
        words = sort_words(words, other, count, 48, shift, counters)
        if names != 0:
            for i in range(count):
                store_i64(pairs + 16 * i, load_index(values, wide, begin + i))
                store_i64(pairs + 16 * i + 8, load_index(names, block[A_NAMES_WIDE], begin + i))
        node = bucket << shift
        last = min(node + (1 << shift), block[A_NODES])
        kept, degree, previous = 0, 0, np.uint64((1 << 64) - 1)
        for i in range(count):
            word = load_u64(words + 8 * i)
            at = (bucket << shift) + np.int64(word >> value_bits)
            while node < at:
                store_i64(degrees + 8 * (node + 1), degree)
                node += 1
                degree = 0
            if block[A_UNIQUE] == 0 or word != previous:
                value = np.int64(word & value_mask)
                if names != 0:
                    store_index(names, block[A_NAMES_WIDE], begin + kept, load_i64(pairs + 16 * value + 8))
                    value = load_i64(pairs + 16 * value)
                store_index(values, wide, begin + kept, value)
                kept += 1
                degree += 1
            previous = word
        while node < last:
            store_i64(degrees + 8 * (node + 1), degree)
            node += 1
            degree = 0
        store_i64(block[A_KEPT] + 8 * bucket, kept)
    memory[0] = 0  # keeps memory alive: Numba does not see uses by address
    fetched[0] = 0


def bucket_shift(nodes: int, edges: int) -> int:
    """The number of low bits of a node's id that identify it within its bucket."""
    wanted = min(MOST_BUCKETS, max(1, edges // BUCKET_EDGES))
    return min(MOST_SHIFT, max(0, (-(-nodes // wanted) - 1).bit_length()))


def edges_to_csr(
    source: torch.Tensor | None,
    target: torch.Tensor,
    nodes: int,
    *,
    rowptr: torch.Tensor | None = None,
    mirror: bool = False,
    sort: bool = True,
    unique: bool = False,
    names: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(rowptr, col, names): the CSR of the edges source[k] -> target[k], sorted by target.

    Args:
        rowptr: replaces source: the source of edge k is its row in this CSR.
        mirror: add the reverse of every edge. sort: columns ascend in each row; otherwise they keep the order of the edges.
        unique: remove duplicates (requires sort). names: also return k of each edge (without mirror, sort and unique).
    """
    count = target.numel()
    edges = 2 * count if mirror else count
    shift = bucket_shift(nodes, edges)
    buckets = max(1, -(-nodes // (1 << shift)))
    chunks = max(1, min(CHUNKS_PER_THREAD * torch.get_num_threads(), count // 1024))
    chunk = max(1, -(-count // chunks))
    chunks = -(-count // chunk)
    cursors = np.zeros((chunks, buckets), np.int64)
    # A CSR keeps its index type; for a list of edges, the number of nodes decides.
    wide = nodes > NARROW if rowptr is None else target.dtype == torch.int64
    names_wide = edges > NARROW
    ends = (source, int(source is not None and source.dtype == torch.int64), target, int(target.dtype == torch.int64))
    common = (*ends, rowptr, nodes, int(mirror), shift, buckets, cursors.ctypes.data)
    count_task.launch(count, chunk, *common)

    # NumPy's memory, because it can be shrunk in place.
    values = np.empty(edges, np.int64 if wide else np.int32)
    edge_names = np.empty(edges, np.int64 if names_wide else np.int32) if names else None
    names_address = 0 if edge_names is None else edge_names.ctypes.data
    low = np.empty(edges, np.uint16)
    starts = np.zeros(buckets + 1, np.int64)
    np.cumsum(cursors.sum(0), out=starts[1:])
    cursors[:] = np.cumsum(cursors, 0) - cursors + starts[:-1]
    scatter_task.launch(
        count, chunk, *common, values.ctypes.data, int(wide), low.ctypes.data, names_address, int(names_wide)
    )

    kept = np.zeros(buckets, np.int64)
    result = torch.empty(nodes + 1, dtype=torch.int64)
    result[0] = 0
    arrange_task.launch(
        buckets if nodes else 0, 1, values.ctypes.data, int(wide), low.ctypes.data, names_address, int(names_wide),
        starts.ctypes.data, kept.ctypes.data, result, nodes, shift, max(1, (nodes - 1).bit_length()) if sort else 0,
        int(unique), int(np.diff(starts).max(initial=0)),
    )  # fmt: skip
    del low
    if kept.sum() < edges:
        close_gaps(values, starts, kept)
    torch.cumsum(result, 0, out=result)
    return result, torch.from_numpy(values), None if edge_names is None else torch.from_numpy(edge_names)


def close_gaps(values: np.ndarray, starts: np.ndarray, kept: np.ndarray) -> None:
    """Move the first kept[b] elements of each starts[b] together, and release the memory behind them."""
    end = 0
    for begin, size in zip(starts.tolist(), kept.tolist(), strict=False):
        if end != begin and size:
            at = values.ctypes.data
            ctypes.memmove(at + end * values.itemsize, at + begin * values.itemsize, size * values.itemsize)
        end += size
    values.resize(end, refcheck=False)  # realloc: pages at the end are released, nothing is copied
