"""The gradient of history_spmm for its edge weights, on a CPU.

    grad[e] = scale * row_scale[g] * col_scale[c] * keep(e) * <grad_out[i], src(c)>      for the edges of rows only

Bytes: those that the forward reads, plus 4 per edge written.
"""

import numpy as np
import torch

from . import edges as e
from .intrinsics import double_of_word, load_f32, load_i64, next_ticket, store_f32
from .pool import Task
from .rowtypes import code, dot_row, load_row, row_bytes

GRAD, GRAD_OUT, GRAD_OUT_STRIDE, GRAD_OUT_DTYPE = range(e.FIRST_OWN, e.FIRST_OWN + 4)


@Task
def edge_grad_task(block):
    words = e.source_tuple(block)
    rows, rowptr, width = words[e.ROWS], words[e.ROWPTR], words[e.WIDTH]
    scale = np.float32(double_of_word(words[e.SCALE]))
    kept = np.float32(double_of_word(words[e.KEEP_SCALE]))
    scratch = np.empty(width, np.float32)
    grad_row = scratch.ctypes.data
    while True:
        begin = next_ticket(block) * words[e.CHUNK]
        if begin >= words[e.COUNT]:
            break
        for i in range(begin, min(begin + words[e.CHUNK], words[e.COUNT])):
            g = load_i64(rows + 8 * i)
            factor = scale
            if words[e.ROW_SCALE] != 0:
                factor *= load_f32(words[e.ROW_SCALE] + 4 * g)
            load_row(grad_row, block[GRAD_OUT] + i * block[GRAD_OUT_STRIDE], block[GRAD_OUT_DTYPE], width)
            for k in range(load_i64(rowptr + 8 * g), load_i64(rowptr + 8 * g + 8)):
                address, dtype, weight = e.locate(words, kept, k)
                value = np.float32(0)
                if dtype != e.SKIPPED:
                    value = factor * weight * dot_row(grad_row, address, dtype, width)
                store_f32(block[GRAD] + 4 * e.edge_name(words[e.EDGE_ID], words[e.EDGE_ID_WIDE], k), value)
    scratch[0] = 0  # keeps scratch alive: Numba does not see uses by address


def edge_grad(
    grad_edge_weight: torch.Tensor,
    rowptr: torch.Tensor,
    col: torch.Tensor,
    edge_id: torch.Tensor | None,
    rows: torch.Tensor,
    position: torch.Tensor,
    x: torch.Tensor | None,
    history: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
    grad_out: torch.Tensor,
    *,
    scale: float,
    edge_dropout: float,
    seed: int,
) -> None:
    """Launch. Only the entries of the edges of ``rows`` are written."""
    if grad_out.numel() == 0:
        return
    edge_grad_task.launch(
        *e.source_words(
            rowptr, col, edge_id, rows, position, x, history, row_scale, col_scale, None,
            float(scale), edge_dropout, seed, grad_out.shape[1],
        ),
        grad_edge_weight, grad_out, row_bytes(grad_out), code(grad_out),
    )  # fmt: skip
