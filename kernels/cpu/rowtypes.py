"""Conversion of float32, bfloat16 and float16 rows from and to float32.

A task handles every dtype. The dtype's code is an argument that is read once per row. So one compiled task serves all
combinations of dtypes (nine for spmm), and a bfloat16 table is never copied to float32.

The functions take addresses, not arrays: Numba counts references to an array atomically whenever it is passed on.
"""

import numpy as np
import torch
from numba import njit

from .intrinsics import bits_of_float, f32_at, float_of_bits, float_of_half, half_of_float, u16_at
from .vectors import (  # fmt: skip
    add_bfloat16,
    add_float16,
    add_float32,
    add_four_bfloat16,
    add_four_float16,
    add_four_float32,
)

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
_CODES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


def code(tensor: torch.Tensor | None) -> int:
    """The code of a tensor's dtype; of an absent tensor, any code."""
    return FLOAT32 if tensor is None else _CODES[tensor.dtype]


def row_bytes(tensor: torch.Tensor | None) -> int:
    """The stride of rows in bytes."""
    return 0 if tensor is None else tensor.stride(0) * tensor.element_size()


@njit(forceinline=True)
def float_of_bfloat(bits):
    return float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@njit(forceinline=True)
def bfloat_of_float(value):
    """Round to nearest, ties to even, like torch. A NaN stays a NaN."""
    bits = bits_of_float(value)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
    kept = rounded if value == value else np.uint32(bits | np.uint32(0x400000))
    return np.uint16(kept >> np.uint32(16))


@njit(fastmath={"contract"})
def load_row(row_address, address, dtype, width):
    """float32 row = the row at address."""
    row = f32_at(row_address)
    if dtype == FLOAT32:
        source = f32_at(address)
        for d in range(width):
            row[d] = source[d]
    elif dtype == BFLOAT16:
        short = u16_at(address)
        for d in range(width):
            row[d] = float_of_bfloat(short[d])
    else:
        short = u16_at(address)
        for d in range(width):
            row[d] = float_of_half(short[d])


@njit(fastmath={"contract"})
def store_row(address, dtype, row_address, width):
    """the row at address = the float32 row, rounded to its dtype."""
    row = f32_at(row_address)
    if dtype == FLOAT32:
        target = f32_at(address)
        for d in range(width):
            target[d] = row[d]
    elif dtype == BFLOAT16:
        short = u16_at(address)
        for d in range(width):
            short[d] = bfloat_of_float(row[d])
    else:
        short = u16_at(address)
        for d in range(width):
            short[d] = half_of_float(row[d])


@njit
def add_row(total, address, dtype, width, weight):
    """float32 total += weight * the row at address."""
    if dtype == FLOAT32:
        add_float32(total, width, address, weight)
    elif dtype == BFLOAT16:
        add_bfloat16(total, width, address, weight)
    else:
        add_float16(total, width, address, weight)


@njit
def add_four_rows(total, a0, a1, a2, a3, dtype, width, w0, w1, w2, w3):
    """Four times ``add_row`` in the same order, with one load and store of ``total`` instead of four."""
    if dtype == FLOAT32:
        add_four_float32(total, width, a0, a1, a2, a3, w0, w1, w2, w3)
    elif dtype == BFLOAT16:
        add_four_bfloat16(total, width, a0, a1, a2, a3, w0, w1, w2, w3)
    else:
        add_four_float16(total, width, a0, a1, a2, a3, w0, w1, w2, w3)


@njit(fastmath={"contract", "reassoc"})
def dot_row(row_address, address, dtype, width):
    """<float32 row, the row at address>. Reassociation lets the sum vectorise; its order is fixed by compilation."""
    row = f32_at(row_address)
    total = np.float32(0)
    if dtype == FLOAT32:
        source = f32_at(address)
        for d in range(width):
            total += row[d] * source[d]
    elif dtype == BFLOAT16:
        short = u16_at(address)
        for d in range(width):
            total += row[d] * float_of_bfloat(short[d])
    else:
        short = u16_at(address)
        for d in range(width):
            total += row[d] * float_of_half(short[d])
    return total
