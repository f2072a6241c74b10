"""Timing several things against each other, and the table that a person reads.

Timings on a shared machine drift by tens of percent within minutes, so things that are to be compared are run in turn, round
after round, and the best time of each counts: what remains is what the code costs, not what the neighbours did.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

ROUNDS = 15


@dataclass
class Report:
    """The lines that are printed at the end of the session."""

    lines: list[str] = field(default_factory=list)

    def table(self, title: str, rows: list[tuple[str, float, str]]) -> None:
        """Rows of (what, seconds, remark)."""
        self.lines.append("")
        self.lines.append(title)
        width = max(len(name) for name, _, _ in rows)
        for name, seconds, remark in rows:
            self.lines.append(f"  {name:<{width}}  {1e3 * seconds:9.2f} ms  {remark}".rstrip())


def best(variants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each variant over rounds in which each runs once; a first round is not counted."""
    for run in variants.values():
        run()
    times = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - begin)
    return times
