"""Addresses of rows in memory, and conversion between their dtype and float32."""

import triton
import triton.language as tl
from triton import knobs

_INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def row_pointers(ptr, o_r, stride, o_d, VECTOR: tl.constexpr):
    """Pointers [BLOCK_R, BLOCK_D] to the features o_d of rows o_r, which a lane may take VECTOR at a time."""
    ALIGN: tl.constexpr = VECTOR * (ptr.dtype.element_ty.primitive_bitwidth // 8)
    return tl.multiple_of((ptr + o_r * stride)[:, None], [1, ALIGN]) + o_d[None, :]


@triton.jit
def widen(b):
    """b as float32."""
    if b.dtype == tl.bfloat16:
        # bfloat16 is the upper half of float32. In integers, a packed pair takes a shift and a mask. The conversion
        # instruction unpacks the pair first, half an instruction more per element.
        b = (b.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return b.to(tl.float32)


@triton.jit
def round_to(b, ptr):
    """float32 b as elements of ptr, rounded to nearest even."""
    if _INTERPRETED and ptr.dtype.element_ty == tl.bfloat16:
        # Triton's interpreter truncates to bfloat16, while every GPU rounds: tests would need twice the tolerance. After
        # this rounding, truncation is exact. A NaN gets a bit that stays, as truncation could make it an infinity.
        b_bits = b.to(tl.uint32, bitcast=True)
        b_rounded = (b_bits + 0x7FFF + ((b_bits >> 16) & 1)) & 0xFFFF0000
        b = tl.where(b == b, b_rounded, b_bits | 0x400000).to(tl.float32, bitcast=True)
    return b.to(ptr.dtype.element_ty)
