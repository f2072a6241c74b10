"""What the passes of history_attention on a CPU share: edges with their scores, listed and handed to the pass.

As in spmm, the edges of several rows are located first and listed in a window, and rows further down the list are asked for
while the first ones are added up. The scores of the list are asked for as it is written. A row longer than a window is
handed on window by window. Windows of such a row begin at its first edge, so its bits do not depend on the rows around it.
"""

from collections.abc import Callable

import numpy as np
import torch
from numba import njit

from .._hubs import HUB_SEGMENT
from . import edges as e
from .hashing import edge_bits
from .intrinsics import (
    bits_of_float,
    f32_at,
    float_of_bits,
    load_f32,
    load_i32,
    load_i64,
    load_index,
    next_ticket,
    prefetch_near,
    store_i32,
    store_i64,
)  # fmt: skip
from .rowtypes import FLOAT32, add_four_rows, add_row, code, row_bytes

(
    HEADS, SLOPE, X_SCORE, X_SCORE_STRIDE, X_SCORE_DTYPE, HISTORY_SCORE, HISTORY_SCORE_STRIDE, HISTORY_SCORE_DTYPE,
) = range(e.FIRST_OWN, e.FIRST_OWN + 8)  # fmt: skip
FIRST_OWN = e.FIRST_OWN + 8

WINDOW = HUB_SEGMENT
MOST_ROWS = 64  # of a chunk
AHEAD_BYTES, MOST_AHEAD = 16384, 48  # see spmm

_LOG2E, _ROUND = np.float32(1.4426950408889634), np.float32(12582912)  # added and taken off, the latter rounds to whole
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P5, _P4, _P3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P2, _P1, _P0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LEAST = np.float32(-87)


@njit(forceinline=True, fastmath={"contract"})
def exp(value):
    """exp of a float32 up to 88, to 1 ulp (Cephes' polynomial); 0 below -87. Unlike libm's, a loop of it vectorises."""
    shifted = value * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = value - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
    power = float_of_bits(np.uint32(np.uint32(bits_of_float(shifted) + np.uint32(127)) << np.uint32(23)))
    return np.float32(0) if value < _LEAST else (p * r * r + r + np.float32(1)) * power


@njit(fastmath={"contract"})
def exp_all(address, count):
    values = f32_at(address)
    for n in range(count):
        values[n] = exp(values[n])


@njit
def list_edges(words, scores_of, lists, n, k, k_end):
    """List the edges k..k_end from place n on, those without a source left out. Returns the next free place."""
    addresses, scores, names, dtypes, score_dtypes = lists[:5]
    x_score, x_stride, x_dtype, history_score, history_stride, history_dtype = scores_of
    while k < k_end:
        e.scout(words, k)
        p = np.int64(load_i32(words[e.POSITION] + 4 * load_index(words[e.COL], words[e.COL_WIDE], k)))
        outside = p >> 63  # 0 in the batch, -1 outside: selected by mask, as in edges.locate
        base = words[e.X] ^ ((words[e.X] ^ words[e.HISTORY]) & outside)
        stride = words[e.X_STRIDE] ^ ((words[e.X_STRIDE] ^ words[e.HISTORY_STRIDE]) & outside)
        dtype = words[e.X_DTYPE] ^ ((words[e.X_DTYPE] ^ words[e.HISTORY_DTYPE]) & outside)
        score = (x_score ^ ((x_score ^ history_score) & outside)) + (p ^ outside) * (
            x_stride ^ ((x_stride ^ history_stride) & outside)
        )
        prefetch_near(score)
        store_i64(addresses + 8 * n, base + (p ^ outside) * stride)
        store_i64(scores + 8 * n, score)
        store_i64(names + 8 * n, e.edge_name(words[e.EDGE_ID], words[e.EDGE_ID_WIDE], k))
        store_i32(dtypes + 4 * n, np.int32(dtype))
        store_i32(score_dtypes + 4 * n, np.int32(x_dtype ^ ((x_dtype ^ history_dtype) & outside)))
        n += 1 if base != 0 else 0
        k += 1
    return n


@njit
def ask(words, lists, n, n_end):
    """Ask for the rows n..n_end of the list."""
    for m in range(n, n_end):
        item = 4 if load_i32(lists[3] + 4 * m) == FLOAT32 else 2
        e.prefetch_row(load_i64(lists[0] + 8 * m), words[e.WIDTH] * item)


