"""What a study is: settings that differ in something, each run with several seeds."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config, flag, read_recipe

if TYPE_CHECKING:
    from .results import Results

FULL, GAS, IS = "full batch", "GAS", "REST-IS"
FULL_EPOCHS = 4  # an epoch of full-batch training is one step: it gets so many for each epoch of the others
LARGE = 50_000  # nodes
SHAPES: dict[bool, dict[str, Any]] = {
    True: dict(num_parts=80, batch_size=5, hidden_channels=256),
    False: dict(num_parts=40, batch_size=2, hidden_channels=64),
}
COMMON: dict[str, Any] = dict(model="gcn", num_layers=3, batch_norm=True, dropout=0.5, lr=0.01)
DEPTHS = {"gcn": 3, "appnp": 5, "gcnii": 4}  # where a study compares models and nobody says how deep they are
ELSEWHERE = {"runs": "--seeds", "run_dir": "--out"}  # settings of one run that a study has another name for


@dataclass(frozen=True)
class Case:
    """One setting of a study.

    Args:
        labels: by which it is told apart from the others: columns of the results. config: of its runs, but for the seed.
    """

    labels: Mapping[str, Any]
    config: Config

    @property
    def name(self) -> str:
        pieces = (value if isinstance(value, str) else f"{label}{value}" for label, value in self.labels.items())
        slugs = (re.sub(r"[^a-z0-9.+_]+", "-", piece.lower().replace("=", "")).strip("-") for piece in pieces)
        return "-".join(slug for slug in slugs if slug)


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    case: Case
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class Base:
    """What a study begins with.

    Args:
        config: the settings that its cases change. given: those that somebody asked for by a flag.
        quick: fewer points on its axes. seeds: of every case.
    """

    config: Config
    given: frozenset[str]
    quick: bool
    seeds: int

    def axis(self, name: str, values: Sequence[Any], quick: Sequence[Any] | None = None) -> list[Any]:
        """The values of a setting that a study varies; only the one that was asked for, if one was."""
        if name in self.given:
            return [getattr(self.config, name)]
        chosen = quick if self.quick and quick is not None else values
        return list(dict.fromkeys(chosen))

    def batch_sizes(self) -> list[int]:
        """Clusters in a batch: the base's, and 2, 4 and 8 times as many, as long as that is at most half of them."""
        at, half = self.config.batch_size, self.config.num_parts // 2
        fitting = [at * times for times in (1, 2, 4, 8) if times == 1 or at * times <= half]
        return [fitting[0], fitting[-1]][: len(fitting)] if self.quick else fitting

    def models(self) -> list[dict[str, Any]]:
        """Settings for each model, as deep as was asked for."""
        names = self.axis("model", list(DEPTHS))
        return [dict(model=name) | ({} if "num_layers" in self.given else dict(num_layers=DEPTHS[name])) for name in names]

    def methods(
        self, frequencies: Sequence[int] = (1,), *, full: bool = True, importance: bool = True
    ) -> dict[str, dict[str, Any]]:
        """Settings by the name of a method: full batch, GAS, REST with each F, REST-IS; of one alone if it was asked for."""
        found: dict[str, dict[str, Any]] = {}
        if full:
            c = self.config
            often = {name: FULL_EPOCHS * getattr(c, name) for name in ("epochs", "eval_every", "checkpoint_every")}
            found[FULL] = dict(method="full") | often
        found[GAS] = dict(method="gas")
        for f in self.axis("frequency", frequencies):
            found[f"REST F={f}"] = dict(method="gas+rest", frequency=f)
        if importance:
            found[IS] = dict(method="gas+rest-is", frequency=1)
        if "method" in self.given:
            found = {name: s for name, s in found.items() if s["method"] == self.config.method}
            if not found:
                raise ValueError(f"--method {self.config.method} is none of those that this study compares; leave it out")
        return found

    def case(self, labels: Mapping[str, Any], **changes: Any) -> Case:
        """One with these labels. REST-IS and GAS have no use for what only REST reads, and full batch none for clusters."""
        return Case(dict(labels), self.config.changed(**changes))


def distinct(cases: Iterable[Case]) -> list[Case]:
    """Each once: full-batch training is the same whatever the batches of the others are."""
    return list({case.name: case for case in cases}.values())


@dataclass(frozen=True)
class Study:
    """A question that runs can answer.

    Args:
        paper: where the REST paper asks it. question: what it varies, in words.
        cases: the settings. measures: columns of the table in results.md, see :mod:`rest_triton.lab.results`.
        draw: pictures by file name. tell: sentences about what came out.
        epochs, seeds: as they are, and if it is to be quick. settings: of the base.
        apart: each run in a process of its own, so that peak memory is its own.
        after: measures something when a run has ended and leaves it in the run's folder as ``leaves``.
        complete: enters columns into the rows of runs that depend on other runs, or on what ``after`` left.
    """

    name: str
    paper: str
    question: str
    cases: Callable[[Base], list[Case]]
    measures: tuple[str, ...]
    draw: "Callable[[Results], dict[str, bytes]]"
    tell: "Callable[[Results], list[str]]"
    epochs: tuple[int, int] = (50, 12)
    seeds: tuple[int, int] = (5, 2)
    settings: Mapping[str, Any] = field(default_factory=dict)
    apart: bool = False
    after: Callable[[Config, Path], None] | None = None
    leaves: str = ""
    complete: "Callable[[Results], None] | None" = None


def base_for(study: Study, flags: Mapping[str, Any], *, quick: bool, seeds: int | None, nodes: int) -> Base:
    """What a study begins with: the lab's settings for a graph of this size, its own, a recipe's if one is named, flags.

    Args:
        flags: by name, as text. nodes: of the graph.
    """
    given = dict(flags)
    for name, instead in ELSEWHERE.items():
        if name in given:
            raise ValueError(f"{flag(name)} is for single runs; a study takes {instead}")
    recipe = given.pop("recipe", None)
    read = read_recipe(recipe) if recipe not in (None, "none") else {}
    settings: dict[str, Any] = COMMON | SHAPES[nodes >= LARGE] | dict(epochs=study.epochs[quick]) | dict(study.settings)
    settings |= read | given
    if "num_parts" in given and "batch_size" not in given:  # the same share of the graph in a batch
        settings["batch_size"] = max(1, round(_whole(given["num_parts"]) * SHAPES[nodes >= LARGE]["batch_size"]
                                             / SHAPES[nodes >= LARGE]["num_parts"]))  # fmt: skip
    if "eval_every" not in settings:
        settings["eval_every"] = max(1, _whole(settings["epochs"]) // 25)
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be at least 1")
    config = Config.from_mapping(settings, "these settings")
    return Base(config, frozenset(given), quick, seeds or study.seeds[quick])


def _whole(value: Any) -> int:
    """A number for arithmetic; what is none is refused by :class:`Config` under its name."""
    try:
        return int(value)
    except ValueError:
        return 1


def planned(study: Study, base: Base, out: Path) -> list[Planned]:
    """All runs: the first seed of every case, then the second, so that a study that is stopped has something of each."""
    return [
        Planned(case, case.config.changed(seed=seed, run_dir=str(folder)), folder)
        for seed in range(base.config.seed, base.config.seed + base.seeds)
        for case in study.cases(base)
        for folder in [out / "runs" / f"{case.name}-s{seed}"]
    ]
