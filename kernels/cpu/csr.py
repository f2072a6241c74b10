"""Row-wise transformations of a CSR with ascending columns, on a CPU.

A row is transformed from front to back, without a buffer. A first pass counts and a second one writes, so the result is
allocated at its exact size. Bytes: the columns read twice and written once.
"""

import math

import numpy as np
import torch
from numba import njit

from .hashing import counter_word
from .intrinsics import load_i64, load_index, load_u64, next_ticket, store_f32, store_i64, store_index, store_u64
from .pool import Task, chunk_size
from .radix import sort_words

COUNT, CHUNK, ROWPTR, COL, WIDE = range(1, 6)
OTHER_ROWPTR, OTHER, MODE, OUT_ROWPTR, OUT = range(6, 11)
ORDER, NEW_ID, NEW_ID_WIDE, P_OUT_ROWPTR, P_OUT, LARGEST, BITS = range(6, 13)
KEY, SUMS = 6, 7
POWER, SCALE = 4, 5

UNIQUE = 0  # each column once
LOOPS = 1  # the row's own node once, and all columns that are not it
NO_LOOPS = 2  # all columns that are not the row's own node
MISSING = 3  # the columns of the other CSR's row that are not in this row, each once
UNION = 4  # each column once, and the other CSR's columns, which MISSING returned

FEW_ROWS = 64  # rows that permute sorts together


@njit(forceinline=True)
def emit(out, wide, at, value):
    if out != 0:
        store_index(out, wide, at, value)
    return at + 1


@njit
def rewrite_row(mode, g, col, wide, begin, end, other, other_begin, other_end, out, at):
    """Write the new row from out[at] on, or only count it if out = 0. Returns where it ends."""
    if mode == UNIQUE:
        for k in range(begin, end):
            c = load_index(col, wide, k)
            if k == begin or c != load_index(col, wide, k - 1):
                at = emit(out, wide, at, c)
    elif mode == LOOPS:
        pending = True
        for k in range(begin, end):
            c = load_index(col, wide, k)
            if pending and c >= g:
                at = emit(out, wide, at, g)
                pending = False
            if c != g:
                at = emit(out, wide, at, c)
        if pending:
            at = emit(out, wide, at, g)
    elif mode == NO_LOOPS:
        for k in range(begin, end):
            c = load_index(col, wide, k)
            if c != g:
                at = emit(out, wide, at, c)
    elif mode == MISSING:
        k = begin
        for j in range(other_begin, other_end):
            c = load_index(other, wide, j)
            while k < end and load_index(col, wide, k) < c:
                k += 1
            if (k == end or load_index(col, wide, k) != c) and (j == other_begin or c != load_index(other, wide, j - 1)):
                at = emit(out, wide, at, c)
    else:
        j = other_begin
        for k in range(begin, end):
            c = load_index(col, wide, k)
            if k > begin and c == load_index(col, wide, k - 1):
                continue
            while j < other_end and load_index(other, wide, j) < c:
                at = emit(out, wide, at, load_index(other, wide, j))
                j += 1
            at = emit(out, wide, at, c)
        while j < other_end:
            at = emit(out, wide, at, load_index(other, wide, j))
            j += 1
    return at


@Task
def rewrite_task(block):
    """out_rowptr[g + 1] = the length of each new row if OUT = 0, else write the rows."""
    count, chunk, rowptr, col, wide = block[COUNT], block[CHUNK], block[ROWPTR], block[COL], block[WIDE]
    other_rowptr, other, mode, out_rowptr, out = (
        block[OTHER_ROWPTR],
        block[OTHER],
        block[MODE],
        block[OUT_ROWPTR],
        block[OUT],
    )
    while True:
        first = next_ticket(block) * chunk
        if first >= count:
            break
        for g in range(first, min(first + chunk, count)):
            other_begin, other_end = 0, 0
            if other != 0:
                other_begin, other_end = load_i64(other_rowptr + 8 * g), load_i64(other_rowptr + 8 * (g + 1))
            at = 0 if out == 0 else load_i64(out_rowptr + 8 * g)
            begin, end = load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * (g + 1))
            at = rewrite_row(mode, g, col, wide, begin, end, other, other_begin, other_end, out, at)
            if out == 0:
                store_i64(out_rowptr + 8 * (g + 1), at)


