"""Figures over seeds, and what is said about them, of runs that are made up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rest_triton.config import Config
from rest_triton.lab.results import Outcome, Results, Spread
from rest_triton.lab.studies import STUDIES
from rest_triton.lab.study import FULL, GAS, Base, Case
from rest_triton.lab.tables import cell
from rest_triton.lab.words import beyond, difference
from rest_triton.training.report import Run

CONFIG = Config(dataset="graph")
BASE = Base(CONFIG, frozenset(), quick=True, seeds=2)


def ended(method: str, seed: int, tests: Sequence[float | None], factor: str = "base") -> Outcome:
    """A run whose epochs have these test scores, None where it was not evaluated; validation scores are the same."""
    epochs = [
        dict(epoch=at + 1, steps=4, time=dict(train=1.0, evaluation=1.0), memory=1)
        | ({} if test is None else dict(val=test, test=test))
        for at, test in enumerate(tests)
    ]
    labels = {"factor": factor, "value": "" if factor == "base" else "1", "method": method}
    return Outcome(Case(labels, CONFIG), seed, Run(Path(), {}, epochs, {"finished": True}), diverged=False, apart=False)


def results(*outcomes: Outcome) -> Results:
    return Results(STUDIES["regimes"], BASE, outcomes, len(outcomes))


def test_late_is_the_mean_over_evaluations_of_the_second_half() -> None:
    row = ended(GAS, 0, [0.9, None, 0.5, None, 0.7]).row
    assert row["test"] == 0.9 and row["late"] == pytest.approx(0.6)
    assert "late" not in ended(GAS, 0, [0.9, None, None, None]).row


def test_differences_are_of_pairs() -> None:
    """Seeds that differ by ten points, methods by one in each of them: two spreads would hide it."""
    gas = [ended(GAS, 0, [0.5, 0.5]), ended(GAS, 1, [0.6, 0.6]), ended(GAS, 7, [0.1, 0.1])]
    rest = [ended("REST F=1", 1, [0.61, 0.614]), ended("REST F=1", 0, [0.52, 0.51]), ended("REST F=1", 8, [0.99, 0.99])]
    found = results(*gas, *rest)
    gain = found.gain(rest, gas, "late")
    assert gain is not None and gain.count == 2 and gain.mean == pytest.approx(0.012)
    assert gain.std == pytest.approx(0.004 / 2**0.5) and beyond(gain)
    said = difference(found, rest, gas)
    assert said == "+1.70 points, late in training +1.20, more than the spread of pairs (0.28)"
    assert difference(found, rest[:1], gas) == "+1.40 points, late in training +1.40, of single seeds"
    assert difference(found, rest[2:], gas) == "no seed in common"


@pytest.mark.parametrize(("spread", "more"), [(0.0101, False), (0.0099, True), (None, False)])
def test_more_than_the_spread(spread: float | None, more: bool) -> None:
    assert beyond(Spread(-0.01, spread, 2)) is beyond(Spread(0.01, spread, 2)) is more


@pytest.mark.parametrize(
    ("name", "mean", "std", "shown"),
    [("test", 0.81234, 0.0056, "81.23 ± 0.56"), ("age", 11.2301, 0.00849, "11.2 ± 0.0"),
     ("age", 0.6241, 0.0129, "0.624 ± 0.013"),
     ("error", 123.4, 5.6, "123 ± 6"), ("error", 1.2e-9, 3e-10, "1.2e-09 ± 3e-10"), ("epoch_seconds", 0.25, 0.1, "250 ms"),
     ("test", 0.5, None, "50.00")],
)  # fmt: skip
def test_a_spread_has_the_decimals_of_its_mean(name: str, mean: float, std: float | None, shown: str) -> None:
    assert cell(name, Spread(mean, std, 2)) == shown


def test_where_staleness_hurts() -> None:
    """Below in each seed, above in each, below in one: the first of them alone."""
    shown = []
    for factor, losses in {"batch_size": (0.02, 0.03), "dropout": (-0.02, -0.03), "lr": (0.03, -0.01)}.items():
        for seed, loss in enumerate(losses):
            shown.append(ended(GAS, seed, [0.7 + 0.1 * seed - loss], factor))
            shown += [ended(FULL, seed, [0.7 + 0.1 * seed], "base" if factor == "batch_size" else factor)]
    told = STUDIES["regimes"].tell(results(*shown))[-1]
    assert told.startswith("In 1 of 3 regimes GAS was below full batch late in training")
    assert told.endswith("by more than the spread of pairs: clusters in a batch 1.")
    alone = results(*[one for one in shown if one.seed == 0])
    assert (
        STUDIES["regimes"].tell(alone)[-1]
        == "With one seed it cannot be said where a difference exceeds the spread of pairs."
    )
