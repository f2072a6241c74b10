"""What a run is asked to do: one dataclass. Defaults, then a recipe, then flags; the later one counts.

Nothing of torch is imported here: a configuration can be checked anywhere.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .utils.errors import UserError, did_you_mean

RECIPES = Path(__file__).parent / "recipes"
KINDS: dict[type, tuple[str, str]] = {  # what people call them, and what stands for one in the list of flags
    int: ("a whole number", "N"), float: ("a number", "X"), bool: ("true or false", ""), str: ("text", "NAME"),
}  # fmt: skip


def _option(default: Any, text: str, *, group: str, choices: Sequence[str] = (), least: float | None = None,
            most: float | None = None, word: str = "", only: tuple[str, Sequence[str]] | None = None) -> Any:  # fmt: skip
    """A field with what the command line and the checks need to know of it. word: what may stand instead of a number;
    only: another setting, and the values of it with which this one means something."""
    known = dict(help=text, choices=tuple(choices), least=least, most=most, group=group, word=word, only=only)
    return field(default=default, metadata=known)


MODELS = ("gcn", "appnp", "gcnii", "gat", "gin", "pna")
BASES = ("gas", "graphfm", "full")  # a method is one of these,
TABLELESS = ("full",)
ATTENDING = ("gat", "pna")  # models that do not sum over neighbours
REFRESHES = ("rest", "rest-is")  # or one that has tables, a + and one of these
METHODS = (*BASES, *(f"{base}+{refresh}" for base in BASES if base not in TABLELESS for refresh in REFRESHES))
AUTO = "auto"
RENAMED = {"parts": "num_parts", "per_batch": "batch_size"}  # settings of before: files that have them are still read

# With what a setting means something: another one, or a part of the method, and its values.
TABLES = ("base", tuple(base for base in BASES if base not in TABLELESS))
REFRESHED, REST = ("rest", REFRESHES), ("rest", ("rest",))
AUTOMATIC = ("frequency", (AUTO,))
APPNP, GCNII = ("model", ("appnp",)), ("model", ("gcnii",))


@dataclass(frozen=True)
class Config:
    """All settings of a run. What makes no sense is refused when it is made, by name.

    Example::

        config = Config.of(recipe="products_gcn", method="gas+rest", frequency=2)
    """

    dataset: str = _option(
        MISSING, "a name such as products; synthetic:<shape>[@scale]; or the path of an .npz", group="data"
    )
    root: str = _option("data", "folder for downloads, prepared graphs and clusters", group="data")
    split: int = _option(0, "which split, of data sets that have several", least=0, group="data")
    num_parts: int = _option(40, "clusters that the graph is divided into", least=1, group="data")
    batch_size: int = _option(5, "clusters in a batch", least=1, group="data", only=TABLES)
    partition: str = _option("metis", "how the graph is divided", choices=("metis", "stream", "random"), group="data")

    model: str = _option("gcn", f"one of {', '.join(MODELS)}", group="model")
    num_layers: int = _option(3, "layers, or propagations of APPNP", least=1, group="model")
    hidden_channels: int = _option(256, "width of hidden layers", least=1, group="model")
    dropout: float = _option(0.0, "share of activations that are left out in training", least=0, most=1, group="model")
    drop_input: bool = _option(False, "dropout of the features, too", group="model")
    batch_norm: bool = _option(False, "BatchNorm after every layer but the last", group="model")
    residual: bool = _option(
        False, "GCN, GCNII: add each layer's input to its output", group="model", only=("model", ("gcn", "gcnii"))
    )
    linear: bool = _option(
        False, "GCN: linear layers before the first and after the last aggregate", group="model", only=("model", ("gcn",))
    )
    alpha: float = _option(
        0.1, "APPNP, GCNII: share of the first embedding", least=0, most=1, group="model", only=("model", ("appnp", "gcnii"))
    )
    theta: float = _option(0.5, "GCNII: how much its weights count", least=0, group="model", only=GCNII)
    shared_weights: bool = _option(True, "GCNII: one weight for neighbours and first embedding", group="model", only=GCNII)
    heads: int = _option(8, "GAT: attention heads of hidden layers", least=1, group="model", only=("model", ("gat",)))
    mlp_layers: int = _option(2, "APPNP: linear layers of its MLP", least=1, group="model", only=APPNP)

    method: str = _option(
        "gas", "gas: histories as they are; graphfm: moved by each batch, too; both refreshed by REST or by REST-IS; "
        "full: all nodes in one batch, without any", choices=METHODS, group="method",
    )  # fmt: skip
    frequency: int | str = _option(
        1, "REST: refreshes per step; auto: as many as keep rows young; REST-IS: pieces in which a halo is refreshed",
        least=1, word=AUTO, group="method", only=REFRESHED,
    )  # fmt: skip
    target_age: float = _option(
        4.0, "frequency auto: the mean age of rows, in steps, that is not exceeded", least=0, group="method", only=AUTOMATIC
    )
    target_drift: float = _option(
        0.0, "frequency auto: instead of age, how far rows may have moved when they are written again, as a share of their "
        "size; 0: age counts", least=0, group="method", only=AUTOMATIC,
    )  # fmt: skip
    refresh_batch: str = _option(
        "same", "REST: clusters that one refresh renews: as many as a batch has, half of all, or all, by an exact pass",
        choices=("same", "half", "full"), group="method", only=REST,
    )  # fmt: skip
    refresh_order: str = _option(
        "uniform", "REST: clusters in random order, or first those that have waited longest", choices=("uniform", "oldest"),
        group="method", only=REST,
    )  # fmt: skip
    refresh_mode: str = _option(
        "train", "refresh with dropout and batch statistics, or without", choices=("train", "eval"), group="method",
        only=REFRESHED,
    )  # fmt: skip
    push_momentum: float = _option(
        0.1, "graphfm: how far the histories of a batch's neighbours move towards what follows from the batch alone",
        least=0, most=1, group="method", only=("base", ("graphfm",)),
    )  # fmt: skip
    input: str = _option(
        "cached", "what a model makes of neighbours' features alone: from a table, or computed anew, with gradient",
        choices=("cached", "exact"), group="method", only=TABLES,
    )  # fmt: skip
    eval_updates_history: bool = _option(False, "evaluation writes the tables, as PyGAS does", group="method", only=TABLES)
    history: str = _option(
        "device", "where the tables are", choices=("device", "pinned", "disk"), group="method", only=TABLES
    )
    dtype: str = _option(
        "float32", "number format of tables", choices=("float32", "bfloat16", "float16"), group="method", only=TABLES
    )

    epochs: int = _option(100, "passes over all clusters", least=1, group="training")
    max_steps: int = _option(0, "steps in an epoch at the most; 0: as many as there are batches", least=0, group="training")
    lr: float = _option(0.01, "learning rate of Adam", least=0, group="training")
    reg_weight_decay: float = _option(0.0, "weight decay of hidden layers", least=0, group="training")
    nonreg_weight_decay: float = _option(
        0.0, "weight decay of the rest: the last layer, or linear layers around aggregates", least=0, group="training"
    )
    clip: float = _option(0.0, "largest norm of the gradient; 0: no limit", least=0, group="training")
    accumulate: int = _option(1, "batches whose gradients are added up for one step", least=1, group="training")
    edge_dropout: float = _option(0.0, "share of edges that are left out in training", least=0, most=1, group="training")
    amp: bool = _option(False, "bfloat16 arithmetic where that is safe (on a GPU)", group="training")
    seed: int = _option(0, "of weights, batches and dropout", least=0, most=2**63 - 1, group="training")
    runs: int = _option(
        1, "how many runs, from seed, seed + 1, …: mean and standard deviation are reported", least=1, group="training"
    )
    device: str = _option("auto", "auto takes a GPU where there is one", choices=("auto", "cpu", "cuda"), group="training")

    eval_every: int = _option(1, "epochs between two exact evaluations", least=1, group="results")
    error_every: int = _option(
        0, "epochs between two measurements of how far histories are from the truth; 0: never", least=0, group="results"
    )
    run_dir: str = _option("", "folder of the run's results; default: a new one in runs/", group="results")
    checkpoint_every: int = _option(1, "epochs between two checkpoints", least=1, group="results")
    save_history: bool = _option(False, "keep tables in checkpoints, so that a resumed run is the same run", group="results")
    profile: bool = _option(False, "write trace.json of the first epoch, for Perfetto or chrome://tracing", group="results")

    def __post_init__(self) -> None:
        base, _, refresh = str(self.method).partition("+")
        if base in TABLELESS and refresh in REFRESHES:
            raise UserError(
                f"method is {self.method!r}, but {base} has no tables to refresh; give --method {base}, or one of "
                f"{', '.join(method for method in METHODS if '+' in method)}"
            )
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f, getattr(self, f.name)))
        if not self.dataset:
            raise UserError("dataset is missing; name one with --dataset, such as --dataset products")
        if self.batch_size > self.num_parts:
            raise UserError(
                f"batch_size is {self.batch_size}, and there are {self.num_parts} clusters; give --batch-size 1 to "
                f"{self.num_parts}, or more --num-parts"
            )
        if self.frequency == AUTO and self.rest != "rest":
            raise UserError(
                f"frequency is auto with method {self.method}, which does not choose how much it refreshes; give --method "
                "gas+rest, or a whole number"
            )
        if self.rest == "rest" and self.refresh_batch == "full" and self.frequency != 1:
            raise UserError(
                f"frequency is {self.frequency} with refresh_batch full: one pass makes every row fresh, and the weights do "
                "not move before the next; give --frequency 1"
            )
        if self.base == "graphfm" and self.model in ATTENDING:
            raise UserError(
                f"method is {self.method} with model {self.model}, which does not sum over neighbours: graphfm has no push "
                "for it; give --method gas, or --model gcn, appnp, gcnii or gin"
            )
        if self.model == "gcn" and self.input == "exact" and not self.linear:
            raise UserError(
                "input is exact, but a GCN without --linear aggregates features first, and is exact anyway; "
                "give --input cached"
            )

    @property
    def base(self) -> str:
        """The method without what refreshes its tables: one of BASES."""
        return self.method.partition("+")[0]

    @property
    def rest(self) -> str:
        """What refreshes its tables: one of REFRESHES, or nothing."""
        return self.method.partition("+")[2]

    @property
    def refreshes(self) -> int:
        """``frequency`` as a number; what it is with auto depends on the step, and 1 stands for it."""
        return self.frequency if isinstance(self.frequency, int) else 1

    def idle(self, names: Iterable[str]) -> list[str]:
        """A line on each of these settings that changes nothing with the others as they are. A model of one's own may use
        all of the models' settings."""
        lines = []
        for f in fields(self):
            if f.name not in names or f.metadata["only"] is None:
                continue
            other, values = f.metadata["only"]
            if getattr(self, other) in values or (other == "model" and self.model not in MODELS):
                continue
            if other in ("base", "rest"):  # parts of the method: it is named as a whole
                values = tuple(m for m in METHODS if m.partition("+")[2 if other == "rest" else 0] in values)
                other = "method"
            lines.append(
                f"{flag(f.name)} changes nothing: it belongs to {other} {' or '.join(values)}, and {other} is "
                f"{getattr(self, other)}"
            )
        return lines

    @classmethod
    def of(cls, recipe: str | None = None, **settings: Any) -> "Config":
        """Defaults, then a recipe (a shipped one by its name, or the path of a YAML file), then ``settings``."""
        read = {} if recipe is None else read_recipe(recipe)
        return cls.from_mapping(read | settings, "these settings" if recipe is None else f"recipe {recipe}")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any], where: str) -> "Config":
        """Settings by name; a name that is not known is an error that says which one may be meant."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                which = f"it is {RENAMED[name]!r} now" if name in RENAMED else did_you_mean(str(name), known)
                raise UserError(f"{where}: {name!r} is not a setting: {which}")
        return cls(**({"dataset": ""} | dict(settings)))

    def changed(self, **settings: Any) -> "Config":
        return replace(self, **settings)

    def by_method(self, method: str) -> "Config":
        """The same run by another method, whose options are the defaults."""
        options = {f.name: f.default for f in fields(self) if f.metadata["group"] == "method"}
        return self.changed(**(options | {"method": method}))

    def to_yaml(self) -> str:
        """All settings, so that the run can be repeated whatever the defaults will be."""
        return yaml.safe_dump(asdict(self), sort_keys=False)


def _kind(f: "Field[Any]") -> Any:
    return {kind.__name__: kind for kind in KINDS}[getattr(f.type, "__name__", str(f.type)).split(" | ")[0]]


def _checked(f: "Field[Any]", value: Any) -> Any:
    """The value in the type of its field, or an error that names it and what fits."""
    kind, m = _kind(f), f.metadata
    if m["word"] and value == m["word"]:
        return value
    if kind in (int, float) and isinstance(value, str):  # from the command line; and YAML reads 5e-4 as text
        with suppress(ValueError):
            value = kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        other = f" or {m['word']}" if m["word"] else ""
        raise UserError(f"{f.name} is {value!r}; it must be {KINDS[kind][0]}{other}")
    if m["choices"] and value not in m["choices"]:
        raise UserError(f"{f.name} is {value!r}: {did_you_mean(str(value), m['choices'])}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{f.name} is {value}; it must be a finite number")
    least, most = m["least"], m["most"]
    if least is not None and (value < least or (most is not None and value > most)):
        raise UserError(f"{f.name} is {value}; it must be {f'at least {least}' if most is None else f'{least} to {most}'}")
    return value


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The settings of each shipped recipe: its model's defaults, then what its data set has instead."""
    found = {}
    for path in RECIPES.glob("*.yaml"):
        file = yaml.safe_load(path.read_text())
        for dataset, own in file["datasets"].items():
            found[f"{dataset}_{path.stem}"] = {"dataset": dataset, "model": path.stem} | file["defaults"] | own
    return found