def rewrite(
    rowptr: torch.Tensor, col: torch.Tensor, mode: int, other: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The CSR with all rows transformed by ``mode``. Returns the given arrays if nothing changes."""
    nodes, wide = rowptr.numel() - 1, int(col.dtype == torch.int64)
    other_rowptr, other_col = other if other is not None else (None, None)
    if other_col is not None:
        other_col = other_col.to(col.dtype)
    out_rowptr = torch.empty(nodes + 1, dtype=torch.int64)
    out_rowptr[0] = 0
    chunk = chunk_size(nodes, 16, 4096)
    rewrite_task.launch(nodes, chunk, rowptr, col, wide, other_rowptr, other_col, mode, out_rowptr, None)
    torch.cumsum(out_rowptr, 0, out=out_rowptr)
    if (other_col is None or (mode == UNION and other_col.numel() == 0)) and torch.equal(out_rowptr, rowptr):
        return rowptr, col  # in these modes a row that keeps its length keeps its columns
    out = torch.empty(int(out_rowptr[-1]), dtype=col.dtype)
    if out.numel():  # OUT = 0 would count again
        rewrite_task.launch(nodes, chunk, rowptr, col, wide, other_rowptr, other_col, mode, out_rowptr, out)
    return out_rowptr, out


@Task
def permute_task(block):
    """out row i = row order[i] with new column ids, ascending. CHUNK rows are sorted together, in cache."""
    count, chunk, rowptr, col, wide = block[COUNT], block[CHUNK], block[ROWPTR], block[COL], block[WIDE]
    order, new_id, new_wide, out_rowptr, out = (
        block[ORDER],
        block[NEW_ID],
        block[NEW_ID_WIDE],
        block[P_OUT_ROWPTR],
        block[P_OUT],
    )
    largest = block[LARGEST]
    memory = np.empty(2 * largest + 2048, np.uint64)
    first_words = memory.ctypes.data
    spare = first_words + 8 * largest
    row_bits = np.uint64(48)
    while True:
        first = next_ticket(block) * chunk
        if first >= count:
            break
        last = min(first + chunk, count)
        size = 0
        for i in range(first, last):
            g = load_i64(order + 8 * i)
            row = np.uint64(i - first) << row_bits
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * (g + 1))):
                c = load_index(new_id, new_wide, load_index(col, wide, k))
                store_u64(first_words + 8 * size, row | np.uint64(c))
                size += 1
        words = sort_words(first_words, spare, size, 0, block[BITS], spare + 8 * largest)
        words = sort_words(words, spare if words == first_words else first_words, size, 48, 6, spare + 8 * largest)
        at = load_i64(out_rowptr + 8 * first)
        for i in range(size):
            store_index(out, wide, at + i, np.int64(load_u64(words + 8 * i) & np.uint64((1 << 48) - 1)))
    memory[0] = 0  # keeps memory alive: Numba does not see uses by address


def permute(rowptr: torch.Tensor, col: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The CSR whose node i is node order[i] of the given one."""
    nodes = rowptr.numel() - 1
    out_rowptr = torch.empty(nodes + 1, dtype=torch.int64)
    out_rowptr[0] = 0
    torch.index_select(rowptr, 0, order + 1, out=out_rowptr[1:])
    out_rowptr[1:] -= rowptr[order]
    torch.cumsum(out_rowptr, 0, out=out_rowptr)
    new_id = torch.empty(nodes, dtype=col.dtype)
    new_id[order] = torch.arange(nodes, dtype=col.dtype)
    out = torch.empty_like(col)
    edges = torch.arange(0, nodes + FEW_ROWS, FEW_ROWS).clamp_(max=nodes)
    largest = int(out_rowptr[edges].diff().max()) if nodes else 0
    bits = max(1, (nodes - 1).bit_length())
    permute_task.launch(
        nodes, FEW_ROWS, rowptr, col, int(col.dtype == torch.int64), order, new_id, int(new_id.dtype == torch.int64),
        out_rowptr, out, largest, bits,
    )  # fmt: skip
    return out_rowptr, out


@Task
def fingerprint_task(block):
    """Per chunk of rows: two sums of hashes of its edges, the first one also for the reversed edges, and the number of
    descents within rows."""
    count, chunk, rowptr, col, wide, key = (
        block[COUNT],
        block[CHUNK],
        block[ROWPTR],
        block[COL],
        block[WIDE],
        block[KEY],
    )
    while True:
        ticket = next_ticket(block)
        first = ticket * chunk
        if first >= count:
            break
        there, back, second, falls = np.uint64(0), np.uint64(0), np.uint64(0), 0
        for g in range(first, min(first + chunk, count)):
            row_key, row_key_2 = counter_word(key, g), counter_word(key + 1, g)
            previous = -1
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * (g + 1))):
                c = load_index(col, wide, k)
                there += counter_word(row_key, c)
                second += counter_word(row_key_2, c)
                back += counter_word(counter_word(key, c), g)
                falls += 1 if c < previous else 0
                previous = c
        sums = block[SUMS] + 32 * ticket
        store_u64(sums, there)
        store_u64(sums + 8, second)
        store_u64(sums + 16, back)
        store_i64(sums + 24, falls)


def fingerprint(rowptr: torch.Tensor, col: torch.Tensor, key: int) -> tuple[int, int, int, bool]:
    """(sum of hashes of the edges, another one, the first one of the reversed edges, columns ascend), modulo 2^64.

    If the first and the third are equal, every edge has its reverse. A sum does not depend on the order, so the reverse
    need not be searched. Two different sets of edges have equal sums with a probability of 2^-64.
    """
    nodes = rowptr.numel() - 1
    chunk = chunk_size(nodes, 16, 4096)
    sums = np.zeros((max(1, -(-nodes // chunk)), 4), np.uint64)
    fingerprint_task.launch(nodes, chunk, rowptr, col, int(col.dtype == torch.int64), key, sums.ctypes.data)
    there, second, back, falls = (int(v) for v in sums.sum(0, dtype=np.uint64))
    return there, second, back, falls == 0


@Task
def scale_task(block):
    """scale[g] = degree^(-1/2), or 1 / degree; 0 for nodes without neighbours."""
    count, chunk, rowptr, scale = block[COUNT], block[CHUNK], block[ROWPTR], block[SCALE]
    while True:
        first = next_ticket(block) * chunk
        if first >= count:
            break
        for g in range(first, min(first + chunk, count)):
            degree = float(load_i64(rowptr + 8 * (g + 1)) - load_i64(rowptr + 8 * g))
            value = 0.0
            if degree > 0:
                value = 1.0 / (math.sqrt(degree) if block[POWER] else degree)
            store_f32(scale + 4 * g, np.float32(value))


def degree_scale(rowptr: torch.Tensor, *, root: bool) -> torch.Tensor:
    """float32[N]: degree^(-1/2) (root) or degree^(-1), 0 where there are no neighbours."""
    scale = torch.empty(rowptr.numel() - 1)
    scale_task.launch(scale.numel(), chunk_size(scale.numel(), 1024, 1 << 16), rowptr, int(root), scale)
    return scale
