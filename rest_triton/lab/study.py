"""Studies: cases of settings, seeds for each case, columns of results and a picture."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..config import Config, flag, read_recipe
from ..utils.errors import UserError

FULL, GAS, REST_IS = "full batch", "GAS", "REST-IS"
FULL_EPOCHS = 4  # epochs of full-batch training, with one step each, for each epoch of other methods
LARGE = 50_000  # nodes
SHAPES: dict[bool, dict[str, Any]] = {
    True: dict(num_parts=80, batch_size=5, hidden_channels=256),
    False: dict(num_parts=40, batch_size=2, hidden_channels=64),
}
# METIS: results of studies are compared with those of version 0.1, which had it.
COMMON: dict[str, Any] = dict(model="gcn", num_layers=3, batch_norm=True, dropout=0.5, lr=0.01, partition="metis")
DEPTHS = {"gcn": 3, "appnp": 5, "gcnii": 4}  # layers of models in comparisons, unless a flag sets them
INSTEAD = {"runs": "--seeds", "run_dir": "--out"}  # settings of single runs, and a study's flag for them

Labels = Mapping[str, Any]
Cases = dict[tuple[Any, ...], dict[str, Any]]  # settings of runs by labels, in the order of the study's axes
Columns = dict[str, Callable[["Run"], float | None]]  # None: the run has no such value


@dataclass(frozen=True)
class Base:
    """The base settings of a study.

    Args:
        config: the settings that cases override. given: the names of settings that flags set.
        quick: fewer points on the axes. seeds: runs of every case. training, nodes: training nodes and all nodes, for
            studies that ask.
    """

    config: Config
    given: frozenset[str]
    quick: bool
    seeds: int
    training: int = 0
    nodes: int = 0

    def axis(self, name: str, values: Sequence[Any], quick: Sequence[Any] = ()) -> list[Any]:
        """The values of a setting that a study varies. If a flag sets it, only that value."""
        if name in self.given:
            return [getattr(self.config, name)]
        return list(quick if self.quick and quick else values)

    def batch_sizes(self) -> list[int]:
        """Batch sizes: that of the base, and 2, 4 and 8 times it, up to half of all clusters. Quick: first and last."""
        at, half = self.config.batch_size, self.config.num_parts // 2
        sizes = [at * times for times in (1, 2, 4, 8) if times == 1 or at * times <= half]
        return sizes[:: max(1, len(sizes) - 1)] if self.quick else sizes

    def models(self) -> dict[str, dict[str, Any]]:
        """Settings by the name of a model."""
        names = self.axis("model", list(DEPTHS))
        return {name: dict(model=name) | self.default(num_layers=DEPTHS.get(name, self.config.num_layers)) for name in names}

    def default(self, **settings: Any) -> dict[str, Any]:
        """The ones of these settings that no flag sets."""
        return {name: value for name, value in settings.items() if name not in self.given}

    def methods(self, frequencies: Sequence[int] = (1,), *, full: bool = True) -> dict[str, dict[str, Any]]:
        """Settings by the name of a method: full batch, GAS, REST with each F, REST-IS. A flag can select one of them."""
        c, methods = self.config, dict[str, dict[str, Any]]()
        if full:
            longer = {name: FULL_EPOCHS * getattr(c, name) for name in ("epochs", "eval_every", "checkpoint_every")}
            methods[FULL] = dict(method="full") | longer
        methods[GAS] = dict(method="gas")
        for f in self.axis("frequency", frequencies):
            methods[f"REST F={f}"] = dict(method="gas+rest", frequency=f)
        methods[REST_IS] = dict(method="gas+rest-is", frequency=1)
        if "method" in self.given:
            methods = {name: settings for name, settings in methods.items() if settings["method"] == c.method}
            if not methods:
                raise UserError(f"--method {c.method} is none of those that this study compares; leave it out")
        return methods

    def sized(self, sizes: Sequence[int], frequencies: Sequence[int] = (1,), *, full: bool = True, **often: Any) -> Cases:
        """Cases by batch size and method. Full batch is one case for all sizes.

        often: settings of frequent evaluations, unless flags set them. Full batch does not get these: an evaluation costs
        about as much as one of its epochs.
        """
        return {
            ("all" if method == FULL else size, method): settings | dict(batch_size=size) | more
            for size in sizes
            for method, settings in self.methods(frequencies, full=full).items()
            for more in [{} if method == FULL else self.default(**often)]
        }


@dataclass(eq=False)
class Run:
    """One run of a study.

    Args:
        case: the name of its case, the same for all seeds. apart: it runs in a separate process.
        epochs: the lines of its metrics.jsonl. row: its values by the names of columns.
        target: a validation score: the lowest of all runs' best ones, which every run reaches, or that of ``Study.target``.

    :func:`rest_triton.lab.results.read` sets the last three when the run has ended.
    """

    case: str
    labels: Labels
    config: Config
    apart: bool = False
    epochs: list[dict[str, Any]] = field(default_factory=list)
    row: dict[str, float] = field(default_factory=dict)
    target: float = float("inf")

    @property
    def name(self) -> str:
        return f"{self.case}-s{self.config.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.config.run_dir)

    @property
    def method(self) -> str:
        return str(self.labels["method"])

    @cached_property
    def seconds(self) -> list[float]:
        """Seconds of training until the end of each epoch, without evaluations."""
        return list(accumulate(sum(e["time"].values()) - e["time"]["evaluation"] for e in self.epochs))


@dataclass(frozen=True)
class Spread:
    """Mean and unbiased standard deviation over seeds. std: None for a single seed."""

    mean: float
    std: float | None = None

    @property
    def beyond(self) -> bool:
        """Whether the mean is further from zero than one standard deviation. False for a single seed."""
        return self.std is not None and abs(self.mean) > self.std


def spread_of(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation, None without values."""
    return Spread(mean(values), stdev(values) if len(values) > 1 else None) if values else None


