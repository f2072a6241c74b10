"""A uniform sample of the neighbours of rows, on a CPU.

The sample of a row is a set of bits, one for each of its neighbours: a word in a register for up to 64 of them, else a
bitmap. A draw tests and sets a bit. Reading the bits from front to back gives the sample in ascending order, without a sort.
A first pass counts and a second one samples, so the result is allocated at its exact size.
Bytes: 16 of the row pointers per row, twice; 8 per row and per sampled edge written. The columns are not read.
"""

import ctypes

import numpy as np
import torch
from numba import njit

from .._hash import seed_key
from .hashing import counter_word
from .intrinsics import load_i64, load_u64, next_ticket, prefetch_near, store_i64, store_u64, trailing_zeros
from .pool import Task, chunk_size

COUNT, CHUNK, ROWPTR, ROWS, FANOUT, COUNTS, LARGEST, KEY, OUT_ROWPTR, OUT = range(1, 11)

AHEAD = 16
MOST_CHUNKS = 1024


@njit(forceinline=True)
def draw(of_row, i, last):
    """Draw i of a row: a number of 0 .. last."""
    return np.int64(((counter_word(of_row, i) >> np.uint64(32)) * np.uint64(last + 1)) >> np.uint64(32))


@njit(forceinline=True)
def ask_ahead(rowptr, rows, i, end):
    if i + AHEAD < end:
        prefetch_near(rowptr + 8 * load_i64(rows + 8 * (i + AHEAD)))


@Task
def count_task(block):
    """counts[c] = the number of sampled edges of chunk c; largest[c] = its largest degree."""
    count, chunk, rowptr, rows, fanout = block[COUNT], block[CHUNK], block[ROWPTR], block[ROWS], block[FANOUT]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        edges, largest = 0, 0
        for i in range(begin, end):
            ask_ahead(rowptr, rows, i, end)
            row = rowptr + 8 * load_i64(rows + 8 * i)
            degree = load_i64(row + 8) - load_i64(row)
            edges += min(degree, fanout)
            largest = max(largest, degree)
        store_i64(block[COUNTS] + 8 * ticket, edges)
        store_i64(block[LARGEST] + 8 * ticket, largest)


@njit(forceinline=True)
def sample_word(of_row, start, degree, fanout, at):
    """A row of at most 64 neighbours."""
    one, bits = np.uint64(1), np.uint64(0)
    for i in range(fanout):
        last = degree - fanout + i
        drawn = draw(of_row, i, last)
        taken = (bits >> np.uint64(drawn)) & one
        bits |= one << np.uint64(last if taken else drawn)
    for _ in range(fanout):
        store_i64(at, start + trailing_zeros(bits))
        bits &= bits - one
        at += 8


@njit
def sample_bitmap(of_row, start, degree, fanout, bitmap, summary, at):
    """A row of any number of neighbours. A bit of the summary marks a word of the bitmap that is not zero. Both are zero
    before and after."""
    one, low = np.uint64(1), np.uint64(63)
    for i in range(fanout):
        last = degree - fanout + i
        drawn = draw(of_row, i, last)
        if (load_u64(bitmap + 8 * (drawn >> 6)) >> (np.uint64(drawn) & low)) & one:
            drawn = last
        word, marks = bitmap + 8 * (drawn >> 6), summary + 8 * (drawn >> 12)
        store_u64(word, load_u64(word) | (one << (np.uint64(drawn) & low)))
        store_u64(marks, load_u64(marks) | (one << (np.uint64(drawn >> 6) & low)))
    for s in range((degree + 4095) >> 12):
        marks = load_u64(summary + 8 * s)
        store_u64(summary + 8 * s, np.uint64(0))
        while marks != 0:
            w = 64 * s + trailing_zeros(marks)
            marks &= marks - one
            bits = load_u64(bitmap + 8 * w)
            store_u64(bitmap + 8 * w, np.uint64(0))
            while bits != 0:
                store_i64(at, start + 64 * w + trailing_zeros(bits))
                bits &= bits - one
                at += 8


@Task
def sample_task(block):
    count, chunk, rowptr, rows, fanout = block[COUNT], block[CHUNK], block[ROWPTR], block[ROWS], block[FANOUT]
    words = (block[LARGEST] + 63) >> 6
    scratch = np.zeros(words + ((words + 63) >> 6), np.uint64)
    bitmap = scratch.ctypes.data
    summary = bitmap + 8 * words
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        edges = 0
        for c in range(ticket):  # at most MOST_CHUNKS
            edges += load_i64(block[COUNTS] + 8 * c)
        for i in range(begin, end):
            ask_ahead(rowptr, rows, i, end)
            store_i64(block[OUT_ROWPTR] + 8 * i, edges)
            row = load_i64(rows + 8 * i)
            start = load_i64(rowptr + 8 * row)
            degree = load_i64(rowptr + 8 * row + 8) - start
            at = block[OUT] + 8 * edges
            if degree <= fanout:
                for k in range(degree):
                    store_i64(at + 8 * k, start + k)
                edges += degree
                continue
            of_row = counter_word(block[KEY], row)
            if degree <= 64:
                sample_word(of_row, start, degree, fanout, at)
            else:
                sample_bitmap(of_row, start, degree, fanout, bitmap, summary, at)
            edges += fanout
        if end == count:
            store_i64(block[OUT_ROWPTR] + 8 * count, edges)
    if words > 0:
        scratch[0] = 0  # in use until here: it is reached by address only


def sample_neighbours(rowptr: torch.Tensor, rows: torch.Tensor, fanout: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rowptr, edge) of a sample of at most ``fanout`` neighbours of each row."""
    count = rows.numel()
    out_rowptr = torch.empty(count + 1, dtype=torch.int64)
    if count == 0:
        return out_rowptr.zero_(), torch.empty(0, dtype=torch.int64)
    chunk = max(chunk_size(count, 64, 1024), -(-count // MOST_CHUNKS))
    chunks = -(-count // chunk)
    counts = (ctypes.c_int64 * (2 * chunks))()
    address = ctypes.addressof(counts)
    count_task.launch(count, chunk, rowptr, rows, fanout, address, address + 8 * chunks)
    size, largest = sum(counts[:chunks]), max(counts[chunks:])
    out = torch.empty(size, dtype=torch.int64)
    room = largest if largest > max(64, fanout) else 0  # other rows need no bitmap
    sample_task.launch(count, chunk, rowptr, rows, fanout, address, room, seed_key(seed), out_rowptr, out)
    return out_rowptr, out
