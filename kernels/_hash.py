"""The counter-based hash of dropout: its definition, and the part that the host computes.

A mask is a pure function of a seed and an index (an edge's index, or a row's global id and a feature). The device, the
thread and the order of work do not matter. So all backends draw bitwise equal masks, and backward stores none.

All arithmetic wraps modulo 2**64, or 2**32 where noted::

    mix64(z)  z = (z ^ z >> 30) * MIX1;  z = (z ^ z >> 27) * MIX2;  z ^ z >> 31       (splitmix64's finaliser)
    key       mix64(seed + GOLDEN64)                                                  (once per launch, on the host)
    edge e    mix64(key + (e + 1) * GOLDEN64) >> 40                                   (24 bits)
    row, d    r = mix64(key + (row + 1) * GOLDEN64);  k0, k1 = low, high half of r    (once per row)
              v = k0 + d * GOLDEN32;  v ^= v >> 16;  v *= MULT1;  v ^= v >> 15;
              v ^= k1;  v *= MULT2;  v ^= v >> 16;  v >> 8                            (24 bits, modulo 2**32)
    kept iff  bits >= threshold(p)

The per-feature part is 32-bit because it runs once per element: four of its steps cost as much as one 64-bit multiply.
``k1`` is added between the two multiplications, so that two rows with close ``k0`` do not share a shifted mask. 24 bits
give a probability to within 6e-8 and leave room for p = 1 in 32-bit arithmetic.
"""

MASK64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB
GOLDEN32 = 0x9E3779B9
MULT1 = 0x7FEB352D
MULT2 = 0x846CA68B


def mix64(z: int) -> int:
    """splitmix64's finaliser on a Python int, modulo 2**64."""
    z &= MASK64
    z = ((z ^ (z >> 30)) * MIX1) & MASK64
    z = ((z ^ (z >> 27)) * MIX2) & MASK64
    return z ^ (z >> 31)


def seed_key(seed: int) -> int:
    """The launch's key, as the signed 64-bit integer that kernels take."""
    key = mix64(seed + GOLDEN64)
    return key - (1 << 64) if key >> 63 else key


def threshold(p: float) -> int:
    """The smallest 24-bit value of a kept element."""
    return round(p * (1 << 24))


def keep_scale(p: float) -> float:
    """The factor of kept values, 1 / (1 - p). For p = 1 nothing is kept and the factor is not used."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0
