"""The gradients of history_attention, on a CPU.

    alpha(k, h) = exp(score(k, h) - largest[i, h]) * factor[i, h]          s(k, h) = LeakyReLU's slope at score(k, h)
    da(k, h) = keep(e, h) * <grad[i, h], src(c)[h]>
    attention_row_grad:     sums[i] = sum_k alpha da | sum_k s alpha da | sum_k s alpha            [3 heads]
    attention_source_grad:  grad_x[j, h] = sum_k keep(e, h) * alpha * grad[i, h]
                            grad_score[j, h] = sum_k s alpha (da - delta[i, h])
    for the edges k of the reverse graph from j = rows[j] to rows i in the batch, with terms[i] = row_score | norm | delta

Bytes: each pass reads per edge a row, the scores or terms, index and position.
"""

import numpy as np
import torch
from numba import njit

from . import edges as e
from .attention_edges import (
    AHEAD_BYTES,
    FIRST_OWN,
    HEADS,
    MOST_AHEAD,
    SLOPE,
    add_weighted,
    ask,
    attention_words,
    bring_back,
    exp_all,
    passes,
    set_aside,
    walker,
)  # fmt: skip
from .intrinsics import double_of_word, f32_at, load_i32, load_i64
from .pool import Task
from .rowtypes import FLOAT32, code, dot_row, load_row, row_bytes, store_row

(
    ROW_SCORE, ROW_SCORE_STRIDE, ROW_SCORE_DTYPE, GRAD, GRAD_STRIDE, GRAD_DTYPE, NORM, SUMS,
) = range(FIRST_OWN, FIRST_OWN + 8)  # fmt: skip
(
    X, X_STRIDE, X_DTYPE, X_SCORE, X_SCORE_STRIDE, X_SCORE_DTYPE, GRAD_X, GRAD_X_STRIDE, GRAD_X_DTYPE,
    GRAD_SCORE, GRAD_SCORE_STRIDE, GRAD_SCORE_DTYPE,
) = range(FIRST_OWN, FIRST_OWN + 12)  # fmt: skip


@njit(forceinline=True)
def _kept_dot(words, kept, row_at, address, dtype, name, heads, h):
    """(what dropout multiplies head h of an edge by, that times <the row, the row at address> in this head)."""
    factor = np.float32(1)
    if words[e.THRESHOLD] > 0:
        factor = kept if passes(words, name, heads, h) else np.float32(0)
    channels = words[e.WIDTH] // heads
    skip = h * channels
    item = 4 if dtype == FLOAT32 else 2
    return factor, factor * dot_row(row_at + 4 * skip, address + item * skip, dtype, channels)


