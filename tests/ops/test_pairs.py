"""The covering array of the ops' cases leaves out no pair."""

from itertools import combinations, product

from .pairs import pairwise


def test_every_allowed_pair_is_met() -> None:
    options = {"a": [1, 2, 3], "b": [None, 1], "c": "xyz", "d": [False, True]}

    def never(chosen: dict) -> bool:
        return chosen.get("a") == 1 and chosen.get("c") == "x"

    cases = pairwise(options, never)
    assert cases == pairwise(options, never) and len(cases) < 15
    assert not any(never(case) for case in cases)
    for first, second in combinations(options, 2):
        expected = {(u, v) for u, v in product(options[first], options[second]) if not never({first: u, second: v})}
        assert {(case[first], case[second]) for case in cases} == expected
