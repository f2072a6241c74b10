"""Places for new nodes among the rows of a batch, on a CPU.

Each thread marks its nodes in its own bitmap over all nodes, as ``halo`` does. The bits of nodes that have a place are cleared
where the bitmaps are merged: positions are read there in order. Reading the bits from front to back gives the new nodes in
ascending order. Last, the places are gathered.
Bytes: the nodes twice, N / 8 per thread for the bitmaps, 4 per distinct node and 8 per node for the places.
"""

import ctypes

import numpy as np
import torch

from .intrinsics import (
    count_up,
    load_i32,
    load_i64,
    load_index,
    load_u64,
    next_ticket,
    prefetch_near,
    store_i32,
    store_i64,
    store_u64,
    trailing_zeros,
)
from .pool import Task, chunk_size, team_size

COUNT, CHUNK, BITMAPS, WORDS, NODES, WIDE, NEXT_BITMAP = range(1, 8)
POSITION, COUNTS, TEAM = 5, 6, 7
FRESH, FIRST = 7, 8
G_POSITION, G_NODES, G_WIDE, PLACES = range(3, 7)

AHEAD = 16
WORDS_PER_CHUNK = 512  # at least
BITMAP_BYTES = 64 << 20  # for all threads; if it is not enough, fewer threads mark


@Task
def mark_task(block):
    """bitmaps[b] |= nodes; b is the thread's number."""
    count, chunk, nodes, wide = block[COUNT], block[CHUNK], block[NODES], block[WIDE]
    bitmap = block[BITMAPS] + 8 * block[WORDS] * count_up(block[NEXT_BITMAP])
    one, low = np.uint64(1), np.uint64(63)
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        for k in range(begin, min(begin + chunk, count)):
            g = load_index(nodes, wide, k)
            word = bitmap + 8 * (g >> 6)
            store_u64(word, load_u64(word) | (one << (np.uint64(g) & low)))


@Task
def merge_task(block):
    """bitmaps[0] = the new nodes; counts[c] = their number in chunk c."""
    words, chunk, bitmaps, position = block[COUNT], block[CHUNK], block[BITMAPS], block[POSITION]
    one = np.uint64(1)
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= words:
            break
        count = 0
        for w in range(begin, min(begin + chunk, words)):
            seen = np.uint64(0)
            for b in range(block[TEAM]):
                seen |= load_u64(bitmaps + 8 * words * b + 8 * w)
            left, fresh = seen, seen
            while left != 0:
                bit = trailing_zeros(left)
                is_fresh = load_i32(position + 4 * (64 * w + bit)) < 0
                fresh &= ~(np.uint64(not is_fresh) << np.uint64(bit))
                count += is_fresh
                left &= left - one
            store_u64(bitmaps + 8 * w, fresh)
        store_i64(block[COUNTS] + 8 * ticket, count)


@Task
def emit_task(block):
    """Lists the new nodes and writes their positions."""
    words, chunk, bitmaps, position = block[COUNT], block[CHUNK], block[BITMAPS], block[POSITION]
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
    count, chunk, position, nodes, wide = block[COUNT], block[CHUNK], block[G_POSITION], block[G_NODES], block[G_WIDE]
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        ahead = max(begin, end - AHEAD)
        for k in range(begin, ahead):
            prefetch_near(position + 4 * load_index(nodes, wide, k + AHEAD))
            store_i32(block[PLACES] + 4 * k, load_i32(position + 4 * load_index(nodes, wide, k)))
        for k in range(ahead, end):
            store_i32(block[PLACES] + 4 * k, load_i32(position + 4 * load_index(nodes, wide, k)))


def place_nodes(position: torch.Tensor, nodes: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(fresh, places): the nodes without a place, sorted, which get places from ``first`` on; the places of ``nodes``."""
    count, words = nodes.numel(), (position.numel() + 63) // 64
    places = torch.empty(count, dtype=torch.int32)
    if count == 0:
        return torch.empty(0, dtype=torch.int64), places
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
    mark_task.launch(count, chunk, bitmaps, words, nodes, wide, next_bitmap)
    merge_task.launch(words, word_chunk, bitmaps, words, position, counts, team)
    size = sum((ctypes.c_int64 * chunks).from_address(counts))
    fresh = torch.empty(size, dtype=torch.int64)
    emit_task.launch(words, word_chunk, bitmaps, words, position, counts, fresh, first)
    gather_task.launch(count, chunk, position, nodes, wide, places)
    return fresh, places
