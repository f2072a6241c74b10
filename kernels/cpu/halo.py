"""The unique out-of-batch neighbours of a set of rows, on a CPU.

Two bitmaps over all nodes: who is in the set, and who is a neighbour of it. Reading the difference from front to back
yields the halo sorted, with no sort and no hash table. Bytes: index bytes per edge of the rows, N / 4 for the bitmaps,
8 per halo node.
"""

import numpy as np
import torch

from .intrinsics import atomic_or, load_i64, load_index, load_u64, next_ticket, popcount, store_i64, trailing_zeros
from .pool import Task, chunk_size

(COUNT, CHUNK, ROWPTR, COL, COL_WIDE, ROWS, INSIDE, SEEN) = range(1, 9)
(WORDS, WORDS_CHUNK, WORDS_INSIDE, WORDS_SEEN, STARTS, OUT) = range(1, 7)

WORDS_PER_CHUNK = 512


@Task
def mark_task(block):
    while True:
        begin = next_ticket(block) * block[CHUNK]
        if begin >= block[COUNT]:
            break
        for i in range(begin, min(begin + block[CHUNK], block[COUNT])):
            g = load_i64(block[ROWS] + 8 * i)
            atomic_or(block[INSIDE] + 8 * (g >> 6), np.uint64(1) << np.uint64(g & 63))
            for k in range(load_i64(block[ROWPTR] + 8 * g), load_i64(block[ROWPTR] + 8 * g + 8)):
                c = load_index(block[COL], block[COL_WIDE], k)
                word, bit = block[SEEN] + 8 * (c >> 6), np.uint64(1) << np.uint64(c & 63)
                if load_u64(word) & bit == 0:  # most neighbours were seen before: no need to lock the line
                    atomic_or(word, bit)


@Task
def count_task(block):
    while True:
        ticket = next_ticket(block)
        begin = ticket * block[WORDS_CHUNK]
        if begin >= block[WORDS]:
            break
        count = 0
        for w in range(begin, min(begin + block[WORDS_CHUNK], block[WORDS])):
            count += popcount(load_u64(block[WORDS_SEEN] + 8 * w) & ~load_u64(block[WORDS_INSIDE] + 8 * w))
        store_i64(block[STARTS] + 8 * (ticket + 1), count)


@Task
def emit_task(block):
    while True:
        ticket = next_ticket(block)
        begin = ticket * block[WORDS_CHUNK]
        if begin >= block[WORDS]:
            break
        at = block[OUT] + 8 * load_i64(block[STARTS] + 8 * ticket)
        for w in range(begin, min(begin + block[WORDS_CHUNK], block[WORDS])):
            left = load_u64(block[WORDS_SEEN] + 8 * w) & ~load_u64(block[WORDS_INSIDE] + 8 * w)
            while left != 0:
                store_i64(at, 64 * w + trailing_zeros(left))
                left &= left - np.uint64(1)
                at += 8


def halo(rowptr: torch.Tensor, col: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The sorted int64 ids of the neighbours of ``rows`` that are not in ``rows``."""
    words = (rowptr.numel() - 1 + 63) // 64
    chunks = -(-words // WORDS_PER_CHUNK)
    if rows.numel() == 0 or words == 0:
        return torch.empty(0, dtype=torch.int64)
    inside, seen = torch.zeros(words, dtype=torch.int64), torch.zeros(words, dtype=torch.int64)
    wide = int(col.dtype == torch.int64)
    mark_task.launch(rows.numel(), chunk_size(rows.numel(), 64, 256), rowptr, col, wide, rows, inside, seen)
    starts = torch.zeros(chunks + 1, dtype=torch.int64)
    count_task.launch(words, WORDS_PER_CHUNK, inside, seen, starts)
    starts = starts.cumsum(0)
    out = torch.empty(int(starts[-1]), dtype=torch.int64)
    emit_task.launch(words, WORDS_PER_CHUNK, inside, seen, starts, out)
    return out
