"""What came out of a study's runs: a row for each, and mean and spread over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from ..training.report import Run, read_run
from .runner import DIVERGED
from .study import Base, Case, Planned, Study


@dataclass(frozen=True)
class Outcome:
    """One run that has ended."""

    case: Case
    seed: int
    run: Run
    diverged: bool
    apart: bool

    @cached_property
    def measured(self) -> list[dict[str, Any]]:
        """Epochs after which histories were compared with the truth."""
        return [epoch for epoch in self.run.epochs if "error" in epoch]

    @cached_property
    def trained(self) -> list[float]:
        """Seconds of training until the end of each epoch, without evaluations."""
        total, found = 0.0, []
        for epoch in self.run.epochs:
            total += sum(seconds for phase, seconds in epoch["time"].items() if phase != "evaluation")
            found.append(total)
        return found

    @cached_property
    def row(self) -> dict[str, Any]:
        """Its figures by the names of columns; those that it has."""
        epochs, found = self.run.epochs, dict[str, Any]()
        if self.diverged or not epochs:
            return found
        if self.run.best is not None:
            found |= dict(zip(("best_epoch", "val", "test"), self.run.best, strict=True))
        if self.measured:
            last, best = self.measured[-1], max(self.measured, key=lambda epoch: epoch["stale_val"])
            found |= {"stale_val": best["stale_val"], "stale_test": best.get("stale_test", math.nan), "error": last["error"]}
            for name in ("staleness", "staleness_relative"):
                found |= {f"{name}_{table}": value for table, value in enumerate(last[name])}
        later = epochs[len(epochs) // 2 :]
        scores = [epoch["test"] for epoch in later if "test" in epoch]
        found |= {"late": mean(scores)} if scores else {}
        for name in ("age", "frequency"):
            known = [epoch[name] for epoch in later if name in epoch]
            found |= {name: mean(known)} if known else {}
        each = [b - a for a, b in zip([0.0, *self.trained], self.trained, strict=False)]
        steps = sum(epoch["steps"] for epoch in epochs)
        found |= {
            "steps": steps, "loss": epochs[-1].get("loss", math.nan), "train_seconds": self.trained[-1],
            "epoch_seconds": median(each), "step_seconds": self.trained[-1] / max(1, steps),
            "evaluation_seconds": sum(epoch["time"]["evaluation"] for epoch in epochs),
        }  # fmt: skip
        # In a process that did other runs before, the most that it has held may be another's.
        return found | ({"memory": max(epoch["memory"] for epoch in epochs)} if self.apart else {})


@dataclass(frozen=True)
class Spread:
    """Of one figure over seeds. std: unbiased; None of a single one."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        known = [value for value in values if value == value]
        if not known:
            return None
        return cls(mean(known), stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Results:
    """All that has ended so far of a study.

    Args:
        outcomes: in the order of the plan. planned: how many runs there will be.
    """

    study: Study
    base: Base
    outcomes: Sequence[Outcome]
    planned: int

    @property
    def metric(self) -> str:
        return next((outcome.run.metric for outcome in self.outcomes), "accuracy")

    @cached_property
    def groups(self) -> dict[str, list[Outcome]]:
        """Outcomes by the name of their case."""
        found: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.case.name, []).append(outcome)
        return found

    def where(self, **labels: Any) -> "list[list[Outcome]]":
        """The groups whose labels agree with these."""
        return [
            group
            for group in self.groups.values()
            if all(group[0].case.labels.get(name) == value for name, value in labels.items())
        ]

    def values(self, label: str) -> list[Any]:
        """What a label is in these results, in the order of the plan."""
        known = (o.case.labels for o in self.outcomes)
        return list(dict.fromkeys(labels[label] for labels in known if label in labels))

    def spread(self, group: Sequence[Outcome], name: str) -> Spread | None:
        return Spread.of(outcome.row[name] for outcome in group if name in outcome.row)

    def gain(self, group: Sequence[Outcome], other: Sequence[Outcome], name: str) -> Spread | None:
        """How much more ``group`` has than ``other``, seed by seed: runs of one seed begin with the same weights and see the
        same batches in the same order, so that most of what moves one moves the other, too."""
        theirs = {outcome.seed: outcome.row[name] for outcome in other if name in outcome.row}
        return Spread.of(o.row[name] - theirs[o.seed] for o in group if name in o.row and o.seed in theirs)

    def table(self, names: Sequence[str]) -> list[tuple[Mapping[str, Any], dict[str, Spread | None], int]]:
        """(labels, spreads by name, runs that diverged) of each case."""
        return [
            (group[0].case.labels, {name: self.spread(group, name) for name in names}, sum(o.diverged for o in group))
            for group in self.groups.values()
        ]


def curve(
    group: Sequence[Outcome], x: Callable[[Outcome, int], float], y: str
) -> tuple[list[float], list[float], list[float | None]]:
    """(x, mean of y, its standard deviation) over the epochs at which all seeds have y. x: of an outcome and the place of an
    epoch in it; its mean over seeds."""
    by_epoch = [
        {epoch["epoch"]: (x(outcome, at), epoch[y]) for at, epoch in enumerate(outcome.run.epochs) if y in epoch}
        for outcome in group
        if not outcome.diverged
    ]
    if not by_epoch:
        return [], [], []
    common = sorted(set.intersection(*(set(found) for found in by_epoch)))
    xs = [mean(found[epoch][0] for found in by_epoch) for epoch in common]
    ys = [Spread.of(found[epoch][1] for found in by_epoch) for epoch in common]
    return xs, [math.nan if s is None else s.mean for s in ys], [None if s is None else s.std for s in ys]


def read(study: Study, base: Base, runs: Sequence[Planned]) -> Results:
    """The runs that have ended, from their folders."""
    outcomes = []
    for run in runs:
        diverged = (run.folder / DIVERGED).exists()
        if not diverged and not ((run.folder / "summary.json").exists() and _left(study, run.folder)):
            continue
        found = read_run(run.folder)
        if diverged or found.summary.get("finished"):
            outcomes.append(Outcome(run.case, run.config.seed, found, diverged, study.apart))
    results = Results(study, base, outcomes, len(runs))
    if study.complete is not None:
        study.complete(results)
    return results


def _left(study: Study, folder: Path) -> bool:
    return not study.leaves or (folder / study.leaves).exists()
