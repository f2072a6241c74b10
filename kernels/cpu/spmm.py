"""history_spmm on a CPU.

    out[i] = scale * row_scale[g] * sum_k keep(e) * col_scale[c] * edge_weight[e] * src(c)  +  alpha * residual[i]
    with g = rows[i], k over rowptr[g]..rowptr[g+1], c = col[k], e = edge_id[k] (or k),
    src(c) = x[position[c]] if position[c] >= 0 else history[~position[c]]

Bytes: nnz * (width * itemsize + index + 4 position + 4 col_scale) read, R * width * itemsize written.

A row of features is a few cache lines at a random address. So the speed depends on the number of outstanding cache misses.
The loop processes windows of up to WINDOW edges in two steps. First, all edges of the window are located: the address, dtype
and weight of each neighbour's row go into a list. Then the rows of the list are added up, four at a time, which saves three
of four passes over the running sum. Meanwhile the rows further down the list are prefetched. Prefetching and adding
alternate every four rows, because a core supports a limited number of outstanding misses.

A row longer than a window is summed window by window, and then the windows' sums are added. This is more exact, and the same
as on a GPU. Rows are added in the order of the edges, whatever their dtypes, so the result does not depend on which
neighbours are in the batch.
"""

import numpy as np
import torch
from numba import njit

from .._hubs import HUB_SEGMENT
from . import edges as e
from .intrinsics import double_of_word, f32_at, load_f32, load_i32, load_i64, next_ticket, store_f32, store_i32, store_i64
from .pool import Task
from .rowtypes import FLOAT32, add_four_rows, add_row, code, row_bytes, store_row
from .vectors import LANES, locate_int32, locate_int32_scaled, locate_int64, locate_int64_scaled

OUT, OUT_STRIDE, OUT_DTYPE, RESIDUAL, RESIDUAL_STRIDE, RESIDUAL_DTYPE, ALPHA = range(e.FIRST_OWN, e.FIRST_OWN + 7)

WINDOW = HUB_SEGMENT
AHEAD_BYTES = 16384  # the prefetch distance: it fits the second-level cache beside other data
MOST_AHEAD = 48  # rows


@njit
def locate_plain_edges(words, addresses, weights, dtypes, n, k, k_end):
    """``locate_edges`` for edges without weights and dropout: LANES of them at a time."""
    position, col, col_scale = words[e.POSITION], words[e.COL], words[e.COL_SCALE]
    x, x_stride, x_dtype = words[e.X], words[e.X_STRIDE], words[e.X_DTYPE] if words[e.X] != 0 else e.SKIPPED
    history, history_stride = words[e.HISTORY], words[e.HISTORY_STRIDE]
    history_dtype = words[e.HISTORY_DTYPE] if history != 0 else e.SKIPPED
    while k < k_end:
        a, w, t, count = addresses + 8 * n, weights + 4 * n, dtypes + 4 * n, k_end - k
        if words[e.COL_WIDE] != 0:
            if col_scale != 0:
                locate_int64_scaled(col + 8 * k, position, col_scale, x, x_stride, x_dtype, history, history_stride,
                                    history_dtype, a, w, t, count)  # fmt: skip
            else:
                locate_int64(col + 8 * k, position, col_scale, x, x_stride, x_dtype, history, history_stride,
                             history_dtype, a, w, t, count)  # fmt: skip
        elif col_scale != 0:
            locate_int32_scaled(col + 4 * k, position, col_scale, x, x_stride, x_dtype, history, history_stride,
                                history_dtype, a, w, t, count)  # fmt: skip
        else:
            locate_int32(col + 4 * k, position, col_scale, x, x_stride, x_dtype, history, history_stride,
                         history_dtype, a, w, t, count)  # fmt: skip
        n += LANES
        k += LANES


@njit
def locate_edges(words, kept, addresses, weights, dtypes, n, k, k_end):
    """Put the edges k..k_end into the list from place n on. Up to LANES places behind them are overwritten."""
    if words[e.EDGE_WEIGHT] == 0 and words[e.THRESHOLD] == 0:
        locate_plain_edges(words, addresses, weights, dtypes, n, k, k_end)
        return
    while k < k_end:
        e.scout(words, k)
        address, dtype, weight = e.locate(words, kept, k)
        store_i64(addresses + 8 * n, address)
        store_f32(weights + 4 * n, weight)
        store_i32(dtypes + 4 * n, np.int32(dtype))
        n += 1
        k += 1


@njit
def add_listed(total, addresses, weights, dtypes, n, n_end, ask_from, ask_end, x_dtype, x_bytes, history_bytes, width):
    """Add the rows n..n_end of the list to total, and ask for as many rows further on, from ask_from, up to ask_end."""
    while n < n_end:
        taken = min(n_end - n, 4)
        for m in range(ask_from, min(ask_from + taken, ask_end)):
            dtype = load_i32(dtypes + 4 * m)
            if dtype != e.SKIPPED:
                e.prefetch_row(load_i64(addresses + 8 * m), x_bytes if dtype == x_dtype else history_bytes)
        ask_from += taken
        a, w, t = addresses + 8 * n, weights + 4 * n, dtypes + 4 * n
        t0 = load_i32(t)
        if taken == 4 and t0 != e.SKIPPED and t0 == load_i32(t + 4) and t0 == load_i32(t + 8) and t0 == load_i32(t + 12):
            add_four_rows(
                total, load_i64(a), load_i64(a + 8), load_i64(a + 16), load_i64(a + 24), t0, width,
                load_f32(w), load_f32(w + 4), load_f32(w + 8), load_f32(w + 12),
            )  # fmt: skip
        else:
            for m in range(taken):
                if load_i32(t + 4 * m) != e.SKIPPED:
                    add_row(total, load_i64(a + 8 * m), load_i32(t + 4 * m), width, load_f32(w + 4 * m))
        n += taken


