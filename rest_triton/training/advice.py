"""Settings that fit the budgets, for a run that does not, and the array that is in its way. No advice changes the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..config import Config, flag
from ..data.sizes import Sizes
from ..methods.options import AUTO, TABLELESS, why_cached
from ..utils.errors import UserError
from ..utils.machine import readable
from .memory import Run, Tier, batch_setting, features_move, sparse
from .plan import Plan, limits_here, plan

MOST = 5  # suggestions
FINEST = 1000  # nodes: clusters are not advised to be smaller
NAMES: dict[Tier, str] = {"GPU": "GPU memory", "host": "host memory", "disk": "disk"}
BUDGETS: dict[Tier, str] = {"GPU": "a larger --device-budget", "host": "a larger --memory-budget", "disk": "a larger disk"}
PLACES = ("history", "features")


@dataclass(frozen=True)
class Suggestion:
    """Settings that fit.

    Args:
        change: settings by name that differ from those asked for. plan: with them.
        steps: how far each of dtype, feature_dtype, batches, first and partition is from what was asked for. 0: the same.
    """

    change: dict[str, Any]
    plan: Plan
    steps: tuple[int, ...]

    @property
    def flags(self) -> str:
        return " ".join(f"{flag(name)} {value}" for name, value in self.change.items())

    @property
    def same(self) -> bool:
        """Whether losses are the same: places alone differ."""
        return not any(self.steps)

    @property
    def cost(self) -> tuple[float, float]:
        """Bytes that move for a row of a batch: on the disk, between host and GPU."""
        rows = Run(self.plan.sizes, self.plan.settings).rows
        return self.plan.moved[0] / rows, self.plan.moved[1] / rows

    def beats(self, other: "Suggestion") -> bool:
        """Whether it changes no more and moves no more than another one."""
        return all(a <= b for a, b in zip(self.steps, other.steps, strict=True)) and self.cost <= other.cost

    def __str__(self) -> str:
        totals = ", ".join(
            f"{tier} {readable(need)}" + f" of {readable(self.plan.limits[tier])}" * (tier in self.plan.limits)
            for tier, need in self.plan.totals.items()
        )
        links = zip(("on the disk", "between host and GPU"), self.plan.moved, strict=True)
        moved = ", ".join(f"{readable(size)} {link}" for link, size in links if size) or "nothing"
        note = "other losses" if not self.same else "the same losses" + " but for rounding" * ("device" in self.change)
        return f"{self.flags or 'as it is'}\n     {totals}; a step moves {moved}; {note}"


def _batches(z: Sizes, s: Config) -> list[dict[str, int]]:
    """Batches as they are, then smaller and smaller ones: fewer clusters, then smaller clusters."""
    name = batch_setting(s)
    if not name:
        return [{}]
    size = getattr(s, name)
    found: list[dict[str, int]] = [{}, *({name: size >> i} for i in range(1, size.bit_length()))]
    if name == "batch_size":
        finer = (s.num_parts << i for i in range(1, 64))
        found += [{"num_parts": parts, "batch_size": 1} for parts in finer if parts * FINEST <= z.nodes]
    return found


def _partitioner(estimate: Plan) -> str | None:
    """Another partitioner that has room, where that of the plan has none."""
    limit = estimate.limits.get("host")
    for name in (estimate.settings.partition, "kaminpar", "random"):
        tried = plan(estimate.sizes, estimate.settings.changed(partition=name), estimate.limits)
        need = sum(array.nbytes for array in tried.arrays if array.when == "divide")
        if limit is None or need <= limit:
            return None if name == estimate.settings.partition else name
    return None


def _changes(estimate: Plan) -> Iterator[tuple[dict[str, Any], list[dict[str, int]], tuple[int, ...]]]:
    """(change of formats, of first and of the partitioner, batches to try with it, whether each of them differs)."""
    z, s, other = estimate.sizes, estimate.settings, dict[str, Any]()
    if (partition := _partitioner(estimate)) is not None:
        other["partition"] = partition
    if s.base not in TABLELESS and s.dtype == "float32":
        other["dtype"] = "bfloat16"
    if features_move(z, s) and s.feature_dtype == "float32":
        other["feature_dtype"] = "float16"
    if s.base not in TABLELESS and why_cached(s) is None and not sparse(z, s):
        other["first"] = "cached" if s.first == "exact" else "exact"
    names = ("dtype", "feature_dtype", "first", "partition")
    for taken in product((0, 1), repeat=len(names)):
        change = {name: other.get(name) for name, take in zip(names, taken, strict=True) if take}
        if None not in change.values():
            yield change, _batches(z, s), taken


def suggestions(estimate: Plan) -> list[Suggestion]:
    """At most five settings that fit, by bytes on the slowest link. Without any on a GPU, those that fit without one.

    Tried are formats of tables and features, the first embedding computed or not, and smaller batches. For each of them
    places are chosen as by auto. Left out is what another one beats.
    """
    found, asked = list[Suggestion](), estimate.asked
    unsaid = {name: "device" for name in PLACES if getattr(asked, name) == AUTO}  # auto takes it where it fits
    free = {name: AUTO for name in PLACES if name == "history" or features_move(estimate.sizes, asked)}
    for change, batches, (dtype, features, first, partition) in _changes(estimate):
        for smaller, batch in enumerate(batches):
            tried = plan(estimate.sizes, estimate.settings.changed(**free, **change, **batch), estimate.limits)
            if tried.too_large:
                continue
            differs = {name: getattr(tried.settings, name) for name in (*reversed(PLACES), *change, *batch)}
            differs = {
                name: value for name, value in differs.items() if value not in (getattr(asked, name), unsaid.get(name))
            }
            found.append(Suggestion(differs, tried, (dtype, features, smaller, first, partition)))
            if tried.moved == (0, 0):
                break  # smaller batches would not be better
    kept = [one for one in found if not any(other is not one and other.beats(one) for other in found)]
    kept.sort(key=lambda one: (one.cost, sum(step > 0 for step in one.steps), one.steps))
    chosen = kept[:MOST]
    if kept and not any(one.same for one in chosen):
        chosen[-1:] = [one for one in kept if one.same] or chosen[-1:]
    if not chosen and estimate.settings.device == "cuda":
        found = suggestions(plan(estimate.sizes, asked.changed(device="cpu"), estimate.limits))
        chosen = [Suggestion({"device": "cpu", **one.change}, one.plan, one.steps) for one in found]
    return chosen


def in_the_way(estimate: Plan) -> str:
    """For each tier that is too small, its largest array and what moves it or makes it smaller."""
    return "; ".join(_in_the_way(estimate, tier) for tier in estimate.too_large)


def _in_the_way(estimate: Plan, tier: Tier) -> str:
    here = [a for a in estimate.arrays if a.tier == tier]
    stays = [a for a in here if not a.setting]
    least = replace(estimate, arrays=tuple(stays)).total(tier)
    if least > estimate.limits[tier]:
        largest = max(stays, key=lambda a: a.nbytes)
        return f"{largest.name}: {readable(largest.nbytes)} of the {readable(least)} of {NAMES[tier]} that no setting moves"
    largest = max((a for a in here if a.setting), key=lambda a: a.nbytes)
    return f"{largest.name}: {readable(largest.nbytes)}, which {_mover(estimate.settings, largest.setting)}"


def _mover(s: Config, setting: str) -> str:
    """What a setting does to an array in the way."""
    if setting == "partition":
        return "another --partition makes smaller"
    if setting not in PLACES:
        single = setting == "batch_size" and s.batch_size == 1
        return "more --num-parts make smaller" if single else f"a smaller {flag(setting)} makes smaller"
    further = {"device": "pinned" if s.device == "cuda" else "disk", "pinned": "disk"}.get(getattr(s, setting))
    if further is not None:
        return f"{flag(setting)} {further} moves"
    dtype = "dtype" if setting == "history" else "feature_dtype"
    return f"a narrower {flag(dtype)} makes smaller" if getattr(s, dtype) == "float32" else "no setting makes smaller"


def refusal(estimate: Plan, found: list[Suggestion] | None = None) -> str:
    """The error message for a plan that does not fit. found: its suggestions, where they are known."""
    needs = ", ".join(
        f"{readable(need)} of {NAMES[tier]} ({readable(estimate.limits[tier])} available)"
        for tier, need in estimate.too_large.items()
    )
    found = suggestions(estimate) if found is None else found
    best = next((one for one in found if one.same), found[0] if found else None)
    more = f"no setting that keeps the model makes it fit; give {' and '.join(BUDGETS[tier] for tier in estimate.too_large)}"
    way_out = more if best is None else f"it fits with {best.flags}"
    return f"{estimate.sizes.name} with {estimate.settings.model} needs {needs}; {in_the_way(estimate)}; {way_out}"


def refuse_if_too_large(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """The plan of a run that fits. Raises UserError with settings that make it fit if it does not.

    Args:
        limits: budgets by tier. Default: those of this machine.
    """
    estimate = plan(sizes, settings, limits_here(settings) if limits is None else limits)
    if estimate.too_large:
        raise UserError(refusal(estimate))
    return estimate
