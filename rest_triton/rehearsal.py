"""A step and an exact pass of the real engine on tensors that have shapes but no memory: what would be alive is counted."""

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .batches import Batch
from .config import Config
from .engine import Engine, tables_of
from .history import HistoryStore
from .inference import PIECE
from .lanes import InOrder, Lanes
from .models import build, model_named
from .ops import Adjacency
from .ops.backend import debug, use_backend
from .scene import Scene
from .sizes import Sizes

Tier = Literal["GPU", "host", "disk"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
META = torch.device("meta")

HALO_SHARE = 0.2  # of a batch's edges, as if they went to random nodes outside: 0.21 fits synthetic products, 0.09 arxiv
# Blocks below this come from glibc's heap, which does not shrink when they are freed. A hole is seldom used again for a
# block of its own size, for an aligned one asks for a little more: on the whole the heap grew to twice what was alive.
HEAP_BLOCK, HEAP_HOLES = 32 << 20, 2


def near(config: Config) -> Tier:
    """Where the model computes."""
    return "GPU" if config.device == "cuda" else "host"


def direct(config: Config) -> bool:
    """Whether tables are read where they are; on a CPU pinned ones are."""
    return config.history == "device" or (config.history == "pinned" and config.device == "cpu")


def batch_rows(config: Config, sizes: Sizes) -> int:
    """Nodes in a batch."""
    return sizes.nodes if config.base == "full" else -(-sizes.nodes * config.per_batch // config.parts)


def halo_rows(nodes: int, edges: int, rows: int) -> int:
    """How many nodes outside are next to a batch of ``rows`` nodes: a guess, on the high side where METIS cuts few edges.

    ``(N - R) * (1 - exp(-share * E/N * R/N))``: the distinct nodes outside that a share of the batch's edges hits at random.
    """
    return round((nodes - rows) * -math.expm1(-HALO_SHARE * edges / max(1, nodes) * rows / max(1, nodes)))


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, pool by pool: memory that was freed in one is not used again in another.

    Pools are the lanes on a GPU, where every stream has memory of its own, and small and large blocks on a CPU.
    """

    HEAP, MAPPED = "heap", "mapped"

    def __init__(self, lanes: Lanes, on_gpu: bool) -> None:
        super().__init__()
        self.lanes, self.on_gpu = lanes, on_gpu
        self._known: dict[int, weakref.ref[Any]] = {}
        self._now: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """From here on count anew what comes on top."""
        self._at_begin, self._most = dict(self._now), dict(self._now)

    @property
    def now(self) -> int:
        return sum(self._now.values())

    def extra(self) -> tuple[int, int]:
        """The most that was alive beyond what was there at ``begin``: (in the heap, elsewhere)."""
        extra = {pool: most - self._at_begin.get(pool, 0) for pool, most in self._most.items()}
        heap = extra.pop(self.HEAP, 0)
        return heap, sum(extra.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device == META:
                self._born(tensor.untyped_storage())
        return result

    def _born(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        pool = self.lanes.current if self.on_gpu else self.HEAP if size < HEAP_BLOCK else self.MAPPED

        def gone(_: Any) -> None:
            del self._known[key]
            self._now[pool] -= size

        self._known[key] = weakref.ref(storage, gone)
        self._now[pool] = self._now.get(pool, 0) + size
        self._most[pool] = max(self._most.get(pool, 0), self._now[pool])


class _Tables(HistoryStore):
    """Tables without memory. Rows that leave for far ones are held for as long as they may have to wait."""

    def __init__(self, nodes: int, widths: Sequence[int], config: Config, lanes: Lanes, dtype: torch.dtype) -> None:
        self.config = config
        waiting = InOrder.PENDING + 1 if config.history == "disk" else 1
        self._sent: deque[int] = deque(maxlen=waiting)
        # From a GPU they wait for the disk as copies on the host.
        self._kept: deque[Tensor] = deque(maxlen=1 if config.device == "cuda" else waiting)
        self.most_sent = self.scratch = 0
        super().__init__(nodes, widths, dtype=dtype, device=META, lanes=lanes)

    def like(self, widths: Sequence[int], dtype: torch.dtype, **_: Any) -> "HistoryStore":
        self.scratch = max(self.scratch, sum(self.num_nodes * width * dtype.itemsize for width in widths))
        return _Tables(self.num_nodes, widths, self.config, self.lanes, dtype)

    @property
    def direct(self) -> bool:
        return direct(self.config)

    def record(self, table: int, batch: Batch, h: Tensor, step: int, *, blend: float = 1.0) -> None:
        super().record(table, batch, h, step, blend=blend)
        if not self.direct:
            self._kept.append(h.detach())
            self._sent.append(h.nbytes)
            self.most_sent = max(self.most_sent, sum(self._sent))

    def arrived(self) -> int:
        """Nothing is on its way any more; returns the most that was."""
        most, self.most_sent = self.most_sent, 0
        self._kept.clear()
        self._sent.clear()
        return most

    @property
    def staging(self) -> int:
        return sum(buffer.rows.nbytes for buffer in self._buffers.values())


def _guessed_halo(batch: Batch, adj: Adjacency) -> Tensor:
    count = halo_rows(adj.num_nodes, adj.num_edges - adj.num_nodes, len(batch))
    return torch.empty(count, dtype=torch.int64, device=META)


class _GuessedBatch(Batch):
    def halo(self, adj: Adjacency) -> Tensor:
        return _guessed_halo(self, adj)


class _GuessingEngine(Engine):
    """Also the halos of batches that it makes itself are guessed."""

    def _halo(self, batch: Batch) -> Tensor | None:
        return None if self.store.direct else _guessed_halo(batch, self.scene.adj)

    def _of_nodes(self, nodes: Tensor) -> Batch:
        return _GuessedBatch(self.store.num_nodes, nodes=nodes, device=META)

    def pieces(self) -> list[Batch]:
        """The first three: the others take no more."""
        n, size = self.store.num_nodes, PIECE[self.on]
        bounds = [(a, min(a + size, n)) for a in range(0, min(n, 3 * size), size)]
        return [_GuessedBatch(n, ranges=(bound,), device=META) for bound in bounds]

    on = "cpu"


@dataclass(frozen=True)
class Rehearsal:
    """Bytes that the engine would have taken. ``exact`` and ``step`` come on top of the others, one at a time; ``heap`` is
    the larger one of what they took in small blocks. ``scratch`` are tables of an exact pass that are not where the model
    computes; ``exact_sent`` and ``step_sent`` rows on their way out."""

    widths: tuple[int, ...]
    parameters: int
    aggregated: int
    maps: int
    staging: int
    exact: int
    scratch: int
    step: int
    heap: int
    exact_sent: int
    step_sent: int


@lru_cache(maxsize=256)
def rehearse(sizes: Sizes, config: Config) -> Rehearsal:
    """A first fill, an exact pass and two steps of the engine, on tensors that have shapes but no memory."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    n, rows, lanes, exact_input = sizes.nodes, batch_rows(config, sizes), InOrder(), config.input == "exact"
    with debug(False), use_backend("kernel"), _Live(lanes, config.device == "cuda") as live:
        scale = empty(n)
        adj = Adjacency(
            empty(n + 1, dtype=torch.int64), empty(sizes.edges + n, dtype=torch.int32), scale, scale, _checked=True
        ).undirected()
        with torch.random.fork_rng(devices=[]):  # the run is to draw the weights that it would draw without a plan
            model = build(model_named(config.model), sizes.features, sizes.classes, config)
        model.to(META)
        parameters = list(model.parameters())
        widths = tables_of(model, exact_input) if config.base != "full" else []
        store = _Tables(n, widths, config, lanes, DTYPES[config.dtype])
        engine = _GuessingEngine(Scene(adj, empty(n, sizes.features), store, exact_input=exact_input), model, amp=config.amp)
        engine.on = config.device
        labels = empty(rows, dtype=torch.int64)
        live.begin()
        engine.fill()
        filled, exact_sent = live.extra(), store.arrived()
        live.begin()
        engine.exact()
        exact_heap, exact = (max(both) for both in zip(filled, live.extra(), strict=True))
        scratch = 0 if store.direct else store.scratch
        optimizer = torch.optim.Adam(parameters)
        # More than one range, as clusters mostly are: what belongs to their rows is copied, not viewed.
        ranges = ((0, rows - 1), (rows, rows + 1)) if 1 < rows < n else ((0, rows),)
        for number in (1, 2):  # buffers and the optimizer's state are made in the first
            batch, other = (_GuessedBatch(n, ranges=ranges, device=META) for _ in range(2))
            live.begin()
            engine.step(
                batch, number, lambda logits: torch.nn.functional.cross_entropy(logits, labels), optimizer,
                refresh=[other] * config.frequency if config.rest == "rest" else (),
                importance=config.frequency if config.rest == "rest-is" else 0,
            )  # fmt: skip
            (step_heap, step), step_sent = live.extra(), store.arrived()
        del batch, other
        count = sum(p.numel() for p in parameters)
        maps = sum(m.nbytes for pool in engine.maps.values() for m in pool._free) + engine.scene.outside().nbytes
    aggregated = 0 if engine.scene._aggregated is None else engine.scene._aggregated.nbytes
    heap = max(exact_heap, step_heap)
    return Rehearsal(
        tuple(widths), count, aggregated, maps, store.staging, exact - scratch, scratch, step, heap, exact_sent, step_sent
    )