def recipes() -> list[str]:
    """The names of the shipped ones: ``<data set>_<model>``."""
    return sorted(_shipped())


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe: a shipped one by its name, or a YAML file, whose settings may have their old names."""
    if name in _shipped():
        return dict(_shipped()[name])
    path = Path(name)
    if not path.is_file():
        raise UserError(f"{name!r} is neither a recipe nor a file: {did_you_mean(name, recipes())}")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds {type(settings).__name__}; a recipe has lines of the form 'name: value'")
    return with_new_names(settings)


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a version of before wrote, by the names that they have now."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def recipe_for(dataset: str, model: str) -> str | None:
    """The shipped recipe for a data set and a model, if there is one: for products, ``synthetic:products@0.1`` and a
    ``products.npz`` alike."""
    name = dataset.removeprefix("synthetic:").split("@")[0]
    name = Path(name).stem if name.endswith(".npz") else name
    return found if (found := f"{name}_{model}") in recipes() else None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting, ``--batch-size`` for ``batch_size``. What is not given is not in the result, and what is
    given is text: :class:`Config` knows what fits."""
    groups = {
        title: parser.add_argument_group(title) for title in dict.fromkeys(f.metadata["group"] for f in fields(Config))
    }
    for f in fields(Config):
        m, kind = f.metadata, _kind(f)
        default: Any = ("on" if f.default else "off") if kind is bool else f.default
        text = m["help"] + ("" if default in (MISSING, "") else f" (default: {default})")
        common: dict[str, Any] = dict(dest=f.name, default=argparse.SUPPRESS, help=text)
        group = groups[m["group"]]
        if kind is bool:
            group.add_argument(flag(f.name), action=argparse.BooleanOptionalAction, **common)
        else:
            sign = KINDS[kind][1] + (f"|{m['word']}" if m["word"] else "")
            group.add_argument(flag(f.name), metavar="|".join(m["choices"]) or sign, **common)


def flag(name: str) -> str:
    """``--batch-size`` for ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """What a command line asks for. A flag that is not known ends the program and says which one may be meant."""
    options, rest = parser.parse_known_args(arguments)
    if rest:
        name, known = rest[0].partition("=")[0], [o for o in parser._option_string_actions if o.startswith("--")]
        now = {flag(old): flag(new) for old, new in RENAMED.items()}.get(name)
        if now in known:
            why = f"is {now} now"
        elif name.startswith("-"):
            why = f"is not a flag: {did_you_mean(name, known)}"
        else:
            why = "comes after no flag; --help lists them"
        parser.exit(2, f"{name} {why}\n")
    return vars(options)


def from_flags(flags: Mapping[str, Any]) -> tuple[Config, str | None]:
    """The configuration that flags ask for, and the recipe it is based on: the one named by ``recipe``, or the shipped one
    for data set and model; ``none`` takes none."""
    given = dict(flags)
    recipe = given.pop("recipe", None)
    if recipe is None:
        recipe = recipe_for(given.get("dataset", ""), given.get("model", "gcn"))
    elif recipe == "none":
        recipe = None
    return Config.of(recipe, **given), recipe
