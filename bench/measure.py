"""Timing several things against each other, and the tables that a person reads.

Timings on a shared machine drift by tens of percent within minutes, so things that are to be compared are run in turn, round
after round, and the best time of each counts: what remains is what the code costs, not what the neighbours did.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rest_triton.utils.machine import readable

from .device import Step, laps
from .results import Record

ROUNDS = 15
LEAST, ENOUGH = 3, 0.8  # rounds and seconds after which something slow need not be run again
WRONG = "WRONG"


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

    def compared(self, title: str, records: Sequence[Record], remarks: Sequence[str] = ()) -> None:
        """Keep these records of one case, and show them as a table: the same mode side by side, ours first."""
        ours = {r.mode: r.seconds for r in records if r.what == "ours"}
        rows = [("", "", "time", "x ours", "GB/s", "of limit", "memory", "error", "")]
        for r in sorted(records, key=lambda r: list(dict.fromkeys(r.mode for r in records)).index(r.mode)):
            base = ours.get(r.mode)
            rows.append((
                r.what, r.mode,
                (r.note.split(":")[0] if r.note else "-") if r.seconds is None else f"{1e3 * r.seconds:.2f} ms",
                "" if r.seconds is None or not base else f"{r.seconds / base:.2f}",
                "" if r.gbps is None else f"{r.gbps:.1f}",
                "" if r.of_ceiling is None else f"{100 * r.of_ceiling:.0f} %",
                "" if r.memory is None else readable(r.memory),
                "" if r.error is None else f"{r.error:.1e}",
                r.note,
            ))  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(8)]
        self.lines += ["", title, *(f"  {remark}" for remark in remarks)]
        for what, mode, *cells, note in rows:
            figures = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[2:], strict=True))
            self.lines.append(f"  {what:<{widths[0]}}  {mode:<{widths[1]}}  {figures}  {note}".rstrip())
        self.records += records

    @property
    def wrong(self) -> list[Record]:
        """What gave wrong results, and therefore no times."""
        return [r for r in self.records if r.seconds is None and r.note.startswith(WRONG)]


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


def in_turn(
    variants: Mapping[str, Sequence[Step]], device: torch.device, rounds: int = ROUNDS
) -> dict[str, tuple[Timing, ...]]:
    """The times of each step of each variant, over rounds in which each variant runs once, its steps one after the other;
    a last one is of all steps together. Each was run before. What has taken ``ENOUGH`` seconds in ``LEAST`` rounds is left
    out of those that follow, or the slowest would take most of the session."""
    found: dict[str, list[list[float]]] = {name: [] for name in variants}
    for number in range(rounds):
        for name, steps in variants.items():
            if number < LEAST or sum(map(sum, found[name])) < ENOUGH:
                found[name].append(laps(steps, device))
    return {
        name: tuple(Timing(tuple(times)) for times in (*zip(*runs, strict=True), map(sum, runs)))
        for name, runs in found.items()
    }
