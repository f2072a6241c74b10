"""Ours beside its alternatives, on one case: is it right, how long does it take, what does it hold.

Each variant is first run once and compared with float64; who is wrong gets no time. Then its memory is measured, and at last
all that are right run in turn, together with what the machine could do at best.

Modes: ``forward`` without a graph for autograd, as refresh and inference run it; ``both`` is forward and backward, as in
training, and ``backward`` the part of that after forward.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from .alternatives import Forward, compiled
from .device import Step, peaks
from .limits import Limit
from .measure import ROUNDS, WRONG, Report, Timing, in_turn
from .moved import Moved
from .results import Record

Errors = Callable[[Sequence[Tensor]], list[float]]
OURS = "ours"
MODES = ("forward", "backward", "both")
MORE, ROUNDINGS = 8, 4  # a result may be this many times as far off as torch's own, and so many roundings
MOST = 1e-4  # that torch's own error may allow


@dataclass(frozen=True)
class Variant:
    """``forward`` computes the result; ``inputs`` are what is differentiated, none for an op without a gradient.
    ``errors`` and ``moved`` are its own where it computes something else than the others and is there for scale."""

    what: str
    forward: Forward
    inputs: tuple[Tensor, ...] = ()
    errors: Errors | None = None
    moved: dict[str, Moved] | None = None
    lazy: bool = False  # something is made at its first call, which is not to count as its memory

    def compiled(self, backend: str) -> "Variant":
        return replace(self, what=f"torch.compile: {self.what}", forward=compiled(self.forward, backend), lazy=True)

    def gradients(self, out: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, self.inputs, grad)

    def warm_up(self, grad: Tensor) -> None:
        _without_graph(self.forward)
        if self.inputs:
            self.gradients(self.forward(), grad)

    def steps(self, grad: Tensor) -> dict[str, list[Step]]:
        """What is timed, by mode: one step, or forward and then backward."""
        found: dict[str, list[Step]] = {"forward": [partial(_without_graph, self.forward)]}
        if self.inputs:
            made: list[Tensor] = []
            found["both"] = [partial(_forward, self.forward, made), lambda: self.gradients(made.pop(), grad)]
        return found


def _without_graph(forward: Forward) -> Tensor:
    with torch.no_grad():
        return forward()


def _forward(forward: Forward, made: list[Tensor]) -> None:
    made.append(forward())


@dataclass(frozen=True)
class Job:
    """One op on one case.

    Args:
        bench, case: as in a :class:`Record`. title: for people.
        variants: of which the one called "ours" is ours.
        errors: of (result, gradients …) or of a result alone: how far each is from float64, relative to the largest value.
        moved: bytes by mode. limits: what the machine can do, with the mode that each stands for.
        grad: of the result. rounding: of the result's dtype, relative.
    """

    bench: str
    case: str
    title: str
    variants: Sequence[Variant]
    errors: Errors
    moved: dict[str, Moved]
    limits: Sequence[Limit]
    grad: Tensor
    rounding: float = torch.finfo(torch.float32).eps
    remarks: Sequence[str] = ()


@dataclass
class Found:
    """Of one variant, by mode; ``note`` says why there is nothing of some."""

    errors: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    note: str = ""


def examine(variant: Variant, job: Job) -> Found:
    """Run it, compare, and measure its memory. Whatever it raises becomes a note: nothing of ours is to stop because of an
    alternative, and what of ours does not run is seen to by :func:`run`."""
    device, found, errors = job.grad.device, Found(), variant.errors or job.errors
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if variant.lazy:
                variant.warm_up(job.grad)
            made: list[Tensor] = []
            (found.memory["forward"],) = peaks([lambda: made.append(_without_graph(variant.forward))], device)
            (found.errors["forward"],) = errors(made)
            if variant.inputs:
                made.clear()
                steps = partial(_forward, variant.forward, made), lambda: made.extend(variant.gradients(made[0], job.grad))
                of_forward, of_backward = peaks(steps, device)
                found.memory |= {"backward": of_backward, "both": max(of_forward, of_backward)}
                first, *others = errors(made)
                found.errors |= {"backward": max(others), "both": max(first, *others)}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        found.note = f"not run: {type(error).__name__}: {lines[0][:200]}"
    return found


def bound(job: Job, found: dict[str, Found], mode: str) -> float:
    """How far off a result may be: some times as far as the first alternative, torch's own way, and some roundings. That
    torch is far off itself allows nothing."""
    theirs = next((found[v.what] for v in job.variants if v.what != OURS and v.errors is None), Found())
    return min(MORE * theirs.errors.get(mode, 0.0), MOST) + ROUNDINGS * job.rounding


def wrong(found: Found, bounds: dict[str, float], mode: str) -> str:
    """Why a mode gets no time, or nothing. Backward is timed together with its forward: both must be right."""
    for part in ("forward",) if mode == "forward" else ("backward", "both"):
        if part not in found.errors:
            return found.note
        if not found.errors[part] <= bounds[part]:
            return f"{WRONG}: {part} is off by {found.errors[part]:.1e}, {bounds[part]:.1e} is allowed"
    return ""


def run(job: Job, report: Report, rounds: int = ROUNDS) -> dict[tuple[str, str], Record]:
    """Measure, report, and return the records by (what, mode). AssertionError if ours is wrong or did not run."""
    torch.compiler.reset()  # or what was compiled for other shapes counts against the limit on recompiling
    found = {variant.what: examine(variant, job) for variant in job.variants}
    bounds = {mode: bound(job, found, mode) for mode in job.moved}
    steps: dict[str, Sequence[Step]] = {
        f"{v.what}\n{mode}": run
        for v in job.variants
        for mode, run in v.steps(job.grad).items()
        if not wrong(found[v.what], bounds, mode)
    }
    limits = {f"limit\n{n}": [limit.run] for n, limit in enumerate(job.limits)}
    for (warm_up,) in limits.values():
        warm_up()
    times = in_turn(steps | limits, job.grad.device, rounds)
    ceilings = [(limit, times[f"limit\n{n}"][0]) for n, limit in enumerate(job.limits)]
    records = []
    for variant in job.variants:
        for mode in MODES if variant.inputs else MODES[:1]:
            laps = times.get(f"{variant.what}\n{'forward' if mode == 'forward' else 'both'}")
            timing = None if laps is None else laps[-2 if mode == "backward" else -1]  # the last lap is of all together
            note = wrong(found[variant.what], bounds, mode)
            records.append(_record(job, variant, mode, timing, found[variant.what], note, ceilings))
    for limit, timing in ceilings:
        records.append(Record(
            job.bench, job.case, f"limit: {limit.name}", limit.mode or "any", timing.best, timing.noise, limit.bytes
        ))  # fmt: skip
    least = ", ".join(f"{mode} {moved.least / 1e6:,.1f} MB" for mode, moved in job.moved.items() if mode != "both")
    report.compared(job.title, records, [f"at least to be moved: {least}", *job.remarks])
    ours = [r for r in records if r.what == OURS and r.seconds is None]
    assert not ours, f"{job.bench} on {job.case}: ours has no right result: {ours[0].note}"
    return {(r.what, r.mode): r for r in records}


def _record(
    job: Job, variant: Variant, mode: str, timing: Timing | None, found: Found, note: str,
    ceilings: Sequence[tuple[Limit, Timing]],
) -> Record:  # fmt: skip
    error = found.errors.get(mode)
    name, ceiling = ceiling_of(mode, ceilings) if variant.moved is None else ("", None)
    return Record(
        job.bench, job.case, variant.what, mode,
        None if timing is None else timing.best, None if timing is None else timing.noise,
        (variant.moved or job.moved)[mode].counted, ceiling, name, found.memory.get(mode),
        None if error == math.inf else error, note=note,  # JSON has no infinity
    )  # fmt: skip


def ceiling_of(mode: str, ceilings: Sequence[tuple[Limit, Timing]]) -> tuple[str, float | None]:
    """(by what, GB/s) of the fastest limit for a mode. Both ways together, one after the other, take what each takes."""
    if mode == "both" and not any(limit.mode in ("", "both") for limit, _ in ceilings):
        parts = [_fastest(m, ceilings) for m in ("forward", "backward")]
        if None in parts:
            return "", None
        nbytes, seconds = (sum(column) for column in zip(*((p[0].bytes, p[1].best) for p in parts if p), strict=True))
        return parts[0][0].name if parts[0] else "", nbytes / seconds / 1e9
    one = _fastest(mode, ceilings)
    return ("", None) if one is None else (one[0].name, one[0].bytes / one[1].best / 1e9)


def _fastest(mode: str, ceilings: Sequence[tuple[Limit, Timing]]) -> tuple[Limit, Timing] | None:
    fitting = [pair for pair in ceilings if pair[0].mode in ("", mode) and pair[0].bytes]
    return max(fitting, key=lambda pair: pair[0].bytes / pair[1].best, default=None)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest value. Infinite where there is a NaN, which a max would lose."""
    if got.shape != wanted.shape:
        return math.inf
    if wanted.numel() == 0:
        return 0.0
    largest = float(wanted.abs().max())
    error = float((got.double() - wanted.double()).abs().max()) / (largest or 1.0)
    return math.inf if math.isnan(error) else error


def against(*wanted: Tensor) -> Errors:
    """The errors of results against these; fewer results, fewer errors."""
    return lambda got: [relative_error(g, w) for g, w in zip(got, wanted, strict=False)]
