"""The unique out-of-batch neighbours of a set of rows, on a CPU.

Two bitmaps over all nodes mark the rows and their neighbours. Their difference, read from front to back, is the sorted halo,
without a sort or a hash table. Each thread has its own bitmaps and writes without atomics and without reading first. In
shared bitmaps, the threads would compete for cache lines.
Bytes: index bytes per edge of the rows, N / 4 per thread for the bitmaps, 8 per halo node.
"""

import ctypes

import numpy as np
import torch

from .intrinsics import count_up, load_i64, load_index, load_u64, next_ticket, popcount, store_i64, store_u64, trailing_zeros
from .pool import Task, chunk_size, team_size

COUNT, CHUNK, BITMAPS, WORDS = 1, 2, 3, 4
ROWPTR, COL, COL_WIDE, ROWS, NEXT_BITMAP = range(5, 10)
BITMAP_COUNT, COUNTS = 5, 6
OUT = 5

WORDS_PER_CHUNK = 512  # at least
BITMAP_BYTES = 64 << 20  # for all threads; if it is not enough, fewer threads mark


@Task
def mark_task(block):
    """bitmaps[b, 0] |= rows; bitmaps[b, 1] |= their neighbours; b is the thread's number."""
    count, chunk, rowptr, col, wide = block[COUNT], block[CHUNK], block[ROWPTR], block[COL], block[COL_WIDE]
    rows, words = block[ROWS], block[WORDS]
    inside = block[BITMAPS] + 16 * words * count_up(block[NEXT_BITMAP])
    seen = inside + 8 * words
    one, low = np.uint64(1), np.uint64(63)
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        i = begin
        while i < end:
            # Consecutive nodes have contiguous edges: one loop covers them. Clusters are mostly consecutive.
            first = load_i64(rows + 8 * i)
            g = first
            while i < end and load_i64(rows + 8 * i) == g:
                word = inside + 8 * (g >> 6)
                store_u64(word, load_u64(word) | (one << (np.uint64(g) & low)))
                g += 1
                i += 1
            for k in range(load_i64(rowptr + 8 * first), load_i64(rowptr + 8 * g)):
                c = load_index(col, wide, k)
                word = seen + 8 * (c >> 6)
                store_u64(word, load_u64(word) | (one << (np.uint64(c) & low)))


@Task
def merge_task(block):
    """bitmaps[0, 0] = the halo; counts[c] = the number of halo nodes in chunk c."""
    words, chunk, bitmaps, counts = block[COUNT], block[CHUNK], block[BITMAPS], block[COUNTS]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= words:
            break
        count = 0
        for w in range(begin, min(begin + chunk, words)):
            inside, seen = np.uint64(0), np.uint64(0)
            for b in range(block[BITMAP_COUNT]):
                inside |= load_u64(bitmaps + 16 * words * b + 8 * w)
                seen |= load_u64(bitmaps + 16 * words * b + 8 * words + 8 * w)
            store_u64(bitmaps + 8 * w, seen & ~inside)
            count += popcount(seen & ~inside)
        store_i64(counts + 8 * ticket, count)


@Task
def emit_task(block):
    words, chunk, bitmaps, counts = block[COUNT], block[CHUNK], block[BITMAPS], block[COUNTS]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= words:
            break
        at = block[OUT]
        for c in range(ticket):  # at most 1024 chunks
            at += 8 * load_i64(counts + 8 * c)
        for w in range(begin, min(begin + chunk, words)):
            left = load_u64(bitmaps + 8 * w)
            while left != 0:
                store_i64(at, 64 * w + trailing_zeros(left))
                left &= left - np.uint64(1)
                at += 8


def halo(rowptr: torch.Tensor, col: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The sorted int64 ids of the neighbours of ``rows`` that are not in ``rows``."""
    count, words = rows.numel(), (rowptr.numel() - 1 + 63) // 64
    if count == 0 or words == 0:
        return torch.empty(0, dtype=torch.int64)
    at_once = max(1, BITMAP_BYTES // (16 * words))
    chunk = max(chunk_size(count, 64, 1024), -(-count // at_once))
    team = team_size(count, chunk)
    word_chunk = max(WORDS_PER_CHUNK, -(-words // 1024))
    chunks = -(-words // word_chunk)
    # One allocation: bitmaps, the number of bitmaps in use, halo nodes per chunk of words.
    memory = torch.zeros(team * 2 * words + 1 + chunks, dtype=torch.int64)
    bitmaps = memory.data_ptr()
    next_bitmap = bitmaps + 16 * team * words
    counts = next_bitmap + 8
    mark_task.launch(count, chunk, bitmaps, words, rowptr, col, int(col.dtype == torch.int64), rows, next_bitmap)
    merge_task.launch(words, word_chunk, bitmaps, words, team, counts)
    size = sum((ctypes.c_int64 * chunks).from_address(counts))  # for so few numbers, faster than a torch op
    out = torch.empty(size, dtype=torch.int64)
    emit_task.launch(words, word_chunk, bitmaps, words, out, counts)
    return out
