"""A memory estimate of a run before it loads data: the sum of the arrays of :mod:`rest_triton.training.memory`."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ..config import Config, flag
from ..data.features import describe
from ..data.sizes import Sizes
from ..methods.options import OF_NODES, SAINTS, settled
from ..utils.errors import UserError
from ..utils.machine import available_memory, device_of, readable
from .memory import ARRAYS, Array, Run, Tier, When, first_embedding, first_rows, multiplies_features

HOLES = 0.2  # on a CPU: the share of memory that malloc keeps in holes between passes and steps; measured
LEAST_HIDDEN = 16
HEADINGS: dict[When, str] = {
    "held": "for the whole run",
    "exact": "in an exact pass over all nodes: the first fill, and evaluation",
    "step": "while a batch is trained on",
    "prepare": "before training, while nodes are sorted by cluster",
    "divide": "before that, while the graph is divided into clusters",
}


@dataclass(frozen=True)
class Plan:
    """The memory that a run takes, and the memory of the machine. ``str()`` prints a table."""

    sizes: Sizes
    settings: Config
    arrays: tuple[Array, ...]
    limits: Mapping[Tier, int] = field(default_factory=dict)

    def total(self, tier: Tier) -> int:
        """The peak in bytes. On a GPU, steps use the memory that passes have freed; on a CPU mostly not."""
        part = {when: sum(a.nbytes for a in self.arrays if (a.tier, a.when) == (tier, when)) for when in HEADINGS}
        passing = max(part["exact"], part["step"])
        if (tier, self.settings.device) == ("host", "cpu"):
            passing = round((1 + HOLES) * (part["exact"] + part["step"]))
        return max(part["held"] + passing, part["prepare"], part["divide"])

    @property
    def totals(self) -> dict[Tier, int]:
        return {tier: self.total(tier) for tier in dict.fromkeys(a.tier for a in self.arrays)}

    @property
    def too_large(self) -> dict[Tier, int]:
        """Needed bytes of the tiers that have less. A tier of unknown size counts as large enough."""
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
        who = "sgc" if s.base == "sgc" else s.model
        lines.insert(2, describe(z.feature_nnz, z.nodes, z.features, who, multiplies_features(s)))
        if s.base == "full":
            lines[3] = "all nodes in one batch"
        elif s.base == "mvs":
            lines[3] = f"batches of {run.rows:,} training nodes, with perhaps {run.halo:,} around"
        elif s.base in SAINTS:
            lines[3] = f"subgraphs of at most {run.rows:,} nodes"
        elif s.base in OF_NODES[1]:
            lines[3] = f"batches of {s.batch_nodes:,} training nodes, layers of {run.rows:,} rows on average"
        lines += [line for line in [first_embedding(z, s)] if line is not None]
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
            verdict = "available memory unknown" if have is None else f"{readable(have):>11} available: {fits}"
            lines.append(f"  {'at the most':{wide + 2}}  {tier:4}  {readable(need):>11}  {verdict}")
        return "\n".join(lines)


def plan(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """The plan of a run, array by array.

    Args:
        sizes: by :func:`sizes_of`. settings: of the run. limits: available bytes by tier, as far as they are known.

    Example::

        print(plan(sizes_of("products"), Config.of("products_gcn")))
    """
    for what in ("nodes", "features", "classes"):
        if getattr(sizes, what) < 1:
            raise UserError(f"{sizes.name} has {getattr(sizes, what)} {what}; a model needs at least one")
    settings = settings.changed(device=device_of(settings.device, must_exist=False))
    computed, row, sparse = first_rows(sizes, settings)
    settings = settled(settings, computed, row, sparse=sparse)
    run = Run(sizes, settings)
    arrays = tuple(array for declare in ARRAYS for array in declare(run) if array.nbytes > 0)
    return Plan(sizes, settings, arrays, {} if limits is None else limits)


def limits_here(settings: Config, root: Path | str | None = None) -> dict[Tier, int]:
    """This machine's free memory of host and GPU, and free space on the disk of ``root``. Default: the settings' root."""
    import torch

    folder = Path(settings.root if root is None else root).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    limits: dict[Tier, int] = {"host": available_memory(), "disk": shutil.disk_usage(existing).free}
    if settings.device != "cpu" and torch.cuda.is_available():
        limits["GPU"] = torch.cuda.mem_get_info()[0]
    return limits


def _changes(s: Config) -> list[list[dict[str, Any]]]:
    """Possible changes by kind. The least harmful kind and the smallest change come first."""
    wide = s.hidden_channels
    smaller: list[dict[str, Any]] = [{"batch_size": s.batch_size >> i} for i in range(1, s.batch_size.bit_length())]
    smaller += [{"num_parts": s.num_parts << i, "batch_size": 1} for i in range(1, 5)]
    return [
        [{"partition": "kaminpar"}] if s.partition == "metis" else [],
        [{"dtype": "bfloat16"}] if s.dtype == "float32" else [],
        [{"history": "pinned"}] if s.device == "cuda" and s.history == "device" else [],
        [{"features": "pinned"}] if s.device == "cuda" and s.features == "device" and s.base != "sgc" else [],
        smaller,
        [{"features": "disk"}] if s.features != "disk" and s.base != "sgc" else [],
        [{"history": "disk"}] if s.history != "disk" else [],
        [{"history": "disk", "features": "disk", "feature_dtype": "float16"}] if s.base != "sgc" else [],
        [{"hidden_channels": wide >> i} for i in range(1, wide.bit_length()) if wide >> i >= LEAST_HIDDEN],
        [{"partition": "random"}] if s.partition != "random" else [],
    ]


def smallest_change(estimate: Plan) -> str | None:
    """The least harmful flags that make a run fit, None if no change of one or two settings does."""
    kinds = _changes(estimate.settings)
    pairs = ({**a, **b} for one, two in combinations(kinds, 2) for a, b in product(one, two) if not a.keys() & b.keys())
    for change in (*(change for kind in kinds for change in kind), *pairs):
        if not plan(estimate.sizes, estimate.settings.changed(**change), estimate.limits).too_large:
            return " ".join(f"{flag(name)} {value}" for name, value in change.items())
    return None


def refuse_if_too_large(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """The plan of a run that fits. Raises UserError with flags that make it fit if it does not.

    Args:
        limits: available bytes by tier. Default: those of this machine.
    """
    estimate = plan(sizes, settings, limits_here(settings) if limits is None else limits)
    if estimate.too_large:
        raise UserError(refusal(estimate))
    return estimate


def refusal(estimate: Plan) -> str:
    """The error message for a plan that does not fit."""
    names = {"GPU": "GPU memory", "host": "host memory", "disk": "disk"}
    needs = ", ".join(
        f"{readable(need)} of {names[tier]} ({readable(estimate.limits[tier])} available)"
        for tier, need in estimate.too_large.items()
    )
    change = smallest_change(estimate)
    way_out = f"it fits with {change}" if change else "no change of one or two settings makes it fit; take a larger machine"
    return f"{estimate.sizes.name} with {estimate.settings.model} needs {needs}; {way_out}"
