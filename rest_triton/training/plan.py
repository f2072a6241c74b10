"""The memory of a run, before anything of it is loaded: the arrays of :mod:`rest_triton.training.memory`, added up."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ..config import Config, flag
from ..data.sizes import Sizes
from ..utils.errors import UserError
from ..utils.machine import available_memory, device_of, readable
from .memory import ARRAYS, Array, Run, Tier, When

HOLES = 0.2  # on a CPU: malloc keeps what passes and steps free, and new blocks do not fit all of the holes; measured
LEAST_HIDDEN = 16
HEADINGS: dict[When, str] = {
    "held": "for the whole run",
    "exact": "in an exact pass over all nodes: the first fill, and evaluation",
    "step": "while a batch is trained on",
    "prepare": "before all this, while nodes are put in the order of their clusters",
}


@dataclass(frozen=True)
class Plan:
    """What a run takes, and what there is. ``str()`` is a table for people."""

    sizes: Sizes
    settings: Config
    arrays: tuple[Array, ...]
    limits: Mapping[Tier, int] = field(default_factory=dict)

    def total(self, tier: Tier) -> int:
        """At the most. A GPU's memory that a pass freed serves the next step; malloc's, on a CPU, mostly does not."""
        part = {when: sum(a.nbytes for a in self.arrays if (a.tier, a.when) == (tier, when)) for when in HEADINGS}
        passing = max(part["exact"], part["step"])
        if (tier, self.settings.device) == ("host", "cpu"):
            passing = round((1 + HOLES) * (part["exact"] + part["step"]))
        return max(part["held"] + passing, part["prepare"])

    @property
    def totals(self) -> dict[Tier, int]:
        return {tier: self.total(tier) for tier in dict.fromkeys(a.tier for a in self.arrays)}

    @property
    def too_large(self) -> dict[Tier, int]:
        """What is needed of tiers that have less. A tier of unknown size has enough."""
        return {tier: need for tier, need in self.totals.items() if need > self.limits.get(tier, need)}

    def __str__(self) -> str:
        z, s, run = self.sizes, self.settings, Run(self.sizes, self.settings)
        kind, note = "directed" if z.directed else "undirected", f" ({z.note})" if z.note else ""
        where = f"{s.dtype} tables, {s.history}" if run.tables else "no tables"
        lines = [
            f"{z.name}: {z.nodes:,} nodes, {z.edges:,} edges ({kind}), {z.features} features, {z.classes} classes{note}",
            f"{s.model}, {s.num_layers} layers of {s.hidden_channels}; {where}; {s.method}; on {s.device}",
            f"batches of {s.batch_size} of {s.num_parts} clusters: {run.rows:,} nodes, with perhaps {run.halo:,} around",
        ]
        if s.base == "full":
            lines[2] = "all nodes in one batch"
        wide = max(len(a.name) for a in self.arrays)
        for when, heading in HEADINGS.items():
            lines += ["", f"  {heading}"]
            lines += [
                f"    {a.name:{wide}}  {a.tier:4}  {readable(a.nbytes):>11}  {a.why}" for a in self.arrays if a.when == when
            ]
        lines.append("")
        for tier, need in self.totals.items():
            have = self.limits.get(tier)
            fits = "fits" if need <= (have or 0) else "does not fit"
            verdict = "what there is is not known" if have is None else f"{readable(have):>11} available: {fits}"
            lines.append(f"  {'at the most':{wide + 2}}  {tier:4}  {readable(need):>11}  {verdict}")
        return "\n".join(lines)


def plan(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """What a run takes, array by array.

    Args:
        sizes: by :func:`sizes_of`. settings: of the run. limits: bytes there are, by tier, if they are known.

    Example::

        print(plan(sizes_of("products"), Config.of("products_gcn")))
    """
    for what in ("nodes", "features", "classes"):
        if getattr(sizes, what) < 1:
            raise UserError(f"{sizes.name} has {getattr(sizes, what)} {what}; a model needs at least one")
    settings = settings.changed(device=device_of(settings.device, must_exist=False))
    run = Run(sizes, settings)
    arrays = tuple(array for declare in ARRAYS for array in declare(run) if array.nbytes > 0)
    return Plan(sizes, settings, arrays, {} if limits is None else limits)


def limits_here(settings: Config, root: Path | str | None = None) -> dict[Tier, int]:
    """What this machine has: free memory of host and GPU, room on the disk of ``root``; default: of the settings' root."""
    import torch

    folder = Path(settings.root if root is None else root).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    limits: dict[Tier, int] = {"host": available_memory(), "disk": shutil.disk_usage(existing).free}
    if settings.device != "cpu" and torch.cuda.is_available():
        limits["GPU"] = torch.cuda.mem_get_info()[0]
    return limits


def _changes(s: Config) -> list[list[dict[str, Any]]]:
    """What could be changed, kind by kind, the least harmful kind first, and in each the smallest step first."""
    wide = s.hidden_channels
    smaller: list[dict[str, Any]] = [{"batch_size": s.batch_size >> i} for i in range(1, s.batch_size.bit_length())]
    smaller += [{"num_parts": s.num_parts << i, "batch_size": 1} for i in range(1, 5)]
    return [
        [{"dtype": "bfloat16"}] if s.dtype == "float32" else [],
        [{"history": "pinned"}] if s.device == "cuda" and s.history == "device" else [],
        smaller,
        [{"history": "disk"}] if s.history != "disk" else [],
        [{"hidden_channels": wide >> i} for i in range(1, wide.bit_length()) if wide >> i >= LEAST_HIDDEN],
    ]


def smallest_change(made: Plan) -> str | None:
    """The flags that make a run fit, or None if no change of one or two settings does. The least harmful ones first."""
    kinds = _changes(made.settings)
    pairs = ({**a, **b} for one, two in combinations(kinds, 2) for a, b in product(one, two) if not a.keys() & b.keys())
    for change in (*(change for kind in kinds for change in kind), *pairs):
        if not plan(made.sizes, made.settings.changed(**change), made.limits).too_large:
            return " ".join(f"{flag(name)} {value}" for name, value in change.items())
    return None


def refuse_if_too_large(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """The plan of a run that fits; UserError with a way out if it does not.

    Args:
        limits: bytes there are, by tier; default: what this machine has free.
    """
    made = plan(sizes, settings, limits_here(settings) if limits is None else limits)
    if made.too_large:
        raise UserError(refusal(made))
    return made


def refusal(made: Plan) -> str:
    names = {"GPU": "GPU memory", "host": "host memory", "disk": "disk"}
    needs = ", ".join(
        f"{readable(need)} of {names[tier]} ({readable(made.limits[tier])} available)"
        for tier, need in made.too_large.items()
    )
    change = smallest_change(made)
    way_out = f"it fits with {change}" if change else "no change of one or two settings makes it fit; take a larger machine"
    return f"{made.sizes.name} with {made.settings.model} needs {needs}; {way_out}"
