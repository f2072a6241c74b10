"""Dropout masks as plain torch: the specification of ``rest_triton.kernels._hash``."""

import torch
from torch import Tensor

from ..kernels._hash import GOLDEN32, GOLDEN64, MIX1, MIX2, MULT1, MULT2, seed_key, threshold

_LOW32 = 0xFFFFFFFF


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64. The shift of torch is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _counter_words(seed: int, counter: Tensor) -> Tensor:
    return _mix(seed_key(seed) + (counter.long() + 1) * _signed(GOLDEN64))


def _mix(z: Tensor) -> Tensor:
    """``mix64`` of every element."""
    z = (z ^ _shift_right(z, 30)) * _signed(MIX1)
    z = (z ^ _shift_right(z, 27)) * _signed(MIX2)
    return z ^ _shift_right(z, 31)


def edge_kept(seed: int, edge: Tensor, p: float) -> Tensor:
    """bool, shaped like ``edge``: whether dropout with probability p keeps the edge."""
    return _shift_right(_counter_words(seed, edge), 40) >= threshold(p)


def feature_kept(seed: int, rows: Tensor, width: int, p: float) -> Tensor:
    """bool[len(rows), width]: whether dropout with probability p keeps the feature of the row."""
    return element_kept(seed, rows[:, None], torch.arange(width, device=rows.device), p)


def element_kept(seed: int, rows: Tensor, columns: Tensor, p: float) -> Tensor:
    """bool: whether dropout with probability p keeps the features ``columns``, int64, of ``rows``. Both are broadcast."""
    word = _counter_words(seed, rows)
    low, high = word & _LOW32, _shift_right(word, 32)
    v = (low + columns * GOLDEN32) & _LOW32
    v = v ^ (v >> 16)
    v = (v * MULT1) & _LOW32
    v = v ^ (v >> 15) ^ high
    v = (v * MULT2) & _LOW32
    v = v ^ (v >> 16)
    return (v >> 8) >= threshold(p)
