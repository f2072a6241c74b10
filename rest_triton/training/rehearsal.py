"""A step and an exact pass of the real engine on tensors that have shapes but no memory: what would be alive is counted."""

import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..config import Config
from ..data.sizes import Sizes
from ..history.history import History
from ..history.streams import Streams, SyncStreams
from ..methods.engine import Engine, tables_of
from ..nn import build, model_named
from ..nn.inference import PIECE
from ..nn.scene import Scene
from ..ops import Adjacency
from ..ops.backend import debug, use_backend
from ..sampling.batch import Batch

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
    return sizes.nodes if config.base == "full" else -(-sizes.nodes * config.batch_size // config.num_parts)


def refreshed_rows(config: Config, sizes: Sizes) -> int:
    """Nodes in a batch that REST refreshes; none where it refreshes all of them by an exact pass."""
    if config.rest != "rest" or config.refresh_batch == "full":
        return 0
    clusters = config.batch_size if config.refresh_batch == "same" else -(-config.num_parts // 2)
    return -(-sizes.nodes * clusters // config.num_parts)


def pinned_bytes(size: int) -> int:
    """What torch takes for ``size`` bytes of pinned memory: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0


def halo_rows(nodes: int, edges: int, rows: int) -> int:
    """How many nodes outside are next to a batch of ``rows`` nodes: a guess, on the high side where METIS cuts few edges.

    ``(N - R) * (1 - exp(-share * E/N * R/N))``: the distinct nodes outside that a share of the batch's edges hits at random.
    """
    return round((nodes - rows) * -math.expm1(-HALO_SHARE * edges / max(1, nodes) * rows / max(1, nodes)))


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, pool by pool: memory that was freed in one is not used again in another.

    Pools are the streams on a GPU, where every stream has memory of its own, and small and large blocks on a CPU. What is
    not where the model computes has pools of its own: tables that are far away, and results on the host.
    """

    HEAP, MAPPED, FAR, RESULT = "heap", "mapped", "far", "result"

    def __init__(self, streams: Streams, config: Config) -> None:
        super().__init__()
        self.streams, self.on_gpu = streams, config.device == "cuda"
        self.pinned = self.on_gpu and config.history == "pinned"
        self._known: dict[int, weakref.ref[Any]] = {}
        self._now: dict[str, int] = {}
        self._is_far = False
        self.begin()

    def begin(self, result: tuple[int, int] | None = None) -> None:
        """From here on count anew what comes on top. result: the shape of what is put together on the host."""
        self._at_begin, self._most, self._result = dict(self._now), dict(self._now), result

    @contextmanager
    def far(self, yes: bool = True) -> Iterator[None]:
        """What is made in the block is far away."""
        before, self._is_far = self._is_far, self._is_far or yes
        try:
            yield
        finally:
            self._is_far = before

    def extra(self) -> dict[str, int]:
        """The most that was alive beyond what was there at ``begin``: ``heap``, ``far``, ``result``, and all others
        together as ``mapped``."""
        extra = {pool: most - self._at_begin.get(pool, 0) for pool, most in self._most.items()}
        apart = {pool: extra.pop(pool, 0) for pool in (self.HEAP, self.FAR, self.RESULT)}
        return apart | {self.MAPPED: sum(extra.values())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device == META:
                self._born(tensor.untyped_storage(), tuple(tensor.shape))
        return result

    def _pool(self, size: int, shape: tuple[int, ...]) -> str:
        if self._is_far:
            return self.FAR
        if shape == self._result:
            return self.RESULT
        return self.streams.current if self.on_gpu else self.HEAP if size < HEAP_BLOCK else self.MAPPED

    def _born(self, storage: torch.UntypedStorage, shape: tuple[int, ...]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        pool = self._pool(size, shape)
        if pool == self.FAR and self.pinned:
            size = pinned_bytes(size)

        def gone(_: Any) -> None:
            del self._known[key]
            self._now[pool] -= size

        self._known[key] = weakref.ref(storage, gone)
        self._now[pool] = self._now.get(pool, 0) + size
        self._most[pool] = max(self._most.get(pool, 0), self._now[pool])


class _Waiting:
    """Rows that leave for far tables, held for as long as they may have to wait."""

    def __init__(self, config: Config) -> None:
        self.room = SyncStreams.PENDING + 1 if config.history == "disk" else 1
        self._sizes: deque[int] = deque(maxlen=self.room)
        # From a GPU they wait for the disk as copies on the host.
        self._rows: deque[Tensor] = deque(maxlen=1 if config.device == "cuda" else self.room)
        self._most = 0

    def send(self, rows: Tensor) -> None:
        self._rows.append(rows)
        self._sizes.append(rows.nbytes)
        self._most = max(self._most, sum(self._sizes))

    def arrived(self) -> int:
        """Nothing is on its way any more; returns the most bytes that ever were since the last question."""
        most, self._most = self._most, 0
        self.finish()
        return most

    def finish(self) -> None:
        self._rows.clear()
        self._sizes.clear()


class _Tables(History):
    """Tables without memory."""

    def __init__(
        self, nodes: int, widths: Sequence[int], config: Config, live: _Live, waiting: _Waiting, dtype: torch.dtype
    ) -> None:
        self.config, self.live, self.waiting = config, live, waiting
        with live.far(config.history == "disk"):  # stamps, too
            super().__init__(nodes, widths, dtype=dtype, device=META, streams=live.streams)

    def _zeros(self, width: int) -> Tensor:
        with self.live.far(not self.direct):
            return super()._zeros(width)

    def like(self, widths: Sequence[int], dtype: torch.dtype, **_: Any) -> "History":
        return _Tables(self.num_nodes, widths, self.config, self.live, self.waiting, dtype)

    @property
    def direct(self) -> bool:
        return direct(self.config)

    def record(self, table: int, batch: Batch, h: Tensor, step: int, *, blend: float = 1.0) -> None:
        super().record(table, batch, h, step, blend=blend)
        if not self.direct:
            self.waiting.send(h.detach())

    def close(self) -> None:
        super().close()
        self.waiting.finish()

    @property
    def staging(self) -> int:
        return sum(buffer.rows.nbytes for buffer in self._buffers.values())


class _GuessedBatch(Batch):
    def halo(self, adj: Adjacency) -> Tensor:
        if self.found is not None:
            return self.found
        count = halo_rows(adj.num_nodes, adj.num_edges - adj.num_nodes, len(self))
        return torch.empty(count, dtype=torch.int64, device=META)


class _Pieces(list[Batch]):
    """A few and the last one: the others take no more, but for their ids, which all of them keep until the pass is over.

    Args:
        waiting: for how many of them rows may be on their way to far tables.
    """

    def __init__(self, nodes: int, size: int, waiting: int) -> None:
        begins = range(0, nodes, size)
        few = min(waiting + 1, len(begins) - 1)
        run = (*begins[:few], begins[-1])
        super().__init__(_GuessedBatch(nodes, ranges=((a, min(a + size, nodes)),), device=META) for a in run)
        others, block = size * len(begins[few:-1]), HEAP_BLOCK // 16  # small blocks, as each piece's are, but not thousands
        self.others = [torch.empty(min(block, others - a), dtype=torch.int64, device=META) for a in range(0, others, block)]


class _Autocast(TorchFunctionMode):
    """torch's autocast, which tensors without memory do not have: products are of bfloat16."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.nn.functional.linear, torch.addmm, torch.mm):
            args = tuple(a.bfloat16() if isinstance(a, Tensor) else a for a in args)
        return func(*args, **(kwargs or {}))


class _GuessingEngine(Engine):
    """Also the halos of batches that it makes itself are guessed."""

    def _autocast(self) -> AbstractContextManager[Any]:
        return _Autocast() if self.amp else nullcontext()

    def _of_nodes(self, nodes: Tensor) -> Batch:
        return _GuessedBatch(self.store.num_nodes, nodes=nodes, device=META)

    def pieces(self) -> list[Batch]:
        assert isinstance(self.store, _Tables)
        return _Pieces(self.store.num_nodes, PIECE[self.store.config.device], self.store.waiting.room)


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
    """Exact passes and steps of the engine, more than one of each, on tensors that have shapes but no memory: what stays
    (maps, buffers, ids of batches, the optimizer's state) is made in the first; what comes on top is counted in the last.

    Args:
        config: with a device that is ``cpu`` or ``cuda``.
    """

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    n, exact_input = sizes.nodes, config.input == "exact"
    with torch.random.fork_rng(devices=[]):  # the run is to draw the weights that it would draw without a plan
        model = build(model_named(config.model), sizes.features, sizes.classes, config).to(META)
    parameters = list(model.parameters())
    widths = tables_of(model, exact_input) if config.base != "full" else []
    if not widths:
        config = config.changed(history="device")  # also what would be scratch tables elsewhere is there
    with debug(False), use_backend("kernel"), _Live(SyncStreams(), config) as live:
        scale, col = empty(n), empty(sizes.edges + n, dtype=torch.int32)
        adj = Adjacency(empty(n + 1, dtype=torch.int64), col, scale, scale, _checked=True).undirected()
        if config.edge_dropout > 0.0:
            adj = replace(adj, reverse=replace(adj, reverse=None, edge_id=col))
        waiting = _Waiting(config)
        store = _Tables(n, widths, config, live, waiting, DTYPES[config.dtype])
        scene = Scene(adj, empty(n, sizes.features), store, edge_dropout=config.edge_dropout, exact_input=exact_input)
        engine = _GuessingEngine(scene, model, amp=config.amp)
        result = None if store.direct or config.device == "cpu" else (n, sizes.classes)
        (engine.fill if widths else engine.exact)()
        waiting.arrived()
        live.begin(result)
        engine.fill()
        filled, sent = live.extra(), waiting.arrived()
        live.begin(result)
        engine.exact()
        exact = {pool: max(most, filled[pool]) for pool, most in live.extra().items()}
        exact_sent = max(sent, waiting.arrived())
        optimizer = torch.optim.Adam(parameters)
        batch, other = (_ranges(n, count) for count in (batch_rows(config, sizes), refreshed_rows(config, sizes)))
        labels = empty(len(batch), dtype=torch.int64)
        for number in (1, 2):
            live.begin()
            engine.step(
                batch, number, lambda logits: torch.nn.functional.cross_entropy(logits, labels), optimizer,
                refresh=[other] * config.refreshes if len(other) else (),
                importance=config.refreshes if config.rest == "rest-is" else 0,
                refresh_training=config.refresh_mode == "train",
            )  # fmt: skip
            step, step_sent = live.extra(), waiting.arrived()
        maps = [free for pool in engine.maps.values() for free in pool._free]
    return Rehearsal(
        widths=tuple(widths),
        parameters=sum(p.numel() for p in parameters),
        aggregated=0 if scene._aggregated is None else scene._aggregated.nbytes,
        maps=sum(m.nbytes for m in (*maps, scene._outside) if m is not None),
        staging=store.staging,
        exact=exact[live.MAPPED],
        scratch=exact[live.FAR],
        step=step[live.MAPPED],
        heap=max(exact[live.HEAP], step[live.HEAP]),
        exact_sent=exact_sent,
        step_sent=step_sent,
    )


def _ranges(nodes: int, rows: int) -> Batch:
    """More than one range, as clusters mostly are: what belongs to their rows is copied, not viewed."""
    ranges = ((0, rows - 1), (rows, rows + 1)) if 1 < rows < nodes else ((0, rows),)
    return _GuessedBatch(nodes, ranges=ranges, device=META)
