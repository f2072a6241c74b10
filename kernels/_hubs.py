"""When a row is too long for one worker.

A hub is a row with more than ``HUB_DEGREE`` edges. It is cut into segments of ``HUB_SEGMENT`` edges whose partial
sums are added in order: no atomics, so two runs are bitwise equal.
"""

HUB_DEGREE = 2048
HUB_SEGMENT = 1024
