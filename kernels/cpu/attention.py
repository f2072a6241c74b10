"""history_attention on a CPU.

    out[i, h] = sum_k keep(e, h) * exp(score(k, h) - largest[i, h]) * factor[i, h] * src(c)[h]
    with score(k, h) = leaky_relu(row_score[i, h] + src_score(c)[h]), c = col[k], e = edge_id[k] (or k),
    src and src_score from x and x_score or from history and history_score.
    norm[i] = largest | factor: the largest score of each head, and 1 / sum_k exp(score(k, h) - largest).

Bytes: nnz * (width * itemsize + heads * itemsize + index + 4 position) read, R * width * itemsize written.

One pass over the edges. In a row longer than a window, what is summed so far is scaled down when a later window has a larger
score.
"""

import numpy as np
import torch
from numba import njit

from . import edges as e
from .attention_edges import (
    FIRST_OWN,
    HEADS,
    SLOPE,
    add_weighted,
    attention_words,
    bring_back,
    exp,
    exp_all,
    passes,
    set_aside,
    walker,
)  # fmt: skip
from .intrinsics import double_of_word, f32_at, load_i32, load_i64, store_f32
from .pool import Task
from .rowtypes import code, load_row, row_bytes, store_row

(
    ROW_SCORE, ROW_SCORE_STRIDE, ROW_SCORE_DTYPE, OUT, OUT_STRIDE, OUT_DTYPE, NORM,
) = range(FIRST_OWN, FIRST_OWN + 7)  # fmt: skip


@njit(fastmath={"contract"})
def _take(block, words, lists, state, i, n, n_end, listed, first, last):
    """Brings the sums of row i up to date with the edges n..n_end, and after the last ones writes its result."""
    heads, width, slope = block[HEADS], words[e.WIDTH], np.float32(double_of_word(block[SLOPE]))
    channels, count, weights_at = width // heads, n_end - n, lists[5] + 4 * n * heads
    summed = width + heads  # of rows, and of weights
    aside_at, largest_at, own_at = state + 4 * summed, state + 8 * summed, state + 8 * summed + 4 * heads
    score_at = own_at + 4 * heads
    total, sums, aside, largest = f32_at(state), f32_at(state + 4 * width), f32_at(aside_at), f32_at(largest_at)
    own, score, weights = f32_at(own_at), f32_at(score_at), f32_at(weights_at)
    down = f32_at(score_at + 4 * heads)
    if first:
        load_row(own_at, block[ROW_SCORE] + i * block[ROW_SCORE_STRIDE], block[ROW_SCORE_DTYPE], heads)
        for d in range(summed):
            total[d] = 0
        for h in range(heads):
            largest[h] = -np.inf
    else:
        set_aside(state, aside_at, summed)
    for h in range(heads):
        down[h] = largest[h]
    for m in range(count):
        load_row(score_at, load_i64(lists[1] + 8 * (n + m)), load_i32(lists[4] + 4 * (n + m)), heads)
        for h in range(heads):
            value = own[h] + score[h]
            value = value if value > 0 else slope * value
            weights[m * heads + h] = value
            largest[h] = value if value > largest[h] else largest[h]
    for m in range(count):
        for h in range(heads):
            weights[m * heads + h] -= largest[h]
    exp_all(weights_at, count * heads)
    for m in range(count):
        for h in range(heads):
            sums[h] += weights[m * heads + h]
    if words[e.THRESHOLD] > 0:
        for m in range(count):
            name = load_i64(lists[2] + 8 * (n + m))
            for h in range(heads):
                if not passes(words, name, heads, h):
                    weights[m * heads + h] = 0
    add_weighted(state, words, lists, heads, n, n_end, listed)
    if not first:
        # What was set aside is relative to what was the largest score before this window.
        for h in range(heads):
            factor = exp(down[h] - largest[h]) if aside[width + h] != 0 else np.float32(1)
            aside[width + h] *= factor
            for d in range(h * channels, (h + 1) * channels):
                aside[d] *= factor
        bring_back(state, aside_at, summed)
    if last:
        kept = np.float32(double_of_word(words[e.KEEP_SCALE]))
        for h in range(heads):
            factor = np.float32(1) / sums[h] if sums[h] != 0 else np.float32(0)
            norm = block[NORM] + 4 * (2 * i * heads + h)
            store_f32(norm, largest[h] if sums[h] != 0 else np.float32(0))
            store_f32(norm + 4 * heads, factor)
            factor *= kept
            for d in range(h * channels, (h + 1) * channels):
                total[d] *= factor
        store_row(block[OUT] + i * block[OUT_STRIDE], block[OUT_DTYPE], state, width)


_walk = walker(_take)


@Task
def attention_task(block):
    words = e.source_tuple(block)
    _walk(block, words, 2 * words[e.WIDTH] + 6 * block[HEADS])


def attention(
    out: torch.Tensor,
    norm: torch.Tensor,
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
    *,
    negative_slope: float,
    dropout: float,
    seed: int,
    hub_node: torch.Tensor | None = None,
    hub_first: torch.Tensor | None = None,
    hub_segments: int = 0,
) -> None:
    """Launch. ``norm`` is contiguous float32 [R, 2 heads]."""
    if out.numel() == 0:
        norm.zero_()
        return
    attention_task.launch(
        *attention_words(
            rowptr, col, edge_id, rows, position, x, x_score, history, history_score, norm.shape[1] // 2, out.shape[1],
            negative_slope, dropout, seed,
        ),
        row_score, row_bytes(row_score), code(row_score), out, row_bytes(out), code(out), norm,
    )  # fmt: skip
