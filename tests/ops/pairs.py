"""Covering arrays: few cases in which every value of an option meets every value of every other option."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Chosen = dict[str, Any]


def pairwise(options: Mapping[str, Sequence[Any]], never: Callable[[Chosen], bool] = lambda chosen: False) -> list[Chosen]:
    """Cases, each with one value per option, in which every two values of two options occur together.

    ``never`` says whether a choice of two or more options is not allowed. It must depend on pairs alone. The cases are the
    same in every run.
    """
    draw = random.Random(0)
    left = [
        {a: u, b: v} for a, b in combinations(options, 2) for u in options[a] for v in options[b] if not never({a: u, b: v})
    ]
    cases: list[Chosen] = []
    while left:
        tried: list[Chosen] = []
        while len(tried) < 30:
            case = {name: draw.choice(values) for name, values in options.items()} | left[0]
            if not never(case):
                tried.append(case)
        best = max(tried, key=lambda case: sum(pair.items() <= case.items() for pair in left))
        cases.append(best)
        left = [pair for pair in left if not pair.items() <= best.items()]
    return cases