@njit
def _ask_after(words, lists, m, listed):
    """Ask for the row that is needed a few places after m."""
    ahead = m + max(4, min(MOST_AHEAD, AHEAD_BYTES // (4 * words[e.WIDTH])))
    ask(words, lists, min(ahead, listed), min(ahead + 1, listed))


@njit(fastmath={"contract"})
def _take_row(block, words, lists, state, i, n, n_end, listed, first, last):
    heads, width, slope = block[HEADS], words[e.WIDTH], np.float32(double_of_word(block[SLOPE]))
    kept = np.float32(double_of_word(words[e.KEEP_SCALE]))
    count = n_end - n
    own_at, score_at, sums_at = state + 4 * width, state + 4 * (width + heads), state + 4 * (width + 2 * heads)
    own, score, sums, norm = f32_at(own_at), f32_at(score_at), f32_at(sums_at), f32_at(block[NORM] + 8 * i * heads)
    alpha_at = lists[5] + 4 * n * heads
    alpha, slopes = f32_at(alpha_at), f32_at(lists[6] + 4 * n * heads)
    if first:
        load_row(state, block[GRAD] + i * block[GRAD_STRIDE], block[GRAD_DTYPE], width)
        load_row(own_at, block[ROW_SCORE] + i * block[ROW_SCORE_STRIDE], block[ROW_SCORE_DTYPE], heads)
        for h in range(3 * heads):
            sums[h] = 0
    else:
        set_aside(sums_at, sums_at + 12 * heads, 3 * heads)
    for m in range(count):
        load_row(score_at, load_i64(lists[1] + 8 * (n + m)), load_i32(lists[4] + 4 * (n + m)), heads)
        for h in range(heads):
            value = own[h] + score[h]
            slopes[m * heads + h] = np.float32(1) if value > 0 else slope
            value = value if value > 0 else slope * value  # rounded as in forward
            alpha[m * heads + h] = value - norm[h]
    exp_all(alpha_at, count * heads)
    for m in range(count):
        _ask_after(words, lists, n + m, listed)
        address, dtype, name = (
            load_i64(lists[0] + 8 * (n + m)),
            load_i32(lists[3] + 4 * (n + m)),
            load_i64(lists[2] + 8 * (n + m)),
        )
        for h in range(heads):
            _, dot = _kept_dot(words, kept, state, address, dtype, name, heads, h)
            a, s = alpha[m * heads + h] * norm[heads + h], slopes[m * heads + h]
            sums[h] += a * dot
            sums[heads + h] += s * a * dot
            sums[2 * heads + h] += s * a
    if not first:
        bring_back(sums_at, sums_at + 12 * heads, 3 * heads)
    if last:
        store_row(block[SUMS] + 12 * i * heads, FLOAT32, sums_at, 3 * heads)


_walk_row = walker(_take_row)


@Task
def attention_row_grad_task(block):
    words = e.source_tuple(block)
    _walk_row(block, words, words[e.WIDTH] + 8 * block[HEADS])


@njit(fastmath={"contract"})
def _take_source(block, words, lists, state, i, n, n_end, listed, first, last):
    """Here the list holds rows of the gradient, and their terms in the place of scores."""
    heads, width, slope = block[HEADS], words[e.WIDTH], np.float32(double_of_word(block[SLOPE]))
    kept = np.float32(double_of_word(words[e.KEEP_SCALE]))
    count = n_end - n
    total_at, sums_at, own_at = state + 4 * width, state + 8 * width, state + 4 * (2 * width + heads)
    total, sums, own = f32_at(total_at), f32_at(sums_at), f32_at(own_at)
    alpha_at = lists[5] + 4 * n * heads
    alpha, slopes = f32_at(alpha_at), f32_at(lists[6] + 4 * n * heads)
    if first:
        load_row(state, block[X] + i * block[X_STRIDE], block[X_DTYPE], width)
        load_row(own_at, block[X_SCORE] + i * block[X_SCORE_STRIDE], block[X_SCORE_DTYPE], heads)
        for d in range(width + heads):
            total[d] = 0  # and the sums behind it
    else:
        set_aside(total_at, own_at + 4 * heads, width + heads)
    for m in range(count):
        terms = f32_at(load_i64(lists[1] + 8 * (n + m)))
        for h in range(heads):
            value = terms[h] + own[h]
            slopes[m * heads + h] = np.float32(1) if value > 0 else slope
            value = value if value > 0 else slope * value  # rounded as in forward
            alpha[m * heads + h] = value - terms[heads + h]
    exp_all(alpha_at, count * heads)
    for m in range(count):
        _ask_after(words, lists, n + m, listed)
        address, dtype, name = (
            load_i64(lists[0] + 8 * (n + m)),
            load_i32(lists[3] + 4 * (n + m)),
            load_i64(lists[2] + 8 * (n + m)),
        )
        terms = f32_at(load_i64(lists[1] + 8 * (n + m)))
        for h in range(heads):
            factor, dot = _kept_dot(words, kept, state, address, dtype, name, heads, h)
            a = alpha[m * heads + h] * terms[2 * heads + h]
            sums[h] += slopes[m * heads + h] * a * (dot - terms[3 * heads + h])
            alpha[m * heads + h] = a * factor
        if m % 4 == 3 or m == count - 1:  # while these rows are in the nearest cache
            add_weighted(total_at, words, lists, heads, n + m - m % 4, n + m + 1, 0)
    if not first:
        bring_back(total_at, own_at + 4 * heads, width + heads)
    if last:
        store_row(block[GRAD_X] + i * block[GRAD_X_STRIDE], block[GRAD_X_DTYPE], total_at, width)
        store_row(block[GRAD_SCORE] + i * block[GRAD_SCORE_STRIDE], block[GRAD_SCORE_DTYPE], sums_at, heads)


_walk_source = walker(_take_source)


@Task
def attention_source_grad_task(block):
    words = e.source_tuple(block)
    _walk_source(block, words, 3 * words[e.WIDTH] + 3 * block[HEADS])


def attention_row_grad(
    sums: torch.Tensor,
    rowptr: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None,
    rows: torch.Tensor,
    position: torch.Tensor,
    x: torch.Tensor | None,
    x_score: torch.Tensor | None,
    row_score: torch.Tensor,
    history: torch.Tensor | None,
    history_score: torch.Tensor | None,
    norm: torch.Tensor,
    grad: torch.Tensor,
    *,
    negative_slope: float,
    dropout: float,
    seed: int,
    hub_node: torch.Tensor | None = None,
    hub_first: torch.Tensor | None = None,
    hub_segments: int = 0,
) -> None:
    """Launch. ``sums`` and ``norm`` are contiguous float32 [R, 3 heads] and [R, 2 heads]."""
    if grad.numel() == 0:
        sums.zero_()
        return
    attention_row_grad_task.launch(
        *attention_words(
            rowptr, col, edge_id, rows, position, x, x_score, history, history_score, norm.shape[1] // 2, grad.shape[1],
            negative_slope, dropout, seed,
        ),
        row_score, row_bytes(row_score), code(row_score), grad, row_bytes(grad), code(grad), norm, sums,
    )  # fmt: skip


def attention_source_grad(
    grad_x: torch.Tensor,
    grad_score: torch.Tensor,
    rowptr: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None,
    rows: torch.Tensor,
    position: torch.Tensor,
    x: torch.Tensor,
    x_score: torch.Tensor,
    terms: torch.Tensor,
    grad: torch.Tensor,
    *,
    negative_slope: float,
    dropout: float,
    seed: int,
    hub_node: torch.Tensor | None = None,
    hub_first: torch.Tensor | None = None,
    hub_segments: int = 0,
) -> None:
    """Launch on the reverse graph. ``terms`` is contiguous float32 [R, 4 heads]."""
    if grad.numel() == 0:
        grad_score.zero_()
        return
    attention_source_grad_task.launch(
        *attention_words(
            rowptr, col, edge_id, rows, position, grad, terms, None, None, grad_score.shape[1], grad.shape[1],
            negative_slope, dropout, seed,
        ),
        x, row_bytes(x), code(x), x_score, row_bytes(x_score), code(x_score), grad_x, row_bytes(grad_x), code(grad_x),
        grad_score, row_bytes(grad_score), code(grad_score),
    )  # fmt: skip
