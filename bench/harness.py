"""Times ours, its alternatives and the machine's limits in turn, on top of pytest-benchmark.

pytest-benchmark times ours. Before each of its rounds the others run once each, timed by the same clock, so a slow
minute of the machine meets all of them. The best round of each counts. What is wrong against float64 is not timed.

In pytest-benchmark's JSON, ``group`` names the op, ``stats`` are those of ours, and ``extra_info`` holds ``case``,
``seconds`` and ``limits``: the best seconds by name.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cases import Batch, Case, build

ROUNDS = 15
LEAST, ENOUGH = 3, 0.8  # rounds and seconds after which an alternative is not run again
TOLERANCE = 1e-4  # the largest error that a float32 result may have, relative to the largest value
OURS = "ours"

Run = Callable[[], object]
#: the error of [result, gradients …] or of [result], relative to the largest value
Check = Callable[[Sequence[Tensor]], float]


class Limit(NamedTuple):
    """The least that the machine needs: ``run`` moves ``bytes``, as many as the op has to."""

    name: str
    bytes: int
    run: Run


@dataclass(frozen=True)
class Variant:
    """One way to compute an op. ``inputs`` are what is differentiated."""

    name: str
    forward: Callable[[], Tensor]
    inputs: tuple[Tensor, ...] = ()

    def run(self, grad: Tensor | None) -> list[Tensor]:
        """[result], computed without autograd, or [result, gradients …] with the gradient of the result given."""
        with torch.set_grad_enabled(grad is not None):
            out = self.forward()
        return [out.detach(), *(torch.autograd.grad(out, self.inputs, grad) if grad is not None else ())]

    def compiled(self) -> "Variant":
        return replace(self, name=f"torch.compile: {self.name}", forward=torch.compile(self.forward, dynamic=False))


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """The largest difference relative to the largest value; infinite where shapes differ or a value is NaN."""
    if got.shape != wanted.shape:
        return math.inf
    if wanted.numel() == 0:
        return 0.0
    error = float((got.double() - wanted.double()).abs().max()) / (float(wanted.abs().max()) or 1.0)
    return math.inf if math.isnan(error) else error


def against(*wanted: Tensor) -> Check:
    """The largest error of results against these; without gradients only the first is compared."""
    return lambda got: max(relative_error(g, w) for g, w in zip(got, wanted, strict=False))


@dataclass
class Bench:
    """The ``bench`` fixture.

    Args:
        tiny: small shapes, one round, no torch.compile: only a check that it runs.
        peers: the Python of an environment with other libraries. keep_freed_memory: whether malloc is set so.
    """

    benchmark: Any
    tiny: bool
    graph: str
    root: str
    device: torch.device
    lines: list[str] = field(default_factory=list)
    peers: str | None = None
    keep_freed_memory: bool = False

    def build(self, case: Case) -> tuple[str, Batch]:
        return build(case, tiny=self.tiny, graph=self.graph, root=self.root, device=self.device)

    def op(
        self,
        group: str,
        case: str,
        variants: Sequence[Variant],
        check: Check,
        limits: Sequence[Limit] = (),
        grad: Tensor | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Time an op: forward alone, or with ``grad`` forward and backward. The first variant is ours.

        AssertionError if ours is wrong. An alternative that is wrong or fails has no time, and a line that says why.
        """
        if not self.tiny:
            torch.compiler.reset()  # or shapes compiled before count against the limit on recompilations
        runs: dict[str, Run] = {}
        left_out: dict[str, str] = {}
        for number, variant in enumerate(variants):
            run = _bound(variant, grad)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that torch's sparse tensors are in beta
                    error = check(run())
            except Exception as failure:  # libraries built for another torch fail in their own ways
                if number == 0:
                    raise
                reason = str(failure).strip().splitlines() or [""]
                left_out[variant.name] = f"not run: {type(failure).__name__}: {reason[0][:200]}"
                continue
            if error <= tolerance:
                runs[variant.name] = run
                continue
            wrong = f"WRONG: off by {error:.1e} of the largest value, {tolerance:.0e} is allowed"
            assert number > 0, f"{group}, {case}: {variant.name} is {wrong}"
            left_out[variant.name] = wrong
        self.in_turn(f"{group}, {'forward' if grad is None else 'both'}", case, runs, limits, left_out=left_out)

    def in_turn(
        self,
        group: str,
        case: str,
        runs: Mapping[str, Run],
        limits: Sequence[Limit] = (),
        rounds: int = ROUNDS,
        left_out: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """The best seconds of each run and limit. The first run is ours."""
        (ours, run_ours), *others = runs.items()
        everything = [*others, *((f"limit: {limit.name}", limit.run) for limit in limits)]
        times: dict[str, list[float]] = {name: [] for name in (ours, *(name for name, _ in everything))}

        def measured(name: str, run: Run) -> object:
            begin = time.perf_counter()
            result = run()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times[name].append(time.perf_counter() - begin)
            return result  # dropped by the caller: freeing is not timed

        def the_others() -> None:
            for name, run in everything:
                if len(times[name]) < LEAST or sum(times[name]) < ENOUGH:
                    measured(name, run)

        if not self.tiny:
            for run in (run_ours, *(run for _, run in everything)):
                run()
        self.benchmark.group = group
        self.benchmark.pedantic(measured, args=(ours, run_ours), setup=the_others, rounds=1 if self.tiny else rounds)
        best = {name: min(found) for name, found in times.items()}
        self.benchmark.extra_info |= dict(
            case=case,
            seconds={name: best[name] for name in runs},
            limits={limit.name: best[f"limit: {limit.name}"] for limit in limits},
        )
        self.lines += ["", f"{group}: {case}", f"  {'':8}  {_shown(best[ours])}  {ours}"]
        sizes = {f"limit: {limit.name}": limit.bytes for limit in limits}
        for name, seconds in list(best.items())[1:]:
            speed = f", {sizes[name] / seconds / 1e9:.1f} GB/s" if sizes.get(name) else ""
            self.lines.append(f"  {seconds / best[ours]:6.2f} x  {_shown(seconds)}  {name}{speed}")
        self.lines += [f"  {name}: {why}" for name, why in (left_out or {}).items()]
        return best

    def judge(self, what: str, found: float, *, most: float | None = None, least: float | None = None) -> None:
        """Print and keep a target, and whether it holds."""
        limit, kind = (most, "at most") if most is not None else (least, "at least")
        assert limit is not None
        holds = found <= limit if most is not None else found >= limit
        self.lines.append(f"  {'holds' if holds else 'MISSED':>8}  {found:6.2f}  {what}; target: {kind} {limit:.2f}")
        self.benchmark.extra_info.setdefault("targets", {})[what] = dict(found=found, limit=limit, kind=kind, holds=holds)


def _bound(variant: Variant, grad: Tensor | None) -> Callable[[], list[Tensor]]:
    return lambda: variant.run(grad)


def _shown(seconds: float) -> str:
    return f"{seconds:9.3f} s " if seconds >= 1 else f"{1e3 * seconds:9.3f} ms"
