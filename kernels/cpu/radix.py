"""A radix sort for words in cache: least significant digit first, stable, linear time."""

import numpy as np
from numba import njit

from .intrinsics import load_i64, load_u64, store_i64, store_u64

DIGIT = 11  # bits: 2048 counters are a quarter of a first-level cache


@njit
def sort_words(words, spare, count, first, bits, counters):
    """Sort ``count`` uint64 words by their bits ``first .. first + bits``. Returns the address of the result.

    ``spare`` has room for as many words, ``counters`` for 2048 int64. The result is in ``words`` or in ``spare``.
    """
    rounds = (bits + DIGIT - 1) // DIGIT
    if rounds == 0:
        return words
    digit = (bits + rounds - 1) // rounds
    mask = np.uint64((1 << digit) - 1)
    for _ in range(rounds):
        shift = np.uint64(first)
        for d in range(np.int64(mask) + 1):
            store_i64(counters + 8 * d, 0)
        for k in range(count):
            counter = counters + 8 * np.int64((load_u64(words + 8 * k) >> shift) & mask)
            store_i64(counter, load_i64(counter) + 1)
        at = spare
        for d in range(np.int64(mask) + 1):
            size = load_i64(counters + 8 * d)
            store_i64(counters + 8 * d, at)
            at += 8 * size
        for k in range(count):
            word = load_u64(words + 8 * k)
            counter = counters + 8 * np.int64((word >> shift) & mask)
            place = load_i64(counter)
            store_u64(place, word)
            store_i64(counter, place + 8)
        words, spare = spare, words
        first += digit
    return words
