"""The hash of ``rest_triton.kernels._hash`` in Numba."""

import numpy as np
from numba import njit

from .._hash import GOLDEN32, GOLDEN64, MIX1, MIX2, MULT1, MULT2

_GOLDEN64, _MIX1, _MIX2 = np.uint64(GOLDEN64), np.uint64(MIX1), np.uint64(MIX2)
_GOLDEN32, _MULT1, _MULT2 = np.uint32(GOLDEN32), np.uint32(MULT1), np.uint32(MULT2)


@njit(forceinline=True)
def counter_word(key, counter):
    """64 bits for a counter: the index of an edge or a row."""
    z = np.uint64(key) + np.uint64(counter + 1) * _GOLDEN64
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@njit(forceinline=True)
def edge_bits(key, edge):
    return np.int64(counter_word(key, edge) >> np.uint64(40))


@njit(forceinline=True)
def feature_bits(low, high, feature):
    """24 bits for a feature of the row with the word (low, high). The casts keep every step 32 bits wide."""
    v = np.uint32(low + np.uint32(np.uint32(feature) * _GOLDEN32))
    v = np.uint32(v ^ np.uint32(v >> np.uint32(16)))
    v = np.uint32(v * _MULT1)
    v = np.uint32(v ^ np.uint32(v >> np.uint32(15)))
    v = np.uint32(np.uint32(v ^ high) * _MULT2)
    v = np.uint32(v ^ np.uint32(v >> np.uint32(16)))
    return np.uint32(v >> np.uint32(8))