def gas_or_full(labels: Labels) -> Labels:
    """The labels of the case to compare with: GAS, or full batch for GAS. Full batch has no other case to compare with."""
    if labels["method"] != GAS:
        return labels if labels["method"] == FULL else {**labels, "method": GAS}
    return {**labels, "method": FULL} | ({"batch_size": "all"} if "batch_size" in labels else {})


@dataclass(frozen=True)
class Study:
    """The definition of a study. docs/lab.md describes how to add one.

    Args:
        about: what it varies, and its place in the REST paper. axes: the names of its cases' labels.
        cases: settings by labels. columns: of the table; see :mod:`rest_triton.lab.results`.
        picture: draws the results as a PNG. epochs, seeds: the defaults, in full and with ``--quick``.
        settings: of its base. reference: the labels of the case that a case is compared with, seed by seed.
        apart: each run has a separate process, so that peak memory is that of the run.
        after: called when a run has ended; it writes the file ``leaves`` into the run's folder.
        also: columns of results.csv alone. target: the score to reach, as a share of the mean best one of full batch with
            the same labels. counts_training: ``Base.training`` and ``nodes`` are known.
    """

    name: str
    about: str
    axes: tuple[str, ...]
    cases: Callable[[Base], Cases]
    columns: Columns
    picture: Callable[["Results"], bytes]
    epochs: tuple[int, int] = (50, 12)
    seeds: tuple[int, int] = (5, 2)
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[[Labels], Labels] = gas_or_full
    apart: bool = False
    after: Callable[[Run], None] | None = None
    leaves: str = ""
    also: Columns = field(default_factory=dict)
    target: float = 0.0
    counts_training: bool = False


@dataclass(frozen=True)
class Results:
    """The runs of a study that have ended, in the order of the plan. planned: the number of all its runs."""

    study: Study
    runs: Sequence[Run]
    planned: int

    @cached_property
    def groups(self) -> list[list[Run]]:
        """The runs, grouped by case."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.case, []).append(run)
        return list(groups.values())

    def where(self, **labels: Any) -> list[list[Run]]:
        """The groups with these labels."""
        return [group for group in self.groups if labels.items() <= group[0].labels.items()]

    def values(self, label: str) -> list[Any]:
        """The values of a label, in the order of the plan."""
        return list(dict.fromkeys(group[0].labels[label] for group in self.groups))

    def reference(self, group: Sequence[Run]) -> list[Run]:
        """The group that ``group`` is compared with, empty if there is none."""
        groups = self.where(**self.study.reference(group[0].labels))
        return groups[0] if groups and groups[0] is not group else []


def spread(group: Sequence[Run], name: str) -> Spread | None:
    """Mean and standard deviation of a column over seeds."""
    return spread_of([run.row[name] for run in group if name in run.row])


def gain(group: Sequence[Run], other: Sequence[Run], name: str) -> Spread | None:
    """The difference of ``group`` and ``other`` in a column, over pairs of runs with the same seed.

    Runs of one seed start with the same weights and the same order of batches, so part of their noise cancels out.
    """
    ours, theirs = ({run.config.seed: run.row[name] for run in runs if name in run.row} for runs in (group, other))
    return spread_of([value - theirs[seed] for seed, value in ours.items() if seed in theirs])


def base_for(study: Study, flags: Mapping[str, Any], *, quick: bool, seeds: int | None, nodes: int) -> Base:
    """The base of a study. The study's settings, a recipe and flags override the lab's defaults, in this order.

    Args:
        flags: by name, as text. nodes: of the graph, which decide on the lab's defaults.
    """
    given = dict(flags)
    for name, instead in INSTEAD.items():
        if name in given:
            raise UserError(f"{flag(name)} is for single runs; a study takes {instead}")
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds is {seeds}; it must be at least 1")
    recipe, shape = given.pop("recipe", "none"), SHAPES[nodes >= LARGE]
    settings = COMMON | shape | dict(epochs=study.epochs[quick]) | dict(study.settings)
    settings |= ({} if recipe == "none" else read_recipe(recipe)) | given
    same_share = "num_parts" in given and "batch_size" not in given  # a batch keeps its share of the graph
    config = Config.from_mapping(settings | (dict(batch_size=1) if same_share else {}), "these settings")
    if same_share:
        config = config.changed(batch_size=max(1, round(config.num_parts * shape["batch_size"] / shape["num_parts"])))
    if "eval_every" not in settings:
        config = config.changed(eval_every=max(1, config.epochs // 25))
    return Base(config, frozenset(given), quick, seeds or study.seeds[quick])


def planned(study: Study, base: Base, out: Path) -> list[Run]:
    """All runs: the first seed of every case, then the second, so that a stopped study has runs of each case."""
    runs = []
    for seed in range(base.config.seed, base.config.seed + base.seeds):
        for key, settings in study.cases(base).items():
            labels = dict(zip(study.axes, key, strict=True))
            case = _slug(labels)
            config = base.config.changed(**settings, seed=seed, run_dir=str(out / "runs" / f"{case}-s{seed}"))
            runs.append(Run(case, labels, config, study.apart))
    return runs


def _slug(labels: Labels) -> str:
    parts = (value if isinstance(value, str) else f"{label}{value}" for label, value in labels.items())
    slugs = (re.sub(r"[^a-z0-9.+_]+", "-", part.lower().replace("=", "")).strip("-") for part in parts)
    return "-".join(slug for slug in slugs if slug)
