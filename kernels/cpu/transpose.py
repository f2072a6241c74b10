"""The edges of a CSR listed by column, on a CPU: a counting sort.

The edges are cut into as many parts as there are threads. Each part counts its edges by column. The sums over columns, and
over the parts within a column, are where a part writes its edges of that column. So the result does not depend on the parts.
Bytes: the columns twice, 16 per column and part, the rows written once, in random order.
"""

import ctypes

import numpy as np
import torch

from .buckets import row_of
from .intrinsics import load_i32, load_i64, next_ticket, store_i32, store_i64
from .pool import Task, team_size

COUNT, CHUNK, PARTS, PLACES, COL, EDGES, COLUMNS, ROWPTR, ROWS, OUT = range(1, 11)
SUMS, OUT_ROWPTR = 5, 6

EDGES_PER_PART = 8192  # at least
COLUMNS_PER_CHUNK = 2048  # at least


@Task
def count_task(block):
    """places[part, c] = the number of edges of the part in column c."""
    parts, edges, col = block[PARTS], block[EDGES], block[COL]
    while True:
        part = next_ticket(block)
        if part >= parts:
            break
        places = block[PLACES] + 8 * part * block[COLUMNS]
        for k in range(edges * part // parts, edges * (part + 1) // parts):
            at = places + 8 * np.int64(load_i32(col + 4 * k))
            store_i64(at, load_i64(at) + 1)


@Task
def sum_task(block):
    """sums[s] = the number of edges in chunk s of the columns."""
    columns, chunk, parts, places = block[COUNT], block[CHUNK], block[PARTS], block[PLACES]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= columns:
            break
        total = 0
        for part in range(parts):
            for c in range(begin, min(begin + chunk, columns)):
                total += load_i64(places + 8 * (part * columns + c))
        store_i64(block[SUMS] + 8 * ticket, total)


@Task
def offset_task(block):
    """places[part, c] = where the part's edges of column c go; rowptr = where the column starts."""
    columns, chunk, parts, places = block[COUNT], block[CHUNK], block[PARTS], block[PLACES]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= columns:
            break
        total = 0
        for s in range(ticket):  # at most 1024 chunks
            total += load_i64(block[SUMS] + 8 * s)
        for c in range(begin, min(begin + chunk, columns)):
            store_i64(block[OUT_ROWPTR] + 8 * c, total)
            for part in range(parts):
                at = places + 8 * (part * columns + c)
                count = load_i64(at)
                store_i64(at, total)
                total += count
        if begin + chunk >= columns:
            store_i64(block[OUT_ROWPTR] + 8 * columns, total)


@Task
def scatter_task(block):
    """The rows of all edges to their places, each part from front to back."""
    parts, edges, col, rowptr = block[PARTS], block[EDGES], block[COL], block[ROWPTR]
    while True:
        part = next_ticket(block)
        if part >= parts:
            break
        places = block[PLACES] + 8 * part * block[COLUMNS]
        begin, end = edges * part // parts, edges * (part + 1) // parts
        row = row_of(rowptr, block[ROWS], begin)
        k = begin
        while k < end:
            row_end = min(load_i64(rowptr + 8 * row + 8), end)
            while k < row_end:
                at = places + 8 * np.int64(load_i32(col + 4 * k))
                to = load_i64(at)
                store_i32(block[OUT] + 4 * to, np.int32(row))
                store_i64(at, to + 1)
                k += 1
            row += 1


def transpose(rowptr: torch.Tensor, col: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rowptr, row): the rows of the edges of each column, ascending."""
    edges = col.numel()
    out_rowptr, out = torch.empty(columns + 1, dtype=torch.int64), torch.empty(edges, dtype=torch.int32)
    if edges == 0 or columns == 0:
        return out_rowptr.zero_(), out
    parts = min(team_size(edges, EDGES_PER_PART), max(1, 4 * edges // columns))
    chunk = max(COLUMNS_PER_CHUNK, -(-columns // 1024))
    places = torch.zeros(parts * columns, dtype=torch.int64)
    sums = (ctypes.c_int64 * -(-columns // chunk))()
    address = ctypes.addressof(sums)
    count_task.launch(parts, 1, parts, places, col, edges, columns)
    sum_task.launch(columns, chunk, parts, places, address)
    offset_task.launch(columns, chunk, parts, places, address, out_rowptr)
    scatter_task.launch(parts, 1, parts, places, col, edges, columns, rowptr, rowptr.numel() - 1, out)
    return out_rowptr, out
