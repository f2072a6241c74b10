"""Places for new nodes among the rows of a batch, on a CPU.

Each thread marks new nodes in its own bitmap over all nodes, as ``halo`` does. Reading the bits from front to back gives
them in ascending order, and their positions are written meanwhile. Last, the places are gathered.
Bytes: the nodes and their positions twice, N / 8 per thread for the bitmaps, 12 per new node, 4 per node for the places.
"""

import ctypes

import numpy as np
import torch
from numba import njit

from .intrinsics import (
    count_up,
    load_i32,
    load_i64,
    load_index,
    load_u64,
    next_ticket,
    popcount,
    prefetch_near,
    store_i32,
    store_i64,
    store_u64,
    trailing_zeros,
)
from .pool import Task, chunk_size, team_size

COUNT, CHUNK, POSITION, NODES, WIDE = range(1, 6)
BITMAPS, WORDS, NEXT_BITMAP = 6, 7, 8
PLACES = 6
M_BITMAPS, M_TEAM, COUNTS, FRESH, FIRST = range(4, 9)

AHEAD = 16
WORDS_PER_CHUNK = 512  # at least
BITMAP_BYTES = 64 << 20  # for all threads; if it is not enough, fewer threads mark


@njit(forceinline=True)
def ask_ahead(position, nodes, wide, k, end):
    if k + AHEAD < end:
        prefetch_near(position + 4 * load_index(nodes, wide, k + AHEAD))


@Task
def mark_task(block):
    """bitmaps[b] |= the new ones of nodes; b is the thread's number."""
    count, chunk, position, nodes, wide = block[COUNT], block[CHUNK], block[POSITION], block[NODES], block[WIDE]
    bitmap = block[BITMAPS] + 8 * block[WORDS] * count_up(block[NEXT_BITMAP])
    low = np.uint64(63)
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        for k in range(begin, end):
            ask_ahead(position, nodes, wide, k, end)
            g = load_index(nodes, wide, k)
            word = bitmap + 8 * (g >> 6)
            is_new = np.uint64(load_i32(position + 4 * g) < 0)  # no branch: it would be mispredicted often
            store_u64(word, load_u64(word) | (is_new << (np.uint64(g) & low)))


@Task
def merge_task(block):
    """bitmaps[0] = the new nodes; counts[c] = their number in chunk c."""
    words, chunk, bitmaps = block[COUNT], block[CHUNK], block[M_BITMAPS]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= words:
            break
        count = 0
        for w in range(begin, min(begin + chunk, words)):
            new = load_u64(bitmaps + 8 * w)
            for b in range(1, block[M_TEAM]):
                new |= load_u64(bitmaps + 8 * words * b + 8 * w)
            store_u64(bitmaps + 8 * w, new)
            count += popcount(new)
        store_i64(block[COUNTS] + 8 * ticket, count)


@Task
def emit_task(block):
    """Lists the new nodes and writes their positions."""
    words, chunk, position, bitmaps = block[COUNT], block[CHUNK], block[POSITION], block[M_BITMAPS]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= words:
            break
        at = 0
        for c in range(ticket):  # at most 1024 chunks
            at += load_i64(block[COUNTS] + 8 * c)
        for w in range(begin, min(begin + chunk, words)):
            left = load_u64(bitmaps + 8 * w)
            while left != 0:
                g = 64 * w + trailing_zeros(left)
                store_i64(block[FRESH] + 8 * at, g)
                store_i32(position + 4 * g, np.int32(block[FIRST] + at))
                left &= left - np.uint64(1)
                at += 1


@Task
def gather_task(block):
    """places = position[nodes]"""
    count, chunk, position, nodes, wide = block[COUNT], block[CHUNK], block[POSITION], block[NODES], block[WIDE]
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        for k in range(begin, end):
            ask_ahead(position, nodes, wide, k, end)
            store_i32(block[PLACES] + 4 * k, load_i32(position + 4 * load_index(nodes, wide, k)))


def place_nodes(position: torch.Tensor, nodes: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, places): the nodes without a place, sorted, which get places from ``first`` on; the places of ``nodes``."""
    count, words = nodes.numel(), (position.numel() + 63) // 64
    places = torch.empty(count, dtype=torch.int32)
    if count == 0:
        return torch.empty(0, dtype=torch.int64), places
    if not position.is_contiguous():
        copied = position.contiguous()
        found = place_nodes(copied, nodes, first)
        position.copy_(copied)
        return found
    wide = int(nodes.dtype == torch.int64)
    at_once = max(1, BITMAP_BYTES // (8 * words))
    chunk = max(chunk_size(count, 1024, 16384), -(-count // at_once))
    team = team_size(count, chunk)
    word_chunk = max(WORDS_PER_CHUNK, -(-words // 1024))
    chunks = -(-words // word_chunk)
    # One allocation: bitmaps, the number of bitmaps in use, new nodes per chunk of words.
    memory = torch.zeros(team * words + 1 + chunks, dtype=torch.int64)
    bitmaps = memory.data_ptr()
    next_bitmap = bitmaps + 8 * team * words
    counts = next_bitmap + 8
    mark_task.launch(count, chunk, position, nodes, wide, bitmaps, words, next_bitmap)
    merge_task.launch(words, word_chunk, position, bitmaps, team, counts)
    size = sum((ctypes.c_int64 * chunks).from_address(counts))
    fresh = torch.empty(size, dtype=torch.int64)
    emit_task.launch(words, word_chunk, position, bitmaps, team, counts, fresh, first)
    gather_task.launch(count, chunk, position, nodes, wide, places)
    return fresh, places
