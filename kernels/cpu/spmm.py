"""history_spmm on a CPU.

    out[i] = scale * row_scale[g] * sum_k keep(e) * col_scale[c] * edge_weight[e] * src(c)  +  alpha * residual[i]
    with g = rows[i], k over rowptr[g]..rowptr[g+1], c = col[k], e = edge_id[k] (or k),
    src(c) = x[position[c]] if position[c] >= 0 else history[~position[c]]

Bytes: nnz * (width * itemsize + index + 4 position + 4 col_scale) read, R * width * itemsize written.

A row of features is a few cache lines at a random address: the loop is bound by how many of them are on their way at
once. So a cursor walks ahead of the sum, over the ends of rows, asks for each neighbour's lines and leaves its address and
weight in a ring. Behind it rows are added four at a time, which saves three of four passes over the running sum. Asking and
adding alternate every four rows: a core can only wait for so many lines at once, and while it cannot ask it should add.
A long row is summed in segments whose sums are added up: more exact, and
as on a GPU. Rows are added in the order of the edges, whatever their dtypes: a row's result does not depend on which of its
neighbours are in the batch.
"""

import numpy as np
import torch

from .._hubs import HUB_SEGMENT
from . import edges as e
from .intrinsics import (
    double_of_word,
    f32_at,
    load_f32,
    load_i64,
    next_ticket,
    store_f32,
    store_i64,
)  # fmt: skip
from .pool import Task
from .rowtypes import FLOAT32, add_four_rows, add_row, code, row_bytes, store_row

OUT, OUT_STRIDE, OUT_DTYPE, RESIDUAL, RESIDUAL_STRIDE, RESIDUAL_DTYPE, ALPHA = range(e.FIRST_OWN, e.FIRST_OWN + 7)

RING = 64
AHEAD_BYTES = 16384  # how far the cursor runs ahead: as much as the second-level cache takes in passing


@Task
def spmm_task(block):
    words = e.source_tuple(block)
    rows, rowptr, width = words[e.ROWS], words[e.ROWPTR], words[e.WIDTH]
    scale, alpha = np.float32(double_of_word(words[e.SCALE])), np.float32(double_of_word(block[ALPHA]))
    kept = np.float32(double_of_word(words[e.KEEP_SCALE]))
    x_bytes = width * (4 if words[e.X_DTYPE] == FLOAT32 else 2)
    history_bytes = width * (4 if words[e.HISTORY_DTYPE] == FLOAT32 else 2)
    ahead = max(4, min(RING - 4, AHEAD_BYTES // max(x_bytes, history_bytes)))

    scratch = np.empty(3 * RING + width + 1, np.int64)
    addresses = scratch.ctypes.data
    weights, dtypes, total = addresses + 8 * RING, addresses + 16 * RING, addresses + 24 * RING
    grand, one = total + 4 * width, np.float32(1)
    total_row = f32_at(total)

    while True:
        begin = next_ticket(block) * words[e.CHUNK]
        if begin >= words[e.COUNT]:
            break
        end = min(begin + words[e.CHUNK], words[e.COUNT])
        produced, consumed = 0, 0
        cursor, k, k_end = begin - 1, 0, 0
        for i in range(begin, end):
            g = load_i64(rows + 8 * i)
            degree = load_i64(rowptr + 8 * g + 8) - load_i64(rowptr + 8 * g)
            left = degree
            for d in range(width):
                total_row[d] = 0
            while left > 0:
                taken = min(left, 4)
                while produced < consumed + taken + ahead:
                    if k == k_end:
                        if cursor + 1 >= end:
                            break
                        cursor += 1
                        ahead_of = load_i64(rows + 8 * cursor)
                        k, k_end = load_i64(rowptr + 8 * ahead_of), load_i64(rowptr + 8 * ahead_of + 8)
                        continue
                    e.scout(words, k)
                    address, dtype, weight = e.locate(words, kept, k)
                    if dtype != e.SKIPPED:
                        e.prefetch_row(address, x_bytes if dtype == words[e.X_DTYPE] else history_bytes)
                    slot = produced & (RING - 1)
                    store_i64(addresses + 8 * slot, address)
                    store_i64(dtypes + 8 * slot, dtype)
                    store_f32(weights + 8 * slot, weight)
                    produced += 1
                    k += 1
                j0, j1 = 8 * (consumed & (RING - 1)), 8 * ((consumed + 1) & (RING - 1))
                j2, j3 = 8 * ((consumed + 2) & (RING - 1)), 8 * ((consumed + 3) & (RING - 1))
                t0 = load_i64(dtypes + j0)
                alike = t0 == load_i64(dtypes + j1) and t0 == load_i64(dtypes + j2) and t0 == load_i64(dtypes + j3)
                if taken == 4 and alike and t0 != e.SKIPPED:
                    add_four_rows(
                        total, load_i64(addresses + j0), load_i64(addresses + j1), load_i64(addresses + j2),
                        load_i64(addresses + j3), t0, width, load_f32(weights + j0), load_f32(weights + j1),
                        load_f32(weights + j2), load_f32(weights + j3),
                    )  # fmt: skip
                else:
                    for n in range(consumed, consumed + taken):
                        j = 8 * (n & (RING - 1))
                        if load_i64(dtypes + j) != e.SKIPPED:
                            add_row(total, load_i64(addresses + j), load_i64(dtypes + j), width, load_f32(weights + j))
                consumed += taken
                left -= taken
                if left > 0 and (degree - left) % HUB_SEGMENT == 0:
                    if degree - left > HUB_SEGMENT:
                        add_row(grand, total, FLOAT32, width, one)
                    else:
                        store_row(grand, FLOAT32, total, width)
                    for d in range(width):
                        total_row[d] = 0
            if degree > HUB_SEGMENT:
                add_row(total, grand, FLOAT32, width, one)
            factor = scale
            if words[e.ROW_SCALE] != 0:
                factor *= load_f32(words[e.ROW_SCALE] + 4 * g)
            for d in range(width):
                total_row[d] *= factor
            if block[RESIDUAL] != 0:
                add_row(total, block[RESIDUAL] + i * block[RESIDUAL_STRIDE], block[RESIDUAL_DTYPE], width, alpha)
            store_row(block[OUT] + i * block[OUT_STRIDE], block[OUT_DTYPE], total, width)
    scratch[0] = 0  # in use until here: it is reached by address only, which Numba does not see


def spmm(
    out: torch.Tensor,
    rowptr: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None,
    rows: torch.Tensor,
    position: torch.Tensor,
    x: torch.Tensor | None,
    history: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
    edge_weight: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    scale: float,
    alpha: float,
    edge_dropout: float,
    seed: int,
    hub_node: torch.Tensor | None = None,
    hub_first: torch.Tensor | None = None,
    hub_segments: int = 0,
) -> None:
    """Launch. Hubs need no splitting here: chunks are handed out as threads come free."""
    if out.numel() == 0:
        return
    spmm_task.launch(
        *e.source_words(
            rowptr, col, edge_id, rows, position, x, history, row_scale, col_scale, edge_weight,
            float(scale), edge_dropout, seed, out.shape[1],
        ),
        out, row_bytes(out), code(out), residual, row_bytes(residual), code(residual), float(alpha),
    )  # fmt: skip
