"""How fast something grows: the slope of a straight line through logarithms."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Fit(NamedTuple):
    """y = scale · x ** slope. error: the slope's standard error; nan from two points, through which any line fits."""

    slope: float
    error: float
    scale: float

    def __str__(self) -> str:
        return f"slope {self.slope:.2f}" + ("" if math.isnan(self.error) else f" ± {self.error:.2f}")

    def at(self, x: float) -> float:
        return self.scale * x**self.slope


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares of log y on log x: slope 1 is in proportion to x, slope 2 to its square.

    A standard error measures scatter about the line, not whether a line is right: a curve has to be looked at.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} values of x and {len(y)} of y; each x needs its y")
    wrong = [value for value in (*x, *y) if not 0 < value < math.inf]
    if wrong:
        raise ValueError(f"{wrong[0]} has no logarithm; leave out what is not positive")
    if len(set(x)) < 2:
        raise ValueError(f"a slope needs two different values of x, these are {list(x)}")
    across, up = [math.log(value) for value in x], [math.log(value) for value in y]
    count = len(across)
    middle, level = sum(across) / count, sum(up) / count
    spread = sum((a - middle) ** 2 for a in across)
    slope = sum((a - middle) * (b - level) for a, b in zip(across, up, strict=True)) / spread
    left = sum((b - level - slope * (a - middle)) ** 2 for a, b in zip(across, up, strict=True))
    error = math.sqrt(left / (count - 2) / spread) if count > 2 else math.nan
    return Fit(slope, error, math.exp(level - slope * middle))
