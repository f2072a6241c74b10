"""Formulas for the arrays that a run holds. :mod:`rest_triton.training.plan` adds them up.

A new model needs an entry in FAMILIES, a new place of tables one in TIERS. Functions in ARRAYS yield all other arrays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import expm1
from statistics import mean
from typing import Literal

from ..config import Config
from ..data.features import PIECE_ROWS, stays_sparse
from ..data.partition import is_kept
from ..data.partitioners import peak_bytes
from ..data.sizes import Sizes
from ..methods.options import (
    GRADIENTS,
    LAYERWISE,
    OF_NODES,
    SAINTS,
    SAMPLING,
    TABLELESS,
    placed,
    refuse_sparse_first,
    why_cached,
)
from ..nn import model_named
from ..nn.inference import CHUNK_ROWS
from ..utils.dtypes import DTYPES
from .traffic import feature_rows, table_bytes

Tier = Literal["GPU", "host", "disk"]
When = Literal["held", "exact", "step", "prepare", "divide"]

PROCESS = 530 << 20  # Python, torch, compiled kernels and BLAS's buffers, measured on two threads
CUDA_CONTEXT = 512 << 20  # assumed: it differs with GPU and driver
HALO_SHARE = 0.2  # of a batch's edges, taken as edges to random nodes outside: 0.21 fits synthetic products, 0.09 arxiv
ELEMENT = 10  # numbers of 4 bytes per nonzero element of a batch: counted from the code
WAITING = 5  # pending writes to the disk: four in the queue and one in progress


@dataclass(frozen=True)
class Array:
    """Memory for one purpose: its tier, its bytes, an explanation, and when it is held.

    setting: what moves it or makes it smaller, without another model. moved: the bytes of its rows that a step reads and
    writes where it is not beside the model.
    """

    name: str
    tier: Tier
    nbytes: int
    why: str
    when: When = "held"
    setting: str = ""
    moved: int = 0


@dataclass(frozen=True)
class Table:
    """A history table. place: a key of TIERS. rows: 0 for one for each node."""

    width: int
    dtype: str
    place: str
    rows: int = 0


@dataclass(frozen=True)
class Family:
    """The memory of a model, in numbers of float32.

    Args:
        tables: the widths of its history tables. weights: the number of parameters.
        kept: per row of a batch, for backward and gradients. outside: the same per row of its halo.
        either: per row of the batch or of the halo, whichever is larger.
        piece: per row of a piece of an exact pass. everywhere: per node in an exact pass.
        edges, piece_edges: per edge of a batch, and of a piece.
        aggregates_first: the aggregate of the features is held for the whole run.
        encodes: the first table holds encoded features, which an exact pass keeps.
    """

    tables: list[int]
    weights: int
    kept: int
    piece: int
    outside: int = 0
    either: int = 0
    everywhere: int = 0
    edges: int = 0
    piece_edges: int = 0
    aggregates_first: bool = False
    encodes: bool = False


def multiplies_features(s: Config) -> bool:
    """Whether features are only multiplied by weights. SGC aggregates them first."""
    return s.base != "sgc" and model_named(s.model).sparse_features


def first_rows(z: Sizes, s: Config) -> tuple[int, int, bool]:
    """(bytes of features that a first embedding is computed from, bytes of its row in a table, whether the first layer reads
    sparse features)."""
    model = FAMILIES[s.model](z, s)
    widest = DTYPES[s.feature_dtype].itemsize
    computed = (min(z.feature_bytes, widest) if model.encodes else widest) * z.features
    if sparse(z, s):
        computed = -(-8 * ((z.feature_nnz or 0) + z.nodes + 1) // z.nodes)
    return computed, DTYPES[s.dtype].itemsize * sum(model.tables[:1]), sparse(z, s) and not model.encodes


def first_embedding(z: Sizes, s: Config) -> str | None:
    """The bytes that are read for a neighbour's first embedding, by --first; None for a model without a choice."""
    computed, table, refused = first_rows(z, s)
    if s.base in TABLELESS or why_cached(s) is not None or table == 0 or refused:
        return None
    kind = "features" if FAMILIES[s.model](z, s).encodes else "aggregated features"
    less = "computed" if computed <= table else "read from a table"
    return (
        f"neighbours' first embedding: {'computed' if s.first == 'exact' else 'read from a table'}; a row takes "
        f"{computed:,} bytes of {kind} or {table:,} of a table, so fewer bytes are read if it is {less}"
    )


