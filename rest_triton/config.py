"""The configuration of a run, as one dataclass. Recipes override defaults, and flags override recipes.

This module does not import torch, so that commands check flags quickly.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .methods.options import (
    ABOUT,
    AUTO,
    CLUSTERS,
    PLACES,
    CacheOptions,
    CodedOptions,
    GradientOptions,
    GraphFMOptions,
    InBatchOptions,
    LayerwiseOptions,
    MethodOptions,
    NodeOptions,
    RefreshOptions,
    SubgraphOptions,
    TableOptions,
    fanouts_of,
    refuse_fanout,
    refuse_first,
    refuse_gradients,
    refuse_method,
    refuse_model,
    refuse_refresh,
    refuse_sampling,
    refuse_sgc,
    refuse_trim,
)
from .utils.errors import UserError, did_you_mean
from .utils.machine import bytes_of
from .utils.options import option
from .utils.split_text import FORMS, names_a_split

RECIPES = Path(__file__).parent / "recipes"
KINDS: dict[type, tuple[str, str]] = {  # the type's name in messages, and the placeholder in the list of flags
    int: ("a whole number", "N"), float: ("a number", "X"), bool: ("true or false", ""), str: ("text", "NAME"),
}  # fmt: skip


GROUPS = ("data", "model", "method", "training", "results")  # of flags, in the order of --help
MODELS = ("gcn", "appnp", "gcnii", "gat", "gin", "pna")
# Old names of settings, which are still read from files.
RENAMED = {"parts": "num_parts", "per_batch": "batch_size", "input": "first", "gpu_memory": "device_budget"}
FREE_MEMORY = "free"  # a budget: what is free when the run begins, less a margin

APPNP, GCNII = ("model", ("appnp",)), ("model", ("gcnii",))


@dataclass(frozen=True, kw_only=True)
class Config(
    RefreshOptions, SubgraphOptions, LayerwiseOptions, CacheOptions, InBatchOptions, GradientOptions, NodeOptions,
    GraphFMOptions, CodedOptions, TableOptions, MethodOptions,
):  # fmt: skip
    """All settings of a run. The constructor refuses invalid values and combinations.

    Example::

        config = Config.of(recipe="products_gcn", method="gas+rest", frequency=2)
    """

    dataset: str = option(
        MISSING, "a name such as products; synthetic:<shape>[@scale]; or the path of an .npz", group="data"
    )
    root: str = option("data", "folder for downloads, prepared graphs and clusters", group="data")
    split: int | str = option(
        0, f"number of a data set's split, of those that have several; or one to make: {FORMS}", least=0, word="SPLIT",
        accepts=names_a_split, group="data",
    )  # fmt: skip
    num_parts: int = option(40, "clusters that the graph is divided into", least=1, group="data")
    batch_size: int = option(5, "clusters in a batch", least=1, group="data", only=CLUSTERS)
    partition: str = option(
        "auto", "how the graph is divided; auto: by KaMinPar or METIS, whichever is there",
        choices=("auto", "kaminpar", "metis", "random"), former={"stream": "kaminpar"}, group="data",
    )  # fmt: skip

    features: str = option(
        AUTO, "place of the features and of their aggregate; disk: files beside the prepared graph; auto: by the budgets",
        choices=PLACES, group="data",
    )  # fmt: skip
    feature_dtype: str = option(
        "float32", "widest number format of features and of their aggregate",
        choices=("float32", "float16", "bfloat16"), group="data",
    )  # fmt: skip

    model: str = option("gcn", f"one of {', '.join(MODELS)}", group="model")
    num_layers: int = option(3, "layers, or propagations of APPNP", least=1, group="model")
    hidden_channels: int = option(256, "width of hidden layers", least=1, group="model")
    dropout: float = option(0.0, "probability of dropout of activations", least=0, most=1, group="model")
    drop_input: bool = option(False, "dropout of the features, too", group="model")
    batch_norm: bool = option(False, "BatchNorm after every layer but the last", group="model")
    residual: bool = option(
        False, "GCN, GCNII: add each layer's input to its output", group="model", only=("model", ("gcn", "gcnii"))
    )
    linear: bool = option(
        False, "GCN: linear layers before the first and after the last aggregate", group="model", only=("model", ("gcn",))
    )
    alpha: float = option(
        0.1, "APPNP, GCNII: share of the first embedding", least=0, most=1, group="model", only=("model", ("appnp", "gcnii"))
    )
    theta: float = option(0.5, "GCNII: how much its weights count", least=0, group="model", only=GCNII)
    shared_weights: bool = option(True, "GCNII: one weight for neighbours and first embedding", group="model", only=GCNII)
    heads: int = option(8, "GAT: attention heads of hidden layers", least=1, group="model", only=("model", ("gat",)))
    mlp_layers: int = option(2, "APPNP: linear layers of its MLP", least=1, group="model", only=APPNP)

    epochs: int = option(100, "passes over all clusters", least=1, group="training")
    max_steps: int = option(0, "largest number of steps in an epoch; 0: no limit", least=0, group="training")
    lr: float = option(0.01, "learning rate of Adam", least=0, group="training")
    reg_weight_decay: float = option(0.0, "weight decay of hidden layers", least=0, group="training")
    nonreg_weight_decay: float = option(
        0.0, "weight decay of the rest: the last layer, or linear layers around aggregates", least=0, group="training"
    )
    clip: float = option(0.0, "largest norm of the gradient; 0: no limit", least=0, group="training")
    accumulate: int = option(1, "batches whose gradients are added up for one step", least=1, group="training")
    edge_dropout: float = option(0.0, "probability that training leaves an edge out", least=0, most=1, group="training")
    amp: bool = option(False, "bfloat16 arithmetic where that is safe (on a GPU)", group="training")
    seed: int = option(0, "of weights, batches and dropout", least=0, most=2**63 - 1, group="training")
    runs: int = option(
        1, "runs with seeds seed, seed + 1, …; mean and standard deviation are reported", least=1, group="training"
    )
    memory_budget: str = option(
        FREE_MEMORY, "host memory that the run may take, such as 48GiB or 500MB; free: what is free, less a margin",
        word="SIZE", group="training",
    )  # fmt: skip
    device_budget: str = option(
        FREE_MEMORY, "GPU memory that the run may take, in the same form", word="SIZE", group="training",
        only=("device", ("auto", "cuda")),
    )  # fmt: skip
    device: str = option("auto", "auto takes a GPU where there is one", choices=("auto", "cpu", "cuda"), group="training")

    eval_every: int = option(1, "epochs between two exact evaluations", least=1, group="results")
    error_every: int = option(
        0, "epochs between two measurements of the errors of histories; 0: never", least=0, group="results"
    )
    run_dir: str = option("", "folder of the run's results; default: a new one in runs/", group="results")
    checkpoint_every: int = option(1, "epochs between two checkpoints", least=1, group="results")
    save_history: bool = option(False, "keep tables in checkpoints, so that a resumed run is the same run", group="results")
    profile: bool = option(False, "write trace.json of the first epoch, for Perfetto or chrome://tracing", group="results")

    def __post_init__(self) -> None:
        refuse_method(self.method)
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f, getattr(self, f.name)))
        if not self.dataset:
            raise UserError("dataset is missing; name one with --dataset, such as --dataset products")
        if self.batch_size > self.num_parts:
            raise UserError(
                f"batch_size is {self.batch_size}, and there are {self.num_parts} clusters; give --batch-size 1 to "
                f"{self.num_parts}, or more --num-parts"
            )
        for name in ("memory_budget", "device_budget"):
            if getattr(self, name) != FREE_MEMORY:
                bytes_of(getattr(self, name), name)
        refuse_gradients(self)
        refuse_model(self)
        refuse_sampling(self)
        refuse_refresh(self)
        refuse_sgc(self)
        if self.base == "sgc" and (self.features not in (AUTO, "device") or self.feature_dtype != "float32"):
            raise UserError(
                f"features is {self.features} in {self.feature_dtype}, but sgc aggregates them on the device in float32; "
                "give --features device --feature-dtype float32, or --method full"
            )
        refuse_first(self)
        refuse_trim(self)

    @property
    def base(self) -> str:
        """The method without its refresh: one of BASES."""
        return self.method.partition("+")[0]

    @property
    def rest(self) -> str:
        """The refresh of the method: one of REFRESHES, or an empty text."""
        return self.method.partition("+")[2]

    @property
    def fanouts(self) -> tuple[int, ...]:
        """``fanout`` for each layer."""
        return fanouts_of(self)

    @property
    def refreshes(self) -> int:
        """``frequency`` as a number. It is 1 for auto, which varies by step."""
        return self.frequency if isinstance(self.frequency, int) else 1

    def idle(self, names: Iterable[str]) -> list[str]:
        """A line for each of these settings that has no effect in this configuration.

        A custom model may use all settings of models.
        """
        lines = []
        for f in fields(self):
            if f.name not in names or f.metadata["only"] is None:
                continue
            other, values = f.metadata["only"]
            if getattr(self, other) in values or (other == "model" and self.model not in MODELS):
                continue
            if other in ("base", "rest"):  # parts of the method
                values = tuple(f"NAME+{value}" if other == "rest" else value for value in values)
                other = "method"
            lines.append(
                f"{flag(f.name)} changes nothing: it belongs to {other} {' or '.join(values)}, and {other} is "
                f"{getattr(self, other)}"
            )
        return lines

    @classmethod
    def of(cls, recipe: str | None = None, **settings: Any) -> "Config":
        """A configuration from a recipe, a shipped one or the path of a YAML file, and ``settings``, which override it."""
        base = {} if recipe is None else read_recipe(recipe, settings.get("method", ""))
        return cls.from_mapping(base | settings, "these settings" if recipe is None else f"recipe {recipe}")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any], where: str) -> "Config":
        """A configuration from settings by name. An unknown name is an error that suggests the closest one."""
        names = [f.name for f in settings_of(cls)]
        for name in settings:
            if name not in names:
                which = f"it is {RENAMED[name]!r} now" if name in RENAMED else did_you_mean(str(name), names)
                raise UserError(f"{where}: {name!r} is not a setting: {which}")
        return cls(**({"dataset": ""} | dict(settings)))

    def changed(self, **settings: Any) -> "Config":
        return replace(self, **settings)

    def by_method(self, method: str) -> "Config":
        """The same run by another method with default options."""
        options = {f.name: f.default for f in fields(self) if f.metadata["group"] == "method"}
        return self.changed(**(options | {"method": method}))

    def to_yaml(self) -> str:
        """All settings as YAML, so that the run can be repeated after defaults change."""
        return yaml.safe_dump({f.name: getattr(self, f.name) for f in settings_of(self)}, sort_keys=False)


def settings_of(config: "Config | type[Config]") -> "list[Field[Any]]":
    """The fields of a configuration, group by group."""
    return sorted(fields(config), key=lambda f: GROUPS.index(f.metadata["group"]))


def _kind(f: "Field[Any]") -> Any:
    return {kind.__name__: kind for kind in KINDS}[getattr(f.type, "__name__", str(f.type)).split(" | ")[0]]


def _checked(f: "Field[Any]", value: Any) -> Any:
    """The value, converted to the type of its field. UserError if it does not fit."""
    kind, m = _kind(f), f.metadata
    if m["word"] and (m["accepts"](value) if m["accepts"] else value == m["word"]):
        return value
    if kind in (int, float) and isinstance(value, str):  # from the command line; YAML reads 5e-4 as text, too
        with suppress(ValueError):
            value = kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        word = f" or {m['word']}" if m["word"] else ""
        raise UserError(f"{f.name} is {value!r}; it must be {KINDS[kind][0]}{word}")
    if m["choices"] and value not in m["choices"] and value not in m["former"]:
        raise UserError(f"{f.name} is {value!r}: {did_you_mean(str(value), m['choices'])}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{f.name} is {value}; it must be a finite number")
    least, most = m["least"], m["most"]
    if least is not None and (value < least or (most is not None and value > most)):
        raise UserError(f"{f.name} is {value}; it must be {f'at least {least}' if most is None else f'{least} to {most}'}")
    return value


@cache
def _shipped() -> dict[str, dict[str, dict[str, Any]]]:
    """The settings of each shipped recipe by method: the model's defaults, those of the data set, those of the method.

    The method "" stands for all methods without settings of their own.
    """
    shipped = {}
    for path in RECIPES.glob("*.yaml"):
        file = yaml.safe_load(path.read_text())
        for dataset, overrides in file["datasets"].items():
            settings = {"dataset": dataset, "model": path.stem} | file["defaults"] | overrides
            own = {base: settings | of[dataset] for base, of in file.get("methods", {}).items() if dataset in of}
            shipped[f"{dataset}_{path.stem}"] = {"": settings} | own
    return shipped


def recipes() -> list[str]:
    """The names of the shipped recipes: ``<data set>_<model>``."""
    return sorted(_shipped())


def read_recipe(name: str, method: str = "") -> dict[str, Any]:
    """The settings of a recipe: the name of a shipped one, or a YAML file, in which settings may have old names.

    A shipped recipe may have settings for a method. They hold for its refreshes, too.
    """
    if name in _shipped():
        by_method = _shipped()[name]
        return dict(by_method.get(str(method).partition("+")[0], by_method[""]))
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
    """Settings that an older version wrote, by their current names."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def recipe_for(dataset: str, model: str) -> str | None:
    """The shipped recipe for a data set and a model, or None.

    ``products``, ``synthetic:products@0.1`` and ``products.npz`` have the same recipe.
    """
    name = dataset.removeprefix("synthetic:").split("@")[0]
    name = Path(name).stem if name.endswith(".npz") else name
    recipe = f"{name}_{model}"
    return recipe if recipe in recipes() else None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting: ``--batch-size`` for ``batch_size``.

    The parser returns only flags that were given, as text. :class:`Config` checks and converts them.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the lines about methods are not wrapped
    about = {"method": "\n".join(f"{name:<11} {line}" for name, line in ABOUT.items())}
    groups = {title: parser.add_argument_group(title, about.get(title)) for title in GROUPS}
    for f in settings_of(Config):
        m, kind = f.metadata, _kind(f)
        default: Any = ("on" if f.default else "off") if kind is bool else f.default
        text = m["help"] + ("" if default in (MISSING, "") else f" (default: {default})")
        common: dict[str, Any] = dict(dest=f.name, default=argparse.SUPPRESS, help=text)
        group = groups[m["group"]]
        if kind is bool:
            group.add_argument(flag(f.name), action=argparse.BooleanOptionalAction, **common)
        else:
            placeholder = "|".join(filter(None, (KINDS[kind][1] if kind is not str or not m["word"] else "", m["word"])))
            few = m["choices"] if f.name != "method" else ()  # these are in the lines above
            group.add_argument(flag(f.name), metavar="|".join(few) or placeholder, **common)


