"""Timing several things against each other, and the tables that a person reads.

Timings on a shared machine drift by tens of percent within minutes, so things that are to be compared are run in turn, round
after round, and the best time of each counts: what remains is what the code costs, not what the neighbours did.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .results import Record

ROUNDS = 15


@dataclass(frozen=True)
class Timing:
    """The seconds of each round."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def noise(self) -> float:
        """How far the median is above the best, as a share of it: what a change has to exceed to be one."""
        return statistics.median(self.rounds) / self.best - 1


@dataclass
class Report:
    """What a session found out: lines that are printed at its end, and records that are written to files."""

    lines: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def table(self, title: str, rows: list[tuple[str, float, str]]) -> None:
        """Rows of (what, seconds, remark)."""
        self.lines.append("")
        self.lines.append(title)
        width = max(len(name) for name, _, _ in rows)
        for name, seconds, remark in rows:
            self.lines.append(f"  {name:<{width}}  {1e3 * seconds:9.2f} ms  {remark}".rstrip())

    def record(self, record: Record) -> None:
        self.records.append(record)


def timed(variants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, Timing]:
    """The times of each variant over rounds in which each runs once; a first round is not counted."""
    for run in variants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    return {name: Timing(tuple(found)) for name, found in times.items()}


def best(variants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each, see :func:`timed`."""
    return {name: timing.best for name, timing in timed(variants, rounds).items()}