def sparse(z: Sizes, s: Config) -> bool:
    """Whether a run keeps its features sparse."""
    stored = z.feature_nnz is not None and stays_sparse(z.feature_nnz, z.nodes, z.features)
    return stored and multiplies_features(s)


def features_move(z: Sizes, s: Config) -> bool:
    """Whether features can have another place than the model's device, and another format."""
    return s.base != "sgc" and not (z.feature_nnz is not None and stays_sparse(z.feature_nnz, z.nodes, z.features))


def batch_setting(s: Config) -> str:
    """The setting that makes batches smaller, empty if there is none."""
    if s.base == "full":
        return ""
    return "batch_nodes" if s.base in OF_NODES[1] else "subgraph_nodes" if s.base in SAINTS else "batch_size"


def _row(z: Sizes, s: Config) -> int:
    """A row of features in a step. Sparse: its nonzero elements, by row and by column, and what lists them."""
    return ELEMENT * -(-(z.feature_nnz or 0) // z.nodes) if sparse(z, s) else z.features


def _weights(widths: Sequence[int], batch_norm: bool, normed: Sequence[int]) -> int:
    return sum(a * b + b for a, b in pairwise(widths)) + 2 * sum(normed) * batch_norm


def _gcn(z: Sizes, s: Config) -> Family:
    f, h, c, layers = z.features, s.hidden_channels, z.classes, s.num_layers
    piece, twice, row = (2 + s.residual) * h, layers * (s.batch_norm and s.residual), _row(z, s)
    first = row + (h if layers > 1 else c) if sparse(z, s) and not s.linear else 0  # features times W, also of the halo
    if s.linear:  # kept: of each layer the aggregate and the result
        weights, outside = (
            _weights([f, *[h] * (layers + 1), c], s.batch_norm, [h] * layers),
            (row + h) * (s.first == "exact"),
        )
        return Family([h] * layers, weights, row + (2 * layers + 3 + twice) * h + 2 * c, piece, outside, encodes=True)
    tables, narrows = [h] * (layers - 1), c if c < h and layers > 1 else 0  # narrow layers multiply the halo's rows first
    kept = (first or f) + (max(0, 2 * layers - 3) + twice + s.batch_norm) * h + 4 * c
    weights = _weights([f, *tables, c], s.batch_norm, tables)
    outside = 0 if s.base in (*GRADIENTS, *SAMPLING) else 2 * narrows  # which aggregate first in training
    outside += (f + (2 + s.batch_norm) * h) * (
        s.first == "exact" and layers > 1
    )  # the first layer's input, result, gradient
    either = h if tables else 0
    return Family(tables, weights, kept, piece + 2 * first, outside + first, either, narrows, aggregates_first=not first)


def _appnp(z: Sizes, s: Config) -> Family:
    f, h, c, hidden = z.features, s.hidden_channels, z.classes, [s.hidden_channels] * (s.mlp_layers - 1)
    start, exact = _row(z, s) + (1 + s.batch_norm) * sum(hidden), s.first == "exact"  # propagations keep nothing
    weights = _weights([f, *hidden, c], s.batch_norm, hidden)
    return Family([c] * s.num_layers, weights, start + 3 * c, 2 * h, (start + c) * exact, 2 * h, encodes=True)


def _gcnii(z: Sizes, s: Config) -> Family:
    f, h, c, layers = z.features, s.hidden_channels, z.classes, [s.hidden_channels] * s.num_layers
    two = not s.shared_weights
    weights = _weights([f, h], False, []) + _weights([h, c], s.batch_norm, layers) + len(layers) * (1 + two) * h * h
    row = _row(z, s)
    kept = row + (len(layers) * (2 + two + (s.batch_norm and s.residual)) + 3) * h + c
    return Family(layers, weights, kept, (3 + (two or s.residual)) * h, (row + h) * (s.first == "exact"), encodes=True)


def _gin(z: Sizes, s: Config) -> Family:
    f, h, c, layers = z.features, s.hidden_channels, z.classes, s.num_layers
    tables = [h] * (layers - 1)
    weights = layers + sum(a * h + h + h * b + b for a, b in pairwise([f, *tables, c])) + 2 * h * layers * s.batch_norm
    first = _row(z, s) + 2 * h if sparse(z, s) else 0  # features times W, also of the halo
    kept = (first or 2 * f) + ((3 + s.batch_norm) * layers - 1) * h + 4 * c  # of each layer input, what is between, result
    outside = first + (2 * f + (3 + s.batch_norm) * h) * (s.first == "exact" and layers > 1)
    return Family(tables, weights, kept, max(2 * (first or f), 3 * h), outside, aggregates_first=not first)


def _pna(z: Sizes, s: Config) -> Family:
    f, h, c, tables = z.features, s.hidden_channels, z.classes, [s.hidden_channels] * (s.num_layers - 1)
    weights = sum(13 * a * b + b for a, b in pairwise([f, *tables, c])) + 2 * sum(tables) * s.batch_norm
    kept = 17 * f + 19 * sum(tables) + max(4 * f, 13 * h) + 2 * c  # 12 aggregates of each layer's input, and intermediates
    edges = sum(tables) + max(2 * f, 3 * h) + 4 * s.num_layers  # messages; those of features need no gradient
    return Family(tables, weights, kept, 20 * max(f, h), 0, max(f, h), edges=edges, piece_edges=2 * max(f, h) + 4)


def _gat(z: Sizes, s: Config) -> Family:
    widths = [z.features, *[s.hidden_channels] * (s.num_layers - 1), z.classes]
    weights = sum(a * b + 3 * b for a, b in pairwise(widths)) + 2 * sum(widths[1:-1]) * s.batch_norm
    widths[0] = _row(z, s)
    kept = sum(a + 4 * b for a, b in pairwise(widths)) + sum(widths[1:-1]) * s.batch_norm
    outside = sum(a + b for a, b in pairwise(widths))  # the halo's rows, before and after W
    return Family(widths[1:-1], weights, kept, 3 * max(widths), outside)


FAMILIES: dict[str, Callable[[Sizes, Config], Family]] = {
    "gcn": _gcn, "appnp": _appnp, "gcnii": _gcnii, "gat": _gat, "gin": _gin, "pna": _pna,
}  # fmt: skip


class Run:
    """Quantities derived from the sizes of a data set and the settings of a run. here: the tier of the model."""

    def __init__(self, sizes: Sizes, settings: Config) -> None:
        z, s = self.z, self.s = sizes, placed(settings)
        n = z.nodes
        self.here: Tier = "GPU" if s.device == "cuda" else "host"
        self.model = FAMILIES[s.model](z, s.changed(num_layers=1) if s.base == "sgc" else s)
        if sparse(z, s) and not self.model.encodes:
            refuse_sparse_first(s)
        self.tables = tables(s, self.model)
        self.slots = min(n, s.cache_rows) * (s.base == "refresh")  # of a bounded cache
        self.tables = [replace(table, rows=self.slots) for table in self.tables]
        trims = s.trim and s.base not in TABLELESS
        self.reached = self.within(z.training if trims else 1.0)  # shares of nodes within 0, 1, … edges of a training node
        if trims:  # the last table is read one edge away
            self.tables = [
                replace(table, rows=round(n * self.reached[hops]))
                for table, hops in zip(self.tables, range(len(self.tables), 0, -1), strict=True)
            ]
        widths = self.model.tables if s.base in GRADIENTS else []
        if s.base == "lmc-coded":  # a table of the last layer's output, and no gradients of the first table's rows
            output = self.model.tables[-1] if self.model.encodes else z.classes
            self.tables, widths = [*self.tables, Table(output, s.dtype, s.history)], widths[1:]
        self.gradients = [Table(width, s.dtype, s.history) for width in widths]
        self.far = far = s.history == "disk" or (s.history == "pinned" and self.here == "GPU")
        self.direct = not ((far or trims) and (self.tables or self.gradients))
        self.mover = "history" * bool(self.tables + self.gradients)  # the setting that moves tables and scratch tables
        self.rows = n if s.base == "full" else -(-n * s.batch_size // s.num_parts)
        self.share = HALO_SHARE
        if s.base == "mvs":  # its nodes are scattered
            self.rows, self.share = min(n, s.batch_nodes), 1.0
        if s.base in SAMPLING:
            self.rows, self.share = round(mean(self.fields(s))), 1.0
        elif s.base in LAYERWISE:  # each layer has the rows of the next one, and those that were drawn for it
            self.rows = min(n, s.batch_nodes + s.layer_nodes * s.num_layers // 2)
        elif s.base in SAINTS:
            each = {"saint-node": 1, "saint-edge": 2, "saint-walk": 1 + s.walk_length}[s.base]
            self.rows = round(n * -expm1(-each * s.subgraph_nodes / n))
        elif s.base == "sgc":
            self.rows = min(n, s.batch_nodes)
        closed = s.base in ("cluster", "sgc", *LAYERWISE, *SAINTS)
        reading = round(self.rows * self.reached[max(0, len(self.tables) - 1)])  # rows of the first layer that reads a table
        self.halo = 0 if closed else self.around(reading)
        self.pulled = self.halo + self.rows * (s.base == "vrgcn")  # rows of a far table that a layer reads
        self.refreshed = 0  # rows that one refresh computes
        if s.rest == "rest-is":
            self.refreshed = -(-self.halo // s.refreshes)
        elif s.rest == "rest" and s.refresh_batch != "full":
            self.refreshed = self.rows if s.refresh_batch == "same" else n // 2
        first = self.model.tables[: 3 if self.model.encodes else 2]  # encoded features, and two for layers in turn
        scored = self.within(z.labelled if trims else 1.0)[len(self.model.tables) : 0 : -1]
        place = s.history if far and (self.tables or self.gradients) else "device"
        self.scratch = [Table(w, "float32", place, round(n * share)) for w, share in zip(first, scored, strict=False)]
        edges = z.edges + n
        self.reversed = z.directed or s.edge_dropout > 0.0  # edge dropout needs the reverse's edge ids
        self.reverse = (self.csr(edges) + (4 if edges < 2**31 else 8) * edges) * self.reversed
        self.dense = n * z.features * z.feature_bytes
        self.labels = n * ((z.classes if z.multilabel else 8) + 3)
        self.sparse = sparse(z, s)
        stored = self.stored_features = self.dense if z.feature_nnz is None else 8 * (z.feature_nnz + n + 1)
        self.features = stored if self.sparse else n * z.features * min(z.feature_bytes, DTYPES[s.feature_dtype].itemsize)
        places: dict[str, Tier] = {"device": self.here, "pinned": "host", "disk": "disk"}
        self.place = places[s.features]  # of features and of their aggregate
        self.fetches = self.place != self.here  # rows for each batch
        self.apart = (s.features, s.feature_dtype) != ("device", "float32")
        self.stored = self.csr(z.edges) + stored + self.labels

    def csr(self, edges: int) -> int:
        return 8 * (self.z.nodes + 1) + (4 if self.z.nodes <= 2**31 else 8) * edges

    def within(self, share: float) -> list[float]:
        """The shares of nodes within 0, 1, … edges of a share of them, if edges end at random nodes."""
        found, each = [share], 1 + self.z.edges / self.z.nodes
        for _ in range(len(self.model.tables) + 1):
            found.append(1 - (1 - found[-1]) ** each)
        return found

    def fields(self, s: Config) -> list[int]:
        """The rows of each layer's input and of the result, if all targets sample neighbours at random."""
        n, rows = self.z.nodes, [min(self.z.nodes, s.batch_nodes)]
        for layer in reversed(range(len(s.fanouts))):
            rows.insert(0, rows[0] + round((n - rows[0]) * -expm1(-self.sampled(s, layer, rows[0]) / n)))
        return rows

    def sampled(self, s: Config, layer: int, rows: int) -> float:
        """The edges of a layer's sample, none of features or of inputs that are computed for all neighbours."""
        exact = layer < (not self.model.encodes) + (s.first == "exact")
        return 0.0 if exact else rows * min(s.fanouts[layer], self.z.edges / self.z.nodes)

    def around(self, rows: int) -> int:
        """An estimate of the halo's size for ``rows`` nodes. It is too high where clusters cut few edges.

        ``(N - R) * (1 - exp(-share * E/N * R/N))``: the distinct nodes outside, if a share of the edges ends at random ones.
        """
        n = self.z.nodes
        return round((n - min(rows, n)) * -expm1(-self.share * self.z.edges / n * rows / n))

    def nbytes(self, table: Table) -> int:
        """The bytes of a table's rows."""
        return self.allocated((table.rows or self.z.nodes) * table.width * DTYPES[table.dtype].itemsize, table.place)

    def allocated(self, size: int, place: str) -> int:
        """The bytes of an array. Torch allocates pinned memory in powers of two."""
        return 1 << (size - 1).bit_length() if place == "pinned" and self.here == "GPU" and size > 0 else size


def tables(s: Config, model: Family) -> list[Table]:
    """The tables of a run. Methods without tables have none, and the first embedding has none if it is exact."""
    widths = [] if s.base in TABLELESS else model.tables[s.first == "exact" :]
    widths = widths[-1:] if s.base == "refresh" else widths
    return [Table(width, s.dtype, s.history) for width in widths]


#: By the place of a table: (tier of its rows, tier of its stamps).
TIERS: dict[str, Callable[[Run], tuple[Tier, Tier]]] = {
    "device": lambda run: (run.here, run.here),
    "pinned": lambda run: ("host", run.here),
    "disk": lambda run: ("disk", "disk"),
}


def _process(run: Run) -> Iterator[Array]:
    yield Array("process", "host", PROCESS, "Python, torch and compiled kernels: measured")
    yield Array("CUDA context", "GPU", CUDA_CONTEXT * (run.here == "GPU"), "assumed; it differs with GPU and driver")
    yield Array("weights", run.here, 16 * run.model.weights, f"{run.model.weights:,}, gradients, Adam's two moments")


def _graph(run: Run) -> Iterator[Array]:
    z, n = run.z, run.z.nodes
    size = run.csr(z.edges + n) + 4 * n + run.reverse
    yield Array("graph", run.here, size, "CSR with self-loops, scales" + ", reverse with edge names" * run.reversed)
    bits = 8 * min(z.feature_bytes, DTYPES[run.s.feature_dtype].itemsize)
    form = f"CSR of {z.feature_nnz:,} nonzeros" if run.sparse else f"{bits} bits"
    size, read = run.allocated(run.features, run.s.features), [run.fetches * rows for rows in feature_rows(run)]
    mover = "features" * features_move(z, run.s)
    what, moved = f"[{n:,}, {z.features}], {form}", read[0] * run.features // n
    yield Array("features", run.place, size, what, setting=mover, moved=moved)
    row = DTYPES[run.s.feature_dtype].itemsize * z.features
    aggregated = run.allocated(n * row * run.model.aggregates_first, run.s.features)
    what = f"the first layer's, computed once, {run.s.feature_dtype}"
    yield Array("aggregated features", run.place, aggregated, what, setting=mover, moved=read[1] * row)
    yield Array("labels", "host", run.labels + 8 * n, "labels, masks, order of nodes")
    yield Array("ids of batches", run.here, 8 * n * (1 + (run.refreshed > 0)), "int64, of an epoch and of refreshes")
    drawn = round(n * (8 + 20 * run.s.importance_share)) * (run.s.base == "mvs")
    yield Array("importance", "host", drawn, "ids and probabilities of training nodes, at most all nodes")
    before = 4 * n * z.features * (run.s.base == "sgc" and run.s.num_layers > 1)
    yield Array("features of sgc", run.here, before, "aggregated but for the last time, float32")
    weighted = (4 + 4) * (z.edges + n) + run.csr(z.edges + n)
    yield Array("weights of edges", run.here, weighted * (run.s.base in SAINTS), "one per edge; the reverse with edge names")
    counted = (run.csr(z.edges) + 12 * n) * (run.s.base in SAINTS)
    yield Array("graph to sample", "host", counted, "without self-loops; weights and sums of degrees")
    yield Array("sampling weights", run.here, 8 * n * (run.s.base == "fastgcn"), "float64 per node")
    yield Array("scales of a batch", run.here, 4 * n * (run.s.base == "cluster"), "float32 per node", "step")
    maps = 2 + (run.model.outside > 0 and run.direct and run.halo > 0) + (run.refreshed > 0)
    maps += run.reversed and not run.direct and run.gradients != []  # of the nodes that read a batch
    yield Array("position maps", run.here, 4 * n * maps, f"{maps} of int32 per node")
    stored = 0 if z.prepared else run.stored - run.dense * z.mapped
    yield Array("prepared graph", "disk", stored, "made once below the root; the download is not counted")


def _tables(run: Run) -> Iterator[Array]:
    for name, tables in (("history tables", run.tables), ("gradient tables", run.gradients)):
        moved = table_bytes(run, gradients=tables is run.gradients)
        for table in tables[:1]:  # all of them have one place
            rows, why = TIERS[table.place](run)[0], f"{len(tables)} of widths "
            why += f"{', '.join(map(str, sorted({t.width for t in tables})))}, {table.dtype}"
            why += f"; with {', '.join(f'{t.rows:,}' for t in tables)} rows by a guess" * (run.reached[0] < 1)
            yield Array(name, rows, sum(map(run.nbytes, tables)), why, setting="history", moved=moved)
    for table in (run.tables + run.gradients)[:1]:
        size = sum(4 * (table.rows or run.z.nodes) for table in run.tables + run.gradients)
        yield Array("stamps", TIERS[table.place](run)[1], size, "int32 per row of a table", setting="history")
    yield Array("slots", run.here, (4 * run.z.nodes + 8 * run.slots) * (run.slots > 0), "of the cache: by node, and back")


def _far(run: Run) -> Iterator[Array]:
    """Copies of rows for tables that are not on the model's device."""
    if run.direct:
        return
    piece, width, item = CHUNK_ROWS[run.s.device], max(t.width for t in run.scratch), DTYPES[run.s.dtype].itemsize
    numbered = run.s.trim and run.z.labelled < 1  # scratch tables are then fetched from, too
    fetched = 4 * (piece + run.around(piece)) * (run.far or numbered)
    yield Array(
        "staging buffers",
        run.here,
        2 * 5 * width * max(fetched, item * run.pulled) // 4,
        "two, of a guessed halo's rows and a quarter more",
        setting=batch_setting(run.s),
    )
    held = item * run.halo * sum(t.width for t in run.tables) * (run.s.rest == "rest-is" and run.s.base not in SAMPLING)
    yield Array("refreshed halo", run.here, 5 * held // 4, "rows of all tables, a quarter more")
    read = item * run.halo * sum(t.width for t in run.gradients) * (1 + (run.s.gradient_frequency > 0))
    yield Array("gradients of the halo", run.here, 5 * read // 4, "rows of all gradient tables, a quarter more")
    averages = item * run.rows * sum(t.width for t in run.tables) * (run.s.base == "graphfm-ib")
    yield Array("averages of a batch", run.here, 5 * averages // 4, "rows of all tables, a quarter more")
    yield Array("rows of a piece", run.here, 2 * width * fetched, "and of its guessed halo, while they are read", "exact")
    waiting = WAITING if run.s.history == "disk" else int(run.far)
    yield Array("rows to be written", "host", waiting * 4 * piece * width, "copies that wait", "exact")
    sent = item * (run.rows + run.refreshed) * sum(t.width for t in (run.tables + run.gradients)[:waiting])
    yield Array("rows to be written", "host", sent, "copies that wait", "step")


def _exact(run: Run) -> Iterator[Array]:
    n, model = run.z.nodes, run.model
    for table in run.scratch[:1]:
        rows, why = TIERS[table.place](run)[0], f"{len(run.scratch)} of float32, layers in turn"
        yield Array("scratch tables", rows, sum(map(run.nbytes, run.scratch)), why, "exact", setting=run.mover)
    if run.fetches and model.aggregates_first:
        read = 4 * (2 * PIECE_ROWS + run.around(PIECE_ROWS)) * run.z.features
        yield Array("rows to aggregate", run.here, read, "of a piece of the features", "exact")
    piece = 4 * CHUNK_ROWS[run.s.device] * (model.piece + model.piece_edges * run.z.edges // n)
    yield Array("a piece", run.here, piece, "its rows in one layer", "exact")
    first = 4 * n * model.everywhere * run.direct  # far tables are read in pieces
    yield Array("rows multiplied first", run.here, first, "[N, classes]", "exact", setting=run.mover)
    results = 8 * min(n, CHUNK_ROWS[run.s.device]) * run.z.classes
    yield Array("results", run.here, results, "of a piece, and its rows to score; only counts are kept", "exact")


def _step(run: Run) -> Iterator[Array]:
    model, share = run.model, mean(run.reached[: len(run.model.tables) + (not run.model.encodes)] or [1.0])
    rows, halo, refreshed = round(share * run.rows), run.halo * (model.outside > 0), round(share * run.refreshed)
    if run.s.base == "lmc-coded":  # computes rows of the halo, too
        rows, halo, refreshed = rows + run.halo, 0, refreshed + run.around(refreshed)
    size = 4 * (rows * model.kept + halo * model.outside + max(rows, halo) * model.either)
    size += 4 * rows * run.z.edges // run.z.nodes * model.edges
    why = f"for backward, of {rows:,} rows" + f" and perhaps {halo:,} around them" * (halo > 0)
    yield Array("activations", run.here, size, why, "step", setting=batch_setting(run.s))
    dropped = 4 * run.halo * run.z.features * (run.fetches and model.aggregates_first and run.s.edge_dropout > 0)
    yield Array("features of the halo", run.here, dropped, "for dropout of edges", "step")
    if run.s.base in SAMPLING:
        fields = run.fields(run.s)
        edges = [round(run.sampled(run.s, layer, count)) for layer, count in enumerate(fields[1:])]
        ends = sum(a + b for (a, b), count in zip(pairwise(fields), edges, strict=True) if count)
        size = 12 * (sum(edges) + ends)
        yield Array("samples", run.here, size, f"{sum(edges):,} edges: nodes, columns, rows; pointers and scales", "step")
    widest = max(model.tables, default=0)
    refresh = refreshed * (model.kept if run.s.gradient_frequency else 3 * widest)
    if run.s.first == "exact":  # first embeddings around them, while they are computed, and when they are read
        beside = run.around(refreshed)
        refresh = max(refresh + beside * widest, refreshed * widest + beside * (_row(run.z, run.s) + 2 * widest))
        refresh *= run.tables + run.gradients != []  # else nothing is refreshed
    yield Array("a refresh", run.here, 4 * refresh, f"{refreshed:,} rows", "step", setting=batch_setting(run.s))
    pushed = run.halo * (run.s.base == "graphfm" and run.s.push_momentum > 0)
    first = (model.tables[0] if model.encodes else run.z.features) * bool(model.tables)
    push = 4 * pushed * (2 * widest + max(widest, first))
    yield Array("a push", run.here, push, f"perhaps {pushed:,} rows around a batch, without gradients", "step")


def _prepare(run: Run) -> Iterator[Array]:
    z, n = run.z, run.z.nodes
    yield Array("process", "host", PROCESS, "as above", "prepare")
    ordered = run.csr(z.edges) + run.labels + 12 * n
    yield Array("graph in new order", "host", ordered, "edges, labels; the old one is mapped", "prepare")
    made = run.stored_features + (0 if z.feature_nnz is None or run.sparse else run.dense)
    mover, made = "features" * features_move(z, run.s), made * (not run.apart)
    yield Array("features in new order", "host", made, "the old ones are mapped", "prepare", setting=mover)
    adjacency = run.csr(z.edges + n) + 4 * n + 3 * run.reverse // 2
    yield Array("adjacency", "host", adjacency, "made from it, with scratch", "prepare")


def _divide(run: Run) -> Iterator[Array]:
    z, s = run.z, run.s
    num_parts = min(s.num_parts, z.nodes)
    if num_parts in (1, z.nodes) or (z.fingerprint and is_kept(s.root, z.fingerprint, num_parts, s.partition)):
        return
    edges = (1 + z.directed) * z.edges
    title, peak = peak_bytes(s.partition, z.nodes, edges)
    if peak == 0:
        return
    yield Array("process", "host", PROCESS, "as above", "divide")
    yield Array("undirected edges", "host", run.csr(edges) * z.directed, "the graph is mapped", "divide")
    why = f"{title}, a process of its own: the most for a graph of this size"
    yield Array("partitioner", "host", peak, why, "divide", "partition")


ARRAYS = (_process, _graph, _tables, _far, _exact, _step, _prepare, _divide)
