"""Slopes of straight lines through logarithms."""

import math

import pytest

from bench.bench_growth import SIZES, fitting
from bench.growth import fit


@pytest.mark.parametrize("slope", [-0.5, 0.0, 1.0, 2.0])
def test_a_power_law_is_found_exactly(slope: float) -> None:
    x = [1e5, 3e5, 2e6, 1e8]
    found = fit(x, [7e-6 * value**slope for value in x])
    assert found.slope == pytest.approx(slope, abs=1e-12)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.at(4e6) == pytest.approx(7e-6 * 4e6**slope)


def test_the_standard_error_is_that_of_least_squares() -> None:
    # By hand: logarithms to base 2 are x = 0, 1, 2 and y = 0, 2, 2; slope 1, residuals -1/3, 2/3, -1/3.
    found = fit([1, 2, 4], [1, 4, 4])
    assert found.slope == pytest.approx(1)
    assert found.error == pytest.approx(math.sqrt((1 / 9 + 4 / 9 + 1 / 9) / 1 / 2))
    assert str(found) == "slope 1.00 ± 0.58"


def test_two_points_have_no_error() -> None:
    found = fit([1, 10], [1, 100])
    assert found.slope == pytest.approx(2) and math.isnan(found.error)
    assert str(found) == "slope 2.00"


@pytest.mark.parametrize(
    "x, y, told",
    [
        ([1, 2], [0, 1], "0 has no logarithm"),
        ([1, 2], [math.nan, 1], "nan has no logarithm"),
        ([3, 3], [1, 2], "two different values of x"),
        ([], [], "two different values of x"),
        ([1, 2], [1], "2 values of x and 1 of y"),
    ],
)
def test_what_has_no_slope_is_refused(x: list[float], y: list[float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fit(x, y)


def test_parts_of_products_that_do_not_fit_are_left_out() -> None:
    assert fitting(1 << 50) == list(SIZES.values())
    assert fitting(8 << 30) == list(SIZES.values())[:3]
    assert fitting(1 << 20) == list(SIZES.values())[:2]  # a slope needs two