@njit
def ask(addresses, dtypes, count, x_dtype, x_bytes, history_bytes):
    """Prefetch the first rows of the list."""
    for m in range(count):
        dtype = load_i32(dtypes + 4 * m)
        if dtype != e.SKIPPED:
            e.prefetch_row(load_i64(addresses + 8 * m), x_bytes if dtype == x_dtype else history_bytes)


@njit
def clear(address, width):
    row = f32_at(address)
    for d in range(width):
        row[d] = 0


@Task
def spmm_task(block):
    words = e.source_tuple(block)
    rows, rowptr, width = words[e.ROWS], words[e.ROWPTR], words[e.WIDTH]
    scale, alpha = np.float32(double_of_word(words[e.SCALE])), np.float32(double_of_word(block[ALPHA]))
    kept, one = np.float32(double_of_word(words[e.KEEP_SCALE])), np.float32(1)
    x_dtype = words[e.X_DTYPE]
    x_bytes = width * (4 if x_dtype == FLOAT32 else 2)
    history_bytes = width * (4 if words[e.HISTORY_DTYPE] == FLOAT32 else 2)
    ahead = max(4, min(MOST_AHEAD, AHEAD_BYTES // max(x_bytes, history_bytes)))

    room = WINDOW + LANES
    scratch = np.empty(2 * room + width + 1, np.int64)
    addresses = scratch.ctypes.data
    weights, dtypes, total = addresses + 8 * room, addresses + 12 * room, addresses + 16 * room
    part = total + 4 * width
    total_row = f32_at(total)

    while True:
        begin = next_ticket(block) * words[e.CHUNK]
        if begin >= words[e.COUNT]:
            break
        end = min(begin + words[e.CHUNK], words[e.COUNT])
        i, located, listed = begin, begin, 0  # rows i..located are in the list, as its first ``listed`` entries
        n = 0  # the next entry of the list to add
        for i in range(begin, end):
            g = load_i64(rows + 8 * i)
            k, k_end = load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)
            clear(total, width)
            if i == located:
                # A new window with as many whole rows as fit.
                n, listed = 0, 0
                while located < end:
                    ahead_of = load_i64(rows + 8 * located)
                    a_begin, a_end = load_i64(rowptr + 8 * ahead_of), load_i64(rowptr + 8 * ahead_of + 8)
                    if listed + a_end - a_begin > WINDOW:
                        break
                    locate_edges(words, kept, addresses, weights, dtypes, listed, a_begin, a_end)
                    listed += a_end - a_begin
                    located += 1
                ask(addresses, dtypes, min(ahead, listed), x_dtype, x_bytes, history_bytes)
            if i < located:
                until = n + k_end - k
                add_listed(
                    total, addresses, weights, dtypes, n, until, n + ahead, listed, x_dtype, x_bytes, history_bytes, width
                )  # fmt: skip
                n = until
            else:
                # The row is longer than a window: sum it window by window.
                while k < k_end:
                    count = min(WINDOW, k_end - k)
                    locate_edges(words, kept, addresses, weights, dtypes, 0, k, k + count)
                    ask(addresses, dtypes, min(ahead, count), x_dtype, x_bytes, history_bytes)
                    clear(part, width)
                    add_listed(
                        part, addresses, weights, dtypes, 0, count, ahead, count, x_dtype, x_bytes, history_bytes, width
                    )  # fmt: skip
                    add_row(total, part, FLOAT32, width, one)
                    k += count
                located += 1
            factor = scale
            if words[e.ROW_SCALE] != 0:
                factor *= load_f32(words[e.ROW_SCALE] + 4 * g)
            for d in range(width):
                total_row[d] *= factor
            if block[RESIDUAL] != 0:
                add_row(total, block[RESIDUAL] + i * block[RESIDUAL_STRIDE], block[RESIDUAL_DTYPE], width, alpha)
            store_row(block[OUT] + i * block[OUT_STRIDE], block[OUT_DTYPE], total, width)
    scratch[0] = 0  # keeps scratch alive: Numba does not see uses by address


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
    """Launch. Hubs need no splitting here, because chunks are assigned dynamically."""
    if out.numel() == 0:
        return
    spmm_task.launch(
        *e.source_words(
            rowptr, col, edge_id, rows, position, x, history, row_scale, col_scale, edge_weight,
            float(scale), edge_dropout, seed, out.shape[1],
        ),
        out, row_bytes(out), code(out), residual, row_bytes(residual), code(residual), float(alpha),
    )  # fmt: skip
