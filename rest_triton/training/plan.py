"""A memory estimate of a run before it loads data: the sum of the arrays of :mod:`rest_triton.training.memory`.

Where tables or features may have any place (``auto``), it chooses the places that fit the budgets and move least.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ..config import FREE_MEMORY, Config
from ..data.features import describe
from ..data.sizes import Sizes
from ..methods.options import AUTO, OF_NODES, SAINTS, placed, settled
from ..utils.errors import UserError
from ..utils.machine import available_memory, bytes_of, device_of, readable
from .memory import ARRAYS, Array, Run, Tier, When, features_move, first_embedding, first_rows, multiplies_features

HOLES = 0.2  # on a CPU: the share of memory that malloc keeps in holes between passes and steps; measured
MARGIN = 0.15  # of free memory, which a default budget leaves: the tests hold plans to 15 % of what runs take
HEADINGS: dict[When, str] = {
    "held": "for the whole run",
    "exact": "in an exact pass over all nodes: the first fill, and evaluation",
    "step": "while a batch is trained on",
    "prepare": "before training, while nodes are sorted by cluster",
    "divide": "before that, while the graph is divided into clusters",
}


@dataclass(frozen=True)
class Plan:
    """The memory that a run takes, and its budgets. ``str()`` prints a table.

    Args:
        settings: of the run, with the places that were chosen. arrays: that are not empty. limits: budgets by tier.
        asked: the settings that were asked for, in which places may be auto.
    """

    sizes: Sizes
    settings: Config
    arrays: tuple[Array, ...]
    limits: Mapping[Tier, int]
    asked: Config

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

    @property
    def excess(self) -> int:
        """The bytes that are missing, in all tiers."""
        return sum(need - self.limits[tier] for tier, need in self.too_large.items())

    @property
    def moved(self) -> tuple[int, int]:
        """(bytes from and to the disk, bytes between host and GPU): of rows, in a step. The slower link is the first."""
        return tuple(sum(a.moved for a in self.arrays if a.tier == tier) for tier in ("disk", "host"))  # type: ignore[return-value]

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
        lines += ["", f"    {'array':{wide}}  tier        bytes  moved per step"]
        for when, heading in HEADINGS.items():
            lines += ["", f"  {heading}"]
            for a in (a for a in self.arrays if a.when == when):
                moved = readable(a.moved) if a.moved else ""
                lines.append(f"    {a.name:{wide}}  {a.tier:4}  {readable(a.nbytes):>11}  {moved:>14}  {a.why}")
        lines.append("")
        for tier, need in self.totals.items():
            have = self.limits.get(tier)
            fits = "fits" if have is None or need <= have else "does not fit"
            verdict = "available memory unknown" if have is None else f"{readable(have):>11} available: {fits}"
            lines.append(f"  {'at the most':{wide + 2}}  {tier:4}  {readable(need):>11}  {verdict}")
        return "\n".join(lines)


def plan(sizes: Sizes, settings: Config, limits: Mapping[Tier, int] | None = None) -> Plan:
    """The plan of a run, array by array. A place that is auto is chosen: of those that fit, the one that moves least.

    Bytes on the disk count before bytes between host and GPU. What fits beside the model stays there. If nothing fits, the
    places are those that lack least.

    Args:
        sizes: by :func:`sizes_of`. settings: of the run. limits: budgets by tier, as far as they are known.

    Example::

        print(plan(sizes_of("products"), Config.of("products_gcn")))
    """
    for what in ("nodes", "features", "classes"):
        if getattr(sizes, what) < 1:
            raise UserError(f"{sizes.name} has {getattr(sizes, what)} {what}; a model needs at least one")
    asked, settings = settings, settings.changed(device=device_of(settings.device, must_exist=False))
    computed, row, sparse = first_rows(sizes, settings)
    settings = settled(settings, computed, row, sparse=sparse)
    found = []
    for places in _placements(sizes, settings):
        run = Run(sizes, placed(settings, *places))
        arrays = tuple(array for declare in ARRAYS for array in declare(run) if array.nbytes > 0)
        found.append(Plan(sizes, run.s, arrays, {} if limits is None else limits, asked))
    return min(found, key=lambda one: (one.excess, one.moved))


def _placements(sizes: Sizes, settings: Config) -> list[tuple[str, str]]:
    """The places of (tables, features) where they are auto, the nearest first. Without a choice, there is one."""
    far = ("device", "pinned", "disk") if settings.device == "cuda" else ("device", "disk")
    history = far if settings.history == AUTO else far[:1]
    features = far if settings.features == AUTO and features_move(sizes, settings) else far[:1]
    return list(product(history, features))


def limits_here(settings: Config, root: Path | str | None = None, *, elsewhere: bool = False) -> dict[Tier, int]:
    """The budgets of a run by tier: as given, or what is free on this machine less a margin, and no more than is free.

    Of the disk of ``root``, by default the settings' root, all free space counts.

    Args:
        elsewhere: the run may be on another machine: given budgets count as they are.
    """
    import torch

    folder = Path(settings.root if root is None else root).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    limits: dict[Tier, int] = {"host": available_memory(), "disk": shutil.disk_usage(existing).free}
    if settings.device != "cpu" and torch.cuda.is_available():
        limits["GPU"] = torch.cuda.mem_get_info()[0]
    budgets: dict[Tier, str] = {"host": settings.memory_budget, "GPU": settings.device_budget}
    for tier, budget in budgets.items():
        if budget != FREE_MEMORY:
            given = bytes_of(budget)
            limits[tier] = given if elsewhere else min(given, limits.get(tier, given))
        elif tier in limits:
            limits[tier] = round((1 - MARGIN) * limits[tier])
    return limits
