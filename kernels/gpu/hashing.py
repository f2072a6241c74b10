"""The dropout hash on the device, bitwise equal to the definition in ``kernels/_hash.py``.

The key, the threshold and the keep-scale come from the host. All arithmetic is unsigned: it wraps, and a right shift fills
with zeros.
"""

import triton
import triton.language as tl

from .._hash import GOLDEN32 as _GOLDEN32
from .._hash import GOLDEN64 as _GOLDEN64
from .._hash import MIX1 as _MIX1
from .._hash import MIX2 as _MIX2
from .._hash import MULT1 as _MULT1
from .._hash import MULT2 as _MULT2

# Triton reads module globals only when they are constexpr.
GOLDEN64 = tl.constexpr(_GOLDEN64)
GOLDEN32 = tl.constexpr(_GOLDEN32)
MIX1 = tl.constexpr(_MIX1)
MIX2 = tl.constexpr(_MIX2)
MULT1 = tl.constexpr(_MULT1)
MULT2 = tl.constexpr(_MULT2)


@triton.jit
def mix64(z):
    """splitmix64's finaliser on uint64."""
    z = (z ^ (z >> 30)) * MIX1
    z = (z ^ (z >> 27)) * MIX2
    return z ^ (z >> 31)


@triton.jit
def counter_hash(key, counter):
    """64 bits for each counter (an edge's index or a row's id)."""
    return mix64(key.to(tl.uint64) + (counter.to(tl.uint64) + 1) * GOLDEN64)


@triton.jit
def edge_kept(key, b_edge, threshold):
    """Whether the edges b_edge survive edge dropout."""
    # 24 bits: they fit int32, where the comparison with the threshold is one instruction.
    return (counter_hash(key, b_edge) >> 40).to(tl.int32) >= threshold


@triton.jit
def feature_kept(b_hash, o_d, threshold):
    """Whether the features o_d of the rows hashed to b_hash survive dropout, broadcast against each other."""
    v = b_hash.to(tl.uint32) + o_d.to(tl.uint32) * GOLDEN32
    v ^= v >> 16
    v *= MULT1
    v ^= v >> 15
    v ^= (b_hash >> 32).to(tl.uint32)
    v *= MULT2
    v ^= v >> 16
    return (v >> 8).to(tl.int32) >= threshold
