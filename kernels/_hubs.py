"""The limit above which a row is a hub, and the length of its segments.

A hub has more than ``HUB_DEGREE`` edges. It is split into segments of ``HUB_SEGMENT`` edges. Their partial sums are added
in order and without atomics, so two runs are bitwise equal.
"""

HUB_DEGREE = 2048
HUB_SEGMENT = 1024
