"""The edges of a batch: the address and the weight of a neighbour's row, and whether the edge was dropped."""

import numpy as np
import torch
from numba import njit

from .._hash import keep_scale, seed_key, threshold
from .hashing import edge_bits
from .intrinsics import load_f32, load_i32, load_index, prefetch, prefetch_near
from .pool import chunk_size
from .rowtypes import code, row_bytes

SKIPPED = 3  # a dtype code: the edge was dropped, or its source matrix is absent

# The words of a task's block that describe adjacency and sources, in the order of ``source_words``.
(
    COUNT, CHUNK, ROWPTR, COL, COL_WIDE, EDGE_ID, EDGE_ID_WIDE, ROWS, POSITION,
    X, X_STRIDE, X_DTYPE, HISTORY, HISTORY_STRIDE, HISTORY_DTYPE,
    ROW_SCALE, COL_SCALE, EDGE_WEIGHT,
    KEY, THRESHOLD, KEEP_SCALE, SCALE,
    WIDTH, EDGES,
) = range(1, 25)  # fmt: skip
LINE = 64  # bytes
SCOUT = 16  # edges
FIRST_OWN = 25  # the first word that belongs to one task only


@njit(forceinline=True)
def edge_name(edge_id, edge_id_wide, k):
    """The index of edge k in edge_weight and in the dropout hash."""
    return k if edge_id == 0 else load_index(edge_id, edge_id_wide, k)


@njit(forceinline=True)
def locate(words, keep_scale, k):
    """(address of the row behind edge k, its dtype or SKIPPED, its weight without row_scale).

    ``words`` is a tuple of the block's words, which stays in registers. The block itself would be read again after every
    store, because the compiler must assume that the store changed it.
    """
    c = load_index(words[COL], words[COL_WIDE], k)
    p = np.int64(load_i32(words[POSITION] + 4 * c))
    # A branch on whether a neighbour is in the batch cannot be predicted: select by mask instead.
    outside = p >> 63  # 0 in the batch, -1 outside
    base = words[X] ^ ((words[X] ^ words[HISTORY]) & outside)
    stride = words[X_STRIDE] ^ ((words[X_STRIDE] ^ words[HISTORY_STRIDE]) & outside)
    dtype = words[X_DTYPE] ^ ((words[X_DTYPE] ^ words[HISTORY_DTYPE]) & outside)
    address = base + (p ^ outside) * stride
    if base == 0:
        dtype = SKIPPED
    weight = np.float32(1)
    if words[COL_SCALE] != 0:
        weight *= load_f32(words[COL_SCALE] + 4 * c)
    if words[EDGE_WEIGHT] != 0:
        weight *= load_f32(words[EDGE_WEIGHT] + 4 * edge_name(words[EDGE_ID], words[EDGE_ID_WIDE], k))
    if words[THRESHOLD] > 0:
        if edge_bits(words[KEY], edge_name(words[EDGE_ID], words[EDGE_ID_WIDE], k)) < words[THRESHOLD]:
            dtype = SKIPPED
        weight *= keep_scale
    return address, dtype, weight


@njit(forceinline=True)
def scout(words, k):
    """Prefetch what ``locate`` will read SCOUT edges later: its lookups are random reads too."""
    if k + SCOUT < words[EDGES]:
        c = load_index(words[COL], words[COL_WIDE], k + SCOUT)
        prefetch_near(words[POSITION] + 4 * c)
        if words[COL_SCALE] != 0:
            prefetch_near(words[COL_SCALE] + 4 * c)


@njit(forceinline=True)
def prefetch_row(address, nbytes):
    for line in range(0, nbytes, LINE):
        prefetch(address + line)
    prefetch(address + nbytes - 1)  # an unaligned row ends in one more line


@njit(forceinline=True)
def source_tuple(b):
    """The words 0..EDGES of the block as a tuple."""
    return (
        b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
        b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19], b[20], b[21], b[22], b[23], b[24],
    )  # fmt: skip


def source_words(
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
    scale: float,
    edge_dropout: float,
    seed: int,
    width: int,
) -> list:
    """The words COUNT..EDGES. An absent source takes the other's dtype, so that both have the same."""
    x_like, history_like = (x if x is not None else history), (history if history is not None else x)
    return [
        rows.numel(), chunk_size(rows.numel(), 8, 64),
        rowptr, col, int(col.dtype == torch.int64), edge_id, int(edge_id is not None and edge_id.dtype == torch.int64),
        rows, position,
        x, row_bytes(x), code(x_like), history, row_bytes(history), code(history_like),
        row_scale, col_scale, edge_weight,
        seed_key(seed), threshold(edge_dropout), keep_scale(edge_dropout), scale,
        width, col.numel(),
    ]  # fmt: skip
