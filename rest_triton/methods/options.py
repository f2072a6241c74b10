"""The options of methods, a dataclass for each group: settings of a configuration and flags of the command line.

:class:`rest_triton.config.Config` consists of them. Nothing of torch is imported here, so that flags are checked quickly. A
new method adds its name to BASES and, if it has options, a dataclass to the bases of ``Config``.
"""

from dataclasses import dataclass
from typing import Any

from ..utils.errors import UserError
from ..utils.options import option

SAINTS = ("saint-node", "saint-edge", "saint-walk")
LAYERWISE = ("fastgcn", "ladies")
TABLELESS = ("sage", *LAYERWISE, "cluster", *SAINTS, "sgc", "full")  # methods without tables
BASES = ("gas", "lmc", "lmc-coded", "graphfm", "graphfm-ib", "vrgcn", "mvs", "refresh", *TABLELESS)  # a method is one of
GRADIENTS = ("lmc", "lmc-coded")  # methods with tables of gradients
SAMPLING = ("graphfm-ib", "vrgcn", "refresh", "sage")  # methods that sample neighbours
FILLED_BY_USE = ("graphfm-ib", "refresh")  # methods whose tables are empty at first
ATTENDING = ("gat", "pna")  # models that do not sum over neighbours, for which such tables are not defined
REFRESHES = ("rest", "rest-is")  # these, or one that has tables, a + and one of these
METHODS = (*BASES, *(f"{base}+{refresh}" for base in BASES if base not in TABLELESS for refresh in REFRESHES))
AUTO = "auto"
PLACES = (AUTO, "device", "pinned", "disk")  # of tables and of features; auto: chosen by the budgets
FIRST = "cached"  # the default of --first; the study ``first`` compares its choices

ABOUT = {  # a line of --help for each
    "gas": "reads neighbours outside of a batch from tables of their last embeddings",
    "lmc": "as gas; backward also reads the gradients of these neighbours from tables",
    "lmc-coded": "lmc as published: also computes the neighbours, from a part of theirs",
    "graphfm": "as gas; a batch also moves its neighbours' rows in the tables",
    "graphfm-ib": "samples neighbours; averages their sums over steps, in tables",
    "vrgcn": "samples neighbours; corrects their sums by the tables' rows of all neighbours",
    "mvs": "as gas; batches are training nodes, drawn by the size of their gradients",
    "refresh": "samples neighbours; keeps embeddings with small gradients, to read them again",
    "sage": "samples neighbours, without tables",
    "fastgcn": "samples nodes for each layer, the same probabilities for all",
    "ladies": "samples nodes for each layer among the neighbours of its rows",
    "cluster": "computes clusters without the edges that leave a batch",
    "saint-node": "subgraphs of nodes drawn by degree, weighted to be unbiased",
    "saint-edge": "the same for nodes of drawn edges",
    "saint-walk": "the same for nodes of random walks",
    "sgc": "linear model of features that are aggregated once; gcn only",
    "full": "computes all nodes in one batch, without tables",
    "+rest": "REST: before each step other batches compute their rows of the tables anew",
    "+rest-is": "REST-IS: before each step the rows that the batch reads are computed anew",
}

