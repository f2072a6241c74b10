"""The edges of rows whose other end has a place, on a CPU.

A first pass counts the edges of each row, a second one writes them, so the result is allocated at its exact size. The second
pass finds columns and positions in the caches where the rows are few.
Bytes: twice the columns of the rows and a position for each, in random order; 8 per row and per edge written.
"""

import ctypes

import numpy as np
import torch

from .intrinsics import load_i32, load_i64, load_index, next_ticket, prefetch_near, store_i64
from .pool import Task, chunk_size

COUNT, CHUNK, ROWPTR, COL, COL_WIDE, ROWS, POSITION, COUNTS, OUT_ROWPTR, OUT = range(1, 11)

AHEAD = 16
MOST_CHUNKS = 1024


@Task
def count_task(block):
    """counts[c] = the number of edges of chunk c."""
    count, chunk, rowptr, rows = block[COUNT], block[CHUNK], block[ROWPTR], block[ROWS]
    col, wide, position = block[COL], block[COL_WIDE], block[POSITION]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        edges = 0
        for i in range(begin, min(begin + chunk, count)):
            row = rowptr + 8 * load_i64(rows + 8 * i)
            end = load_i64(row + 8)
            for k in range(load_i64(row), end):
                if k + AHEAD < end:
                    prefetch_near(position + 4 * load_index(col, wide, k + AHEAD))
                edges += np.int64(load_i32(position + 4 * load_index(col, wide, k)) >= 0)
        store_i64(block[COUNTS] + 8 * ticket, edges)


@Task
def write_task(block):
    count, chunk, rowptr, rows = block[COUNT], block[CHUNK], block[ROWPTR], block[ROWS]
    col, wide, position = block[COL], block[COL_WIDE], block[POSITION]
    while True:
        ticket = next_ticket(block)
        begin = ticket * chunk
        if begin >= count:
            break
        edges = 0
        for c in range(ticket):  # at most MOST_CHUNKS
            edges += load_i64(block[COUNTS] + 8 * c)
        for i in range(begin, min(begin + chunk, count)):
            row = rowptr + 8 * load_i64(rows + 8 * i)
            end = load_i64(row + 8)
            for k in range(load_i64(row), end):
                if k + AHEAD < end:
                    prefetch_near(position + 4 * load_index(col, wide, k + AHEAD))
                if load_i32(position + 4 * load_index(col, wide, k)) >= 0:
                    store_i64(block[OUT] + 8 * edges, k)
                    edges += 1
            store_i64(block[OUT_ROWPTR] + 8 * (i + 1), edges)


def edges_inside(
    rowptr: torch.Tensor, col: torch.Tensor, rows: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rowptr, edge) of the edges of ``rows`` to nodes with a place."""
    count = rows.numel()
    out_rowptr = torch.empty(count + 1, dtype=torch.int64)
    out_rowptr[0] = 0
    if count == 0:
        return out_rowptr, torch.empty(0, dtype=torch.int64)
    chunk = max(chunk_size(count, 64, 1024), -(-count // MOST_CHUNKS))
    chunks = -(-count // chunk)
    counts = (ctypes.c_int64 * chunks)()
    known = rowptr, col, int(col.dtype == torch.int64), rows, position, ctypes.addressof(counts), out_rowptr
    count_task.launch(count, chunk, *known)
    out = torch.empty(sum(counts), dtype=torch.int64)
    write_task.launch(count, chunk, *known, out)
    return out_rowptr, out
