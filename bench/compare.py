"""What changed between two sessions of bench/, beyond noise.

    python -m bench.compare A.json B.json

A time of B that is longer or shorter than A's counts as changed when it differs by more than twice the larger noise of the
two (median over best, less one), and by 5 % at least. Exit status: 1 if one of ours became slower, larger or wrong; 2 if
there is nothing to compare. Alternatives, and what the machine can do at best, decide nothing: when they change speed, the
machine or the versions did.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .loading import duration, is_ours, load, named, size
from .results import Record

FLOOR = 0.05  # however quiet its rounds were, a session does not see how the machine differs from one hour to the next
SHOWN = 5  # of the changes of alternatives: enough to see that there are some
DECISIVE = ("processor", "threads", "gpu", "malloc")  # a difference here is no difference of the code
Key = tuple[str, str, str, str, float | None]


def amount(record: Record) -> float | None:
    """Seconds, or bytes where memory was measured."""
    return record.memory if record.mode == "memory" else record.seconds


@dataclass(frozen=True)
class Change:
    a: Record
    b: Record
    ours: bool = True

    @property
    def ratio(self) -> float:
        before, after = amount(self.a), amount(self.b)
        assert before is not None and after is not None
        return after / before if before else math.inf if after else 1.0

    @property
    def threshold(self) -> float:
        return 1 + max(FLOOR, 2 * max(self.a.noise or 0.0, self.b.noise or 0.0))

    @property
    def kind(self) -> str:
        if amount(self.b) is None:
            return "wrong in both" if amount(self.a) is None else "became wrong"
        if amount(self.a) is None:
            return "became right"
        return "worse" if self.ratio > self.threshold else "better" if self.ratio < 1 / self.threshold else "unchanged"

    def __str__(self) -> str:
        if amount(self.a) is None or amount(self.b) is None:
            return f"{named(self.b)}" + (f" ({self.b.note})" if self.b.note else "")
        show = size if self.b.mode == "memory" else duration
        amounts = f"{show(amount(self.a) or 0)} -> {show(amount(self.b) or 0)}"
        known = self.b.mode == "memory" or None not in (self.a.noise, self.b.noise)
        unknown = "" if known else ", noise not measured"
        return f"{self.ratio:5.2f} x  {amounts}  {named(self.b)}  (beyond {self.threshold:.2f}{unknown})"


@dataclass(frozen=True)
class Comparison:
    """Every record that both have, and those that only one has."""

    changes: list[Change]
    only_a: list[Record]
    only_b: list[Record]

    def of(self, kind: str, ours: bool) -> list[Change]:
        """Sorted by size, the largest first."""
        found = [change for change in self.changes if change.kind == kind and change.ours == ours]
        by_size = kind in ("worse", "better")
        return sorted(found, key=lambda change: -abs(math.log(change.ratio or 1e-9))) if by_size else found

    @property
    def regressed(self) -> bool:
        return bool(self.of("worse", True) or self.of("became wrong", True))

    @property
    def drift(self) -> float | None:
        """The median change of the alternatives, which none of our commits can cause."""
        kinds = ("worse", "better", "unchanged")
        found = [change.ratio for change in self.changes if not change.ours and change.kind in kinds]
        return statistics.median(found) if found else None


def fastest(records: list[Record]) -> dict[Key, Record]:
    """By key; of a thing that was measured twice in a session, the better one, as of two rounds."""
    found: dict[Key, Record] = {}
    for record in records:
        other = found.get(record.key)
        known = [r for r in (other, record) if r is not None and amount(r) is not None]
        found[record.key] = min(known, key=lambda r: amount(r) or 0.0) if known else record
    return found


def compare(a: list[Record], b: list[Record]) -> Comparison:
    before, after = fastest(a), fastest(b)
    changes = [Change(before[key], record, is_ours(record)) for key, record in after.items() if key in before]
    return Comparison(
        changes,
        [record for key, record in before.items() if key not in after],
        [record for key, record in after.items() if key not in before],
    )


def warnings(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Why times of the two say nothing about the code, and what else is another."""
    found = [
        f"NOT COMPARABLE: {name} is {a.get(name)!r} in A and {b.get(name)!r} in B"
        for name in DECISIVE
        if a.get(name) != b.get(name)
    ]
    versions = a.get("versions") or {}, b.get("versions") or {}
    for name in sorted({*versions[0], *versions[1]}):
        before, after = (side.get(name, "not installed") for side in versions)
        if before != after:
            found.append(f"note: {name} is {before} in A and {after} in B")
    return found


def lines(comparison: Comparison) -> list[str]:
    """What is printed of it: all of ours, of the others how many and the largest."""
    found: list[str] = []

    def section(title: str, entries: Sequence[object], most: int | None = None) -> None:
        if entries:
            shown = [f"  {entry}" for entry in entries[:most]]
            left = len(entries) - len(shown)
            found.extend(["", f"{len(entries)} {title}", *shown, *([f"  and {left} more"] if left else [])])

    for kind in ("worse", "became wrong", "better", "became right", "wrong in both"):
        section(kind, comparison.of(kind, True))
    found.extend(["", f"{len(comparison.of('unchanged', True))} unchanged"])
    for kind in ("worse", "better", "became wrong", "became right"):
        section(f"not ours: {kind}", comparison.of(kind, False), SHOWN)
    if comparison.drift is not None:
        found.extend(["", f"not ours: {comparison.drift:.2f} x in the median, which no commit of ours can cause"])
    section("only in A", [named(record) for record in comparison.only_a])
    section("only in B", [named(record) for record in comparison.only_b])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description="Print what changed from A to B, beyond noise; status 1 if ours got worse",
    )
    parser.add_argument("a", metavar="A.json", type=Path, help="the results before")
    parser.add_argument("b", metavar="B.json", type=Path, help="the results after")
    options = parser.parse_args(arguments)
    try:
        (machine_a, a), (machine_b, b) = load(options.a), load(options.b)
        comparison = compare(a, b)
        if not comparison.changes:
            raise ValueError(f"{options.a} and {options.b} have no record in common; measure the same benchmarks twice")
    except (ValueError, OSError) as error:
        # Expected ones say what to do; a traceback would hide it.
        parser.exit(2, f"{error}\n")
    for name, path, machine in (("A", options.a, machine_a), ("B", options.b, machine_b)):
        print(f"{name}  {path}: commit {machine.get('commit')}, {machine.get('time')}")
    warned = warnings(machine_a, machine_b)
    if warned:
        print("", *warned, sep="\n")
    print(f"\nA change is beyond twice the larger noise (median over best, less one), and beyond {100 * FLOOR:.0f} %.")
    print(*lines(comparison), sep="\n")
    return 1 if comparison.regressed else 0


if __name__ == "__main__":
    sys.exit(main())