# Values of ``only``: (a setting or a part of the method, its values for which a setting has effect).
TABLES = ("base", tuple(base for base in BASES if base not in TABLELESS))
CLUSTERS = ("base", (*TABLES[1], "cluster"))
REFRESHED, REST = ("rest", REFRESHES), ("rest", ("rest",))
MVS, SAMPLED, OF_NODES = ("base", ("mvs",)), ("base", SAMPLING), ("base", ("mvs", *SAMPLING, *LAYERWISE, "sgc"))
HALO = ("base", tuple(base for base in TABLES[1] if base not in (*SAMPLING, "lmc-coded")))  # rows that may have dropout
AUTOMATIC = ("frequency", (AUTO,))
CACHED = ("base", ("refresh",))


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The method."""

    method: str = option(
        "gas", "one of the methods above; those with tables also with +rest or +rest-is, such as gas+rest",
        choices=METHODS, group="method",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of all methods with tables."""

    first: str = option(
        FIRST, "neighbours' first embedding, encoded features or the first layer's output: from a table, or computed in "
        "each forward, with gradients; auto: computed where that reads fewer bytes",
        choices=("auto", "cached", "exact"), group="method", only=TABLES,
    )  # fmt: skip
    eval_updates_history: bool = option(False, "evaluation writes the tables, as PyGAS does", group="method", only=TABLES)
    history: str = option(AUTO, "place of the tables; auto: by the budgets", choices=PLACES, group="method", only=TABLES)
    dtype: str = option(
        "float32", "number format of tables", choices=("float32", "bfloat16", "float16"), group="method", only=TABLES
    )
    trim: bool = option(
        False, "leave out rows that no training node depends on; with BatchNorm, statistics are of the rows that are left",
        group="method", only=TABLES,
    )  # fmt: skip
    history_dropout: bool = option(
        False,
        "dropout of the rows that training reads from tables, as PyGAS has it; lmc-coded always has it",
        group="method",
        only=HALO,
    )


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """Options of methods with tables of gradients."""

    gradient_frequency: int = option(
        0, "lmc: with +rest, the refreshes of a step that also run backward and renew histories of gradients", least=0,
        group="method", only=("method", tuple(f"{base}+rest" for base in GRADIENTS)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CodedOptions:
    """Options of LMC as published.

    The defaults are the authors' for GCNII on arxiv. Theirs for GCN there, 1 and const, read no table.
    """

    beta: float = option(
        0.9, "lmc-coded: the weight of a neighbour's row computed from the batch and its neighbours, against its history",
        least=0, most=1, group="method", only=("base", ("lmc-coded",)),
    )  # fmt: skip
    score: str = option(
        "linear", "lmc-coded: what multiplies beta, as a function of the share of a neighbour's neighbours that are known",
        choices=("linear", "const", "concave", "convex", "sin"), group="method", only=("base", ("lmc-coded",)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GraphFMOptions:
    """Options of GraphFM."""

    push_momentum: float = option(
        0.1, "graphfm: how far histories of a batch's neighbours move towards embeddings from the batch alone",
        least=0, most=1, group="method", only=("base", ("graphfm",)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options of methods with batches of nodes instead of clusters."""

    batch_nodes: int = option(1024, "nodes in a batch; of mvs on average", least=1, group="method", only=OF_NODES)
    fanout: str = option(
        "10", "the most neighbours that a row samples in each layer, or one number per layer, such as 10,10,5",
        group="method", only=SAMPLED,
    )  # fmt: skip
    importance_every: int = option(
        20, "mvs: steps between two exact passes, which fill the tables and measure importance", least=1, group="method",
        only=MVS,
    )  # fmt: skip
    importance_share: float = option(
        0.1, "mvs: share of the training nodes that batches are drawn from until the next exact pass", least=0, most=1,
        group="method", only=MVS,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InBatchOptions:
    """Options of GraphFM-IB."""

    ib_momentum: float = option(
        0.1, "graphfm-ib: the share of the average of the steps before in an aggregate", least=0, most=1, group="method",
        only=("base", ("graphfm-ib",)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Options of the method refresh."""

    gradient_quantile: float = option(
        0.9, "refresh: the share of embeddings that are kept in the cache, those with the smallest gradients", least=0,
        most=1, group="method", only=CACHED,
    )  # fmt: skip
    cache_rows: int = option(
        0, "refresh: the largest number of cached embeddings; 0: one for each node", least=0, group="method", only=CACHED
    )
    stale_steps: int = option(
        200, "refresh: the largest age of a cached embedding, in steps", least=0, group="method", only=CACHED
    )


@dataclass(frozen=True, kw_only=True)
class LayerwiseOptions:
    """Options of FastGCN and LADIES."""

    layer_nodes: int = option(
        512, "fastgcn, ladies: nodes that are drawn for a layer", least=1, group="method", only=("base", LAYERWISE)
    )
    row_normalise: bool = option(
        False, "fastgcn, ladies: the weights of drawn neighbours add up to those of all, with a bias", group="method",
        only=("base", LAYERWISE),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SubgraphOptions:
    """Options of GraphSAINT."""

    subgraph_nodes: int = option(
        2000, "saint: nodes, edges or walks that are drawn for a subgraph", least=1, group="method", only=("base", SAINTS)
    )
    walk_length: int = option(2, "saint-walk: steps of a walk", least=1, group="method", only=("base", ("saint-walk",)))
    coverage: float = option(
        25.0, "saint: how often subgraphs hold a node, on average, before training, to count nodes and edges; 0: no weights",
        least=0, group="method", only=("base", SAINTS),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RefreshOptions:
    """Options of REST and REST-IS."""

    frequency: int | str = option(
        1, "REST: refreshes per step, or auto by --target-age or --target-drift; REST-IS: pieces of a halo's refresh",
        least=1, word=AUTO, group="method", only=REFRESHED,
    )  # fmt: skip
    target_age: float = option(
        4.0, "frequency auto: the largest mean age of rows, in steps", least=0, group="method", only=AUTOMATIC
    )
    target_drift: float = option(
        0.0, "frequency auto: the largest change of rows between two writes, relative to their norm, instead of "
        "--target-age; 0: off", least=0, group="method", only=AUTOMATIC,
    )  # fmt: skip
    refresh_batch: str = option(
        "same", "REST: clusters in a refresh: as many as in a batch, half of all, or all by an exact pass",
        choices=("same", "half", "full"), group="method", only=REST,
    )  # fmt: skip
    refresh_order: str = option(
        "uniform", "REST: clusters in random order, or those with the oldest rows first", choices=("uniform", "oldest"),
        group="method", only=REST,
    )  # fmt: skip
    refresh_mode: str = option(
        "train", "refresh with dropout and batch statistics, or without", choices=("train", "eval"), group="method",
        only=REFRESHED,
    )  # fmt: skip
    refresh_norm: str = option(
        AUTO, "BatchNorm of refreshes: by the batch's own statistics or by running ones; auto: by --refresh-mode",
        choices=(AUTO, "batch", "running"), group="method", only=REFRESHED,
    )  # fmt: skip


def fanouts_of(config: Any) -> tuple[int, ...]:
    """The fan-out of each layer, the first layer first."""
    given = config.fanout.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in given) or len(given) not in (1, config.num_layers):
        raise UserError(
            f"fanout is {config.fanout!r}; it must be a whole number of at least 1, or one for each of the "
            f"{config.num_layers} layers, such as {','.join(['10'] * config.num_layers)}"
        )
    return tuple(int(part) for part in given) * (config.num_layers if len(given) == 1 else 1)


def refuse_fanout(config: Any) -> None:
    """Refuse a given fan-out for a method that reads all neighbours."""
    if config.base not in SAMPLING:
        what = "samples nodes, not neighbours" if config.base in (*LAYERWISE, *SAINTS) else "reads all neighbours"
        raise UserError(
            f"fanout is {config.fanout!r}, but method {config.method} {what}; leave --fanout out, or give "
            f"--method {', '.join(SAMPLING[:-1])} or {SAMPLING[-1]}"
        )


def refuse_sampling(config: Any) -> None:
    """Refuse fan-outs that are no numbers, and options that sampled neighbours do not have."""
    fanouts_of(config)
    if config.base not in (*SAMPLING, *LAYERWISE, *SAINTS):
        return
    if config.model in ATTENDING:
        raise UserError(
            f"method is {config.method}, but model {config.model} does not sum over neighbours; give --method gas, or "
            "--model gcn, appnp, gcnii or gin"
        )
    if config.edge_dropout > 0 and config.base not in SAINTS:
        raise UserError(
            f"edge_dropout is {config.edge_dropout}, but method {config.method} samples neighbours instead; give "
            "--edge-dropout 0"
        )
    if config.history_dropout:
        raise UserError(
            f"history_dropout is true, but rows that method {config.method} reads from tables have no dropout; leave "
            "--history-dropout out, or give --method gas"
        )
    if config.base in FILLED_BY_USE:
        _refuse_exact_passes(config)


def _refuse_exact_passes(config: Any) -> None:
    """Refuse exact passes into tables that do not hold what an exact pass computes, or not for all nodes."""
    if config.eval_updates_history:
        raise UserError(
            f"eval_updates_history is true, but method {config.method} writes rows where it trains alone; leave "
            "--eval-updates-history out"
        )
    if config.rest == "rest" and config.refresh_batch == "full":
        raise UserError(
            f"refresh_batch is full, but method {config.method} writes rows where it trains alone; give "
            "--refresh-batch same or half"
        )
    if config.base == "refresh" and config.frequency == AUTO:
        raise UserError(
            f"frequency is auto, but method {config.method} refreshes the oldest rows of a cache, which have no clusters; "
            "give a whole number"
        )


def refuse_method(method: object) -> None:
    """Refuse a refresh of a method without tables."""
    base, _, refresh = str(method).partition("+")
    if base in TABLELESS and refresh in REFRESHES:
        raise UserError(
            f"method is {method!r}, but {base} has no tables to refresh; give --method {base}, or one of "
            f"{', '.join(method for method in METHODS if '+' in method)}"
        )


def refuse_model(config: Any) -> None:
    """Refuse a model whose layers a method cannot compute."""
    if config.base == "graphfm" and config.model in ATTENDING:
        raise UserError(
            f"method is {config.method}, but model {config.model} does not sum over neighbours; give --method "
            f"{config.method.replace('graphfm', 'gas')}, or --model gcn, appnp, gcnii or gin"
        )
    if config.base == "lmc-coded" and config.model == "gin":
        raise UserError(
            f"method is {config.method}, but layers of model gin have a ReLU inside, which incomplete sums get wrong; give "
            f"--method {config.method.replace('lmc-coded', 'lmc')}, or --model gcn, appnp or gcnii"
        )


def why_cached(config: Any) -> str | None:
    """Why neighbours' first embedding has to come from a table: more than a row of features is read for each. Else None."""
    if config.model in ATTENDING:
        return (
            f"the first layer of model {config.model} reads the features of all neighbours, those of a halo two edges away; "
            "give --first cached, or --model gcn, appnp, gcnii or gin"
        )
    if config.model in ("gcn", "gin") and not config.linear and config.drop_input and config.dropout > 0:
        return (
            "drop_input is on, and aggregates of dropped features are not computed once; give --first cached or "
            "--no-drop-input"
        )
    return None


def refuse_trim(config: Any) -> None:
    """Refuse to leave out rows that something reads."""
    if not config.trim or config.base in TABLELESS:
        return
    if config.base != "gas":
        raise UserError(
            f"trim is on, but method {config.method} also reads or writes rows that no training node depends on; give "
            "--no-trim, or --method gas, gas+rest or gas+rest-is"
        )
    if config.model in ATTENDING:
        raise UserError(
            f"trim is on, but model {config.model} does not sum over neighbours; give --no-trim, or --model gcn, appnp, "
            "gcnii or gin"
        )
    for name, way_out in (("eval_updates_history", "--no-eval-updates-history"), ("error_every", "--error-every 0")):
        if value := getattr(config, name):
            raise UserError(f"{name} is {value}, but with trim tables do not hold all rows; give {way_out} or --no-trim")
    if config.frequency == AUTO and config.target_drift > 0:
        raise UserError(
            f"target_drift is {config.target_drift}, but with trim rows of a batch are not all in the last table; give "
            "--target-age, or --no-trim"
        )


def refuse_first(config: Any) -> None:
    """Refuse to compute a first embedding for neighbours that reads more than a row of features for each."""
    if config.first == "exact" and (reason := why_cached(config)) is not None:
        raise UserError(f"first is exact, but {reason}")


def settled(config: Any, features: int, row: int, *, sparse: bool) -> Any:
    """The configuration with ``first`` cached or exact where it is auto: exact where neither is refused and a row of
    features takes no more bytes than one of the first table.

    Args:
        features: bytes of a node's features, as the first embedding reads them. row: bytes of a row of the first table.
        sparse: whether the first layer reads sparse features.
    """
    if config.first != AUTO:
        return config
    refused = config.base in TABLELESS or sparse or why_cached(config) is not None
    return config.changed(first="cached" if refused or features > row else "exact")


def placed(config: Any, history: str = "device", features: str = "device") -> Any:
    """The configuration with these places of tables and features where theirs are auto. Default: beside the model."""
    chosen = {"history": history, "features": features}
    return config.changed(**{name: place for name, place in chosen.items() if getattr(config, name) == AUTO})


def refuse_sparse_first(config: Any) -> None:
    """Refuse to compute a first layer of sparse features for neighbours."""
    if config.first == "exact":
        raise UserError(
            "first is exact, but features are sparse: their aggregate is not kept, and the first layer reads them two edges "
            "away; give --first cached, or --model appnp or gcnii"
        )


def refuse_sgc(config: Any) -> None:
    """Refuse models that are not linear in aggregated features."""
    if config.base != "sgc":
        return
    if config.model != "gcn" or config.linear:
        what = f"model is {config.model}" if config.model != "gcn" else "linear is on"
        raise UserError(f"{what}, but sgc is a linear model of aggregated features; give --model gcn --no-linear")
    for name, way_out in (("drop_input", "--no-drop-input"), ("edge_dropout", "--edge-dropout 0")):
        if value := getattr(config, name):
            raise UserError(f"{name} is {value}, but sgc aggregates features once; give {way_out}")


def refuse_refresh(config: Any) -> None:
    """Refuse options of refreshes that contradict each other."""
    if config.rest and config.refresh_norm == "batch" and config.refresh_mode == "eval":
        raise UserError(
            "refresh_norm is batch, but refresh_mode eval normalises by running statistics; give --refresh-norm running, or "
            "--refresh-mode train"
        )
    if config.frequency == AUTO and config.rest != "rest":
        raise UserError(
            f"frequency is auto, but method {config.method} does not support it; give --method gas+rest, or a whole number"
        )
    if config.base in OF_NODES[1] and config.frequency == AUTO and config.target_drift > 0:
        raise UserError(
            f"target_drift is {config.target_drift}, but rows of a batch of method {config.method} differ in age; give "
            "--target-age, or --method gas+rest"
        )
    if config.rest == "rest" and config.refresh_batch == "full" and config.frequency != 1:
        raise UserError(
            f"frequency is {config.frequency}, but refresh_batch full refreshes every row in one pass; give --frequency 1"
        )


def refuse_gradients(config: Any) -> None:
    """Refuse models without tables of gradients, and options for renewing tables that are not there."""
    if config.base in GRADIENTS and config.model in ATTENDING:
        raise UserError(
            f"method is {config.method}, but model {config.model} does not sum over neighbours, so {config.base} has no "
            "gradients for it; give --method gas, or --model gcn, appnp, gcnii or gin"
        )
    wanted, given = config.gradient_frequency, f"gradient_frequency is {config.gradient_frequency}, but"
    if wanted == 0:
        return
    if config.base not in GRADIENTS or config.rest != "rest":
        what = "no tables of gradients" if config.base not in GRADIENTS else "no refreshes that run backward"
        raise UserError(f"{given} method {config.method} has {what}; give --method lmc+rest")
    if config.frequency == AUTO or config.refresh_batch == "full":
        what = "frequency auto" if config.frequency == AUTO else "refresh_batch full"
        raise UserError(f"{given} {what} has no fixed number of batches; give a --frequency and --refresh-batch same")
    if wanted > config.frequency:
        raise UserError(
            f"{given} frequency is {config.frequency}; give --gradient-frequency 0 to {config.frequency}, or a larger "
            "--frequency"
        )
