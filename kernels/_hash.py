"""The counter-based hash behind dropout, as far as the host computes it.

Every backend draws bit for bit the same masks: a mask is a pure function of a seed and of *what* is dropped
(an edge's index, or a row's global id and a feature), never of the device, the thread or the order of work. So
nothing is stored for backward, and the same seed means the same mask on a CPU and on a GPU.

All arithmetic wraps modulo 2**64 (2**32 where said)::

    mix64(z)  z = (z ^ z >> 30) * MIX1;  z = (z ^ z >> 27) * MIX2;  z ^ z >> 31       (splitmix64's finaliser)
    key       mix64(seed + GOLDEN64)                                                  (once per launch, on the host)
    edge e    mix64(key + (e + 1) * GOLDEN64) >> 40                                   (24 bits)
    row, d    r = mix64(key + (row + 1) * GOLDEN64);  k0, k1 = low, high half of r    (once per row)
              v = k0 + d * GOLDEN32;  v ^= v >> 16;  v *= MULT1;  v ^= v >> 15;
              v ^= k1;  v *= MULT2;  v ^= v >> 16;  v >> 8                            (24 bits, modulo 2**32)
    kept iff  bits >= threshold(p)

The per-feature part is 32-bit because it runs once per element: four of its steps fit where one 64-bit multiply
would. ``k1`` enters between the two multiplications, so that two rows whose ``k0`` lie a few steps apart do not
share a shifted mask. 24 bits give a probability to within 6e-8 and leave room for p = 1 in 32-bit arithmetic.
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
    """What the 24 bits of a kept element reach at least."""
    return round(p * (1 << 24))


def keep_scale(p: float) -> float:
    """What a kept value is multiplied by; for p = 1 nothing is kept and the value is never used."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0