def flag(name: str) -> str:
    """``--batch-size`` for ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Options of a command line. An unknown flag ends the program with a message that suggests the closest one."""
    options, rest = parser.parse_known_args(arguments)
    if rest:
        name, names = rest[0].partition("=")[0], [o for o in parser._option_string_actions if o.startswith("--")]
        new_name = {flag(old): flag(new) for old, new in RENAMED.items()}.get(name)
        if new_name in names:
            why = f"is {new_name} now"
        elif name.startswith("-"):
            why = f"is not a flag: {did_you_mean(name, names)}"
        else:
            why = "comes after no flag; --help lists them"
        parser.exit(2, f"{name} {why}\n")
    return vars(options)


def from_flags(flags: Mapping[str, Any]) -> tuple[Config, str | None]:
    """(configuration of flags, name of its recipe or None).

    The flag ``recipe`` names the recipe; ``none`` means no recipe. Default: the shipped one for data set and model.
    """
    given = dict(flags)
    recipe = given.pop("recipe", None)
    if recipe is None:
        recipe = recipe_for(given.get("dataset", ""), given.get("model", "gcn"))
    elif recipe == "none":
        recipe = None
    for f in fields(Config):
        if (instead := f.metadata["former"].get(given.get(f.name))) is not None:
            raise UserError(f"{f.name} is {given[f.name]!r}, which is gone; give {flag(f.name)} {instead}")
    config = Config.of(recipe, **given)
    if "fanout" in given:
        refuse_fanout(config)
    return config, recipe