def walker(take: Callable) -> Callable:
    """walk(block, words, state_floats): all rows of the launch, on this thread and others. It calls
    ``take(block, words, lists, state, i, n, n_end, listed, first, last)`` for each window of the edges of row i, mostly the
    only one: places n..n_end of lists that end at ``listed``. ``state`` is the address of ``state_floats`` float32 that the
    windows of a row share. A function of its own for each ``take``: as an argument it would keep Numba from caching."""

    @njit
    def walk(block, words, state_floats):
        heads, rows, rowptr = block[HEADS], words[e.ROWS], words[e.ROWPTR]
        scores_of = (
            block[X_SCORE], block[X_SCORE_STRIDE], block[X_SCORE_DTYPE],
            block[HISTORY_SCORE], block[HISTORY_SCORE_STRIDE], block[HISTORY_SCORE_DTYPE],
        )  # fmt: skip
        room = WINDOW + 1  # an edge left out is written, too
        scratch = np.empty(4 * room + room * heads + MOST_ROWS + state_floats // 2 + 1, np.int64)
        addresses = scratch.ctypes.data
        scores, names, dtypes = addresses + 8 * room, addresses + 16 * room, addresses + 24 * room
        weights = addresses + 32 * room
        ends = weights + 8 * room * heads
        lists = addresses, scores, names, dtypes, dtypes + 4 * room, weights, weights + 4 * room * heads
        state = ends + 8 * MOST_ROWS
        while True:
            begin = next_ticket(block) * words[e.CHUNK]
            if begin >= words[e.COUNT]:
                break
            end = min(begin + words[e.CHUNK], words[e.COUNT])
            located, listed, n = begin, 0, 0  # rows up to ``located`` are in the list, which ends at ``listed``
            for i in range(begin, end):
                if i == located:
                    # A new window: as many whole rows as it holds.
                    n, listed = 0, 0
                    while located < end:
                        g = load_i64(rows + 8 * located)
                        k, k_end = load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)
                        if listed + k_end - k > WINDOW:
                            break
                        listed = list_edges(words, scores_of, lists, listed, k, k_end)
                        store_i64(ends + 8 * (located - begin), listed)
                        located += 1
                    ask(words, lists, 0, min(MOST_AHEAD, listed))
                if i < located:
                    n_end = load_i64(ends + 8 * (i - begin))
                    take(block, words, lists, state, i, n, n_end, listed, True, True)
                    n = n_end
                    continue
                # Not even this row alone: window by window.
                g = load_i64(rows + 8 * i)
                first, k_end = load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)
                for k in range(first, k_end, WINDOW):
                    listed = list_edges(words, scores_of, lists, 0, k, min(k + WINDOW, k_end))
                    ask(words, lists, 0, min(MOST_AHEAD, listed))
                    take(block, words, lists, state, i, 0, listed, listed, k == first, k + WINDOW >= k_end)
                located += 1
        scratch[0] = 0  # in use until here: it is reached by address only, which Numba does not see

    return walk


@njit
def add_weighted(total, words, lists, heads, n, n_end, listed):
    """total[h] += weights[m, h] * row m [h] for the rows n..n_end of the list, while later ones are asked for."""
    addresses, weights, channels = lists[0], lists[5], words[e.WIDTH] // heads
    while n < n_end:
        taken = min(n_end - n, 4)
        a, w, t = addresses + 8 * n, weights + 4 * n * heads, lists[3] + 4 * n
        dtype = load_i32(t)
        row_size = words[e.WIDTH] * (4 if dtype == FLOAT32 else 2)
        ahead = n + max(4, min(MOST_AHEAD, AHEAD_BYTES // row_size))
        ask(words, lists, min(ahead, listed), min(ahead + taken, listed))
        alike = taken == 4 and dtype == load_i32(t + 4) and dtype == load_i32(t + 8) and dtype == load_i32(t + 12)
        for h in range(heads):
            at, head = total + 4 * h * channels, w + 4 * h
            if alike:
                skip = h * channels * (4 if dtype == FLOAT32 else 2)
                add_four_rows(
                    at, load_i64(a) + skip, load_i64(a + 8) + skip, load_i64(a + 16) + skip, load_i64(a + 24) + skip, dtype,
                    channels, load_f32(head), load_f32(head + 4 * heads), load_f32(head + 8 * heads),
                    load_f32(head + 12 * heads),
                )  # fmt: skip
            else:
                for m in range(taken):
                    row_dtype = load_i32(t + 4 * m)
                    skip = h * channels * (4 if row_dtype == FLOAT32 else 2)
                    add_row(at, load_i64(a + 8 * m) + skip, row_dtype, channels, load_f32(head + 4 * m * heads))
        n += taken


@njit
def set_aside(sums_at, aside_at, count):
    """Begin the sums of another window. Windows are summed up apart: more exact, and as on a GPU."""
    sums, aside = f32_at(sums_at), f32_at(aside_at)
    for n in range(count):
        aside[n] = sums[n]
        sums[n] = 0


@njit
def bring_back(sums_at, aside_at, count):
    sums, aside = f32_at(sums_at), f32_at(aside_at)
    for n in range(count):
        sums[n] += aside[n]


@njit(forceinline=True)
def passes(words, name, heads, h):
    """Whether dropout lets head h of an edge pass."""
    return edge_bits(words[e.KEY], name * heads + h) >= words[e.THRESHOLD]


def attention_words(
    rowptr: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None,
    rows: torch.Tensor,
    position: torch.Tensor,
    x: torch.Tensor | None,
    x_score: torch.Tensor | None,
    history: torch.Tensor | None,
    history_score: torch.Tensor | None,
    heads: int,
    width: int,
    negative_slope: float,
    dropout: float,
    seed: int,
) -> list:
    """The words COUNT..HISTORY_SCORE_DTYPE, of which dropout's are for heads of edges."""
    source = e.source_words(
        rowptr, col, edge_id, rows, position, x, history, None, None, None, 1.0, dropout, seed, width
    )  # fmt: skip
    return [
        *source, heads, float(negative_slope), x_score, row_bytes(x_score), code(x_score),
        history_score, row_bytes(history_score), code(history_score),
    ]  # fmt: skip
