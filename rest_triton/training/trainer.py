"""The training of one model: steps, epochs, evaluation and the state for checkpoints."""

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Config
from ..data.clusters import ClusterData
from ..data.features import Reordered, SparseRows
from ..history.age import ages, mean_age
from ..history.constant import Storage
from ..history.history import INPUT, History
from ..kernels._hash import mix64
from ..methods.engine import Engine
from ..methods.loss import Loss
from ..methods.options import placed, settled
from ..methods.registry import METHODS, method_for, refresh_for
from ..nn import HistoryGNN, build, model_named, parameter_groups
from ..nn.features import Features
from ..nn.inference import Inference
from ..sampling.batch import Batch
from ..sampling.reach import Reach
from ..utils.dtypes import DTYPES
from ..utils.progress import notice
from .ahead import one_ahead
from .diagnosis import NotFinite, diagnose
from .metrics import Scores
from .staleness import compared, exact_engine, mean_distance, table_staleness

PHASES = ("data", "refresh", "train", "evaluation")
AHEAD_THREADS = 3  # from so many on, a thread prepares the next batch; fewer are busy with this one
Prepared = tuple[Batch, Loss]
Show = Callable[[int, int, float | None], None]
PROCESSOR_TIME = "REST_TRITON_PROCESSOR_TIME"  # a variable of the environment


class Clock:
    """Seconds by phase, measured on the host. A GPU may run the work of one phase during the next.

    With the variable ``REST_TRITON_PROCESSOR_TIME`` they are processor time: that of all threads of this process.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.now = time.process_time if os.environ.get(PROCESSOR_TIME) else time.perf_counter

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - begin


def _stored(x: Reordered, storage: Storage, device: torch.device) -> Features:
    """Features in their place. They keep their format if it is no wider than the asked one."""
    dtype = x.dtype if x.dtype.itemsize <= storage.dtype.itemsize else storage.dtype
    table = replace(storage, dtype=dtype).table("features", (x.shape[0], x.shape[1]), x.pieces(), device)
    return Features(table, device)


class Trainer:
    """A model with its optimizer, tables and batches, from a configuration.

    Args:
        config: its device is ``cpu`` or ``cuda``. loaded: the data, by :func:`load_data`.
        model: a class with a constructor of in_channels, out_channels and settings by name; default: the configuration's.
        folder: for tables on disk. history: the class or function that makes the tables.

    Example::

        trainer = Trainer(config, load_data(config))
        trainer.begin()
        for epoch in range(1, 11):
            print(trainer.epoch(epoch), trainer.evaluate())
    """

    def __init__(
        self, config: Config, loaded: ClusterData, model: type[HistoryGNN] | None = None, folder: Path | None = None,
        history: Callable[..., History] = History,
    ) -> None:  # fmt: skip
        self.loaded, self.device, graph = loaded, torch.device(config.device), loaded.graph
        assert graph.num_classes is not None
        config = placed(config)  # where nothing was planned
        torch.manual_seed(config.seed)  # for the weights; nothing else uses torch's generator
        kind, layers = model_named(config.model) if model is None else model, METHODS[config.base].layers
        shape = config if layers is None else config.changed(num_layers=layers)
        self.model = build(kind, loaded.x.shape[1], graph.num_classes, shape).to(self.device)
        self.config = config = self._settled(config, own=model is not None)
        self.method = method_for(config, loaded.ptr, config.device, graph)
        self.refresh = refresh_for(config, self.method)
        kinds = self.method.tables(self.model)
        place: dict[str, Any] = dict(place=config.history, fingerprint=loaded.fingerprint) if kinds else {}
        if place and config.history == "disk":
            place |= dict(folder=folder or Path("history"))
        widths = kinds.pop(INPUT, [])
        if self.method.table_rows is not None:
            place |= dict(rows=[self.method.table_rows] * len(widths))
        self.scored = self._trim()
        if (reach := self.method.reach) is not None:
            first, layers = self.method.first_table(self.model), self.model.num_layers
            place |= dict(rows=[reach.sizes[layers - layer] for layer in range(first, layers)], numbers=reach.numbers)
        self.history = history(graph.num_nodes, widths, kinds=kinds, dtype=DTYPES[config.dtype], device=self.device, **place)
        storage = Storage(config.features, DTYPES[config.feature_dtype], loaded.folder, loaded.normalise)
        x = _stored(loaded.x, storage, self.device) if isinstance(loaded.x, Reordered) else loaded.x
        x = self.method.bind(loaded.adj, x)
        self.engine = Engine(
            self.model, self.method, loaded.adj, x, self.history, storage=storage, edge_dropout=config.edge_dropout,
            seed=mix64(config.seed) >> 1, amp=config.amp, history_dropout=config.history_dropout,
        )  # fmt: skip
        self.optimizer = self._optimizer()
        self.ahead = self.method.ahead and config.device == "cpu" and torch.get_num_threads() >= AHEAD_THREADS
        self.step = 0  # updates of the weights
        self.clock = Clock()

    def _trim(self) -> Reach | None:
        """Find the nodes that training depends on, if asked to. Returns those that scores depend on, None for all."""
        if not self.config.trim:
            return None
        graph, layers = self.loaded.graph, self.model.num_layers
        masks = [mask for mask in (graph.train_mask, graph.val_mask, graph.test_mask) if mask is not None]
        assert graph.train_mask is not None
        reach = self.method.reach = Reach.of(self.loaded.adj, graph.train_mask, layers)
        shares = ", ".join(f"{hops}: {100 * size / max(1, graph.num_nodes):.1f} %" for hops, size in enumerate(reach.sizes))
        notice(f"trim: shares of nodes within 0 to {layers} edges of a training node: {shares}")
        scored = Reach.of(self.loaded.adj, torch.stack(masks).any(0), layers)
        return None if scored.sizes[0] == graph.num_nodes else scored

    def _settled(self, config: Config, own: bool) -> Config:
        """The configuration with ``first`` settled. Models of one's own have a table, unless exact is asked for."""
        x, encodes = self.loaded.x, self.model.encodes
        features = DTYPES[config.feature_dtype].itemsize * x.shape[1]
        features = min(features, -(-x.nbytes // max(1, x.shape[0]))) if encodes else features
        row = 0 if own else DTYPES[config.dtype].itemsize * sum(self.model.history_dims[:1])
        return settled(config, features, row, sparse=isinstance(x, SparseRows) and not encodes)

    def _optimizer(self) -> torch.optim.Optimizer:
        c = self.config
        both = zip(parameter_groups(self.model), (c.reg_weight_decay, c.nonreg_weight_decay), strict=True)
        groups = [dict(params=parameters, weight_decay=decay) for parameters, decay in both if parameters]
        return torch.optim.Adam(groups, lr=c.lr, fused=True)

    def begin(self) -> None:
        """Fill the tables by one exact pass."""
        with self.clock.phase("evaluation"):
            self.method.begin(self.engine, self.step)
        self.refresh.filled(self.step)

    def epoch(self, number: int, show: Show | None = None) -> dict[str, Any]:
        """Train on all batches of epoch ``number``. Returns its record: the mean loss, the mean age of rows and others.

        ``clock`` holds the seconds of each phase. Raises NotFinite if a loss is NaN or infinite: on a CPU before the update
        of the weights, on a GPU at the end of the epoch.

        Args:
            show: called after every batch with its number, the count of batches and the last loss.
        """
        self.clock, before, refreshed = Clock(), self.step, self.refresh.refreshes
        losses: list[Tensor] = []
        age: list[Tensor | float] = []
        batches = self.method.batches(number)
        self.model.train()
        size = self.config.accumulate
        with closing(self._made(batches)) as made:
            for first in range(0, len(batches), size):
                losses += self._update(made, min(size, len(batches) - first), first, len(batches), show)
                if self.history.all_tables:
                    age.append(self._age())
        mean = float(torch.stack(losses).mean()) if losses else math.nan
        if losses and not math.isfinite(mean):  # on a GPU losses are not checked per step
            raise NotFinite(self.step, "the losses of this epoch")
        record: dict[str, Any] = {"epoch": number, "step": self.step, "steps": self.step - before, "loss": mean}
        if age:
            record["age"] = sum(map(float, age)) / len(age)
        if self.refresh.refreshes is not None and refreshed is not None:
            record["frequency"] = (self.refresh.refreshes - refreshed) / max(1, len(batches))
        return record

    def _age(self) -> Tensor | float:
        """The mean age of the first table's rows, of those that were written if a method does not fill its tables.

        On a GPU it is a tensor, so that the host does not wait.
        """
        stamp = self.history.stamp(0, kind=next(kind for kind, tables in self.history.kinds.items() if tables))
        if not self.method.fills:
            return ages(stamp, self.step).mean
        if self.device.type == "cpu":
            return mean_age(stamp, self.step)
        return self.step - stamp.sum(dtype=torch.int64) / max(1, stamp.numel())

    def update(
        self, batches: Sequence[Batch], first: int = 0, count: int = 1,
        show: Show | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """Run one step: refreshes, gradients of one or more batches, and an update of the weights. Returns the losses.

        first: the index of the first batch in the epoch. count: the epoch's batches. Both are for ``show``.
        """
        made = (self._prepared(batch, self.step + 1) for batch in batches)
        return self._update(made, len(batches), first, count, show)

    def _made(self, batches: Sequence[Batch]) -> Generator[Prepared]:
        """Each batch of an epoch as its step needs it. Those of a step are drawn before its first one is computed."""
        size, step = self.config.accumulate, self.step + 1
        if self.ahead:
            return one_ahead(lambda index: self._prepared(batches[index], step + index // size), len(batches))
        groups = (batches[first : first + size] for first in range(0, len(batches), size))
        return (self._prepared(batch, step + number) for number, group in enumerate(groups) for batch in group)

    def _prepared(self, batch: Batch, step: int) -> Prepared:
        made = self.method.prepare(self.engine, batch, step)
        return made, self.method.loss(self.loaded.graph, made, self.device)

    def _update(self, made: Iterator[Prepared], size: int, first: int, count: int, show: Show | None) -> list[Tensor]:
        """:meth:`update` with the next ``size`` prepared batches."""
        step, share, losses = self.step + 1, 1 / size, list[Tensor]()
        self.optimizer.zero_grad()
        for index in range(size):
            with self.clock.phase("data"):
                batch, loss_of = next(made)
            with self.clock.phase("refresh"):
                batch, pulled = self.refresh.before(self.engine, batch, step)
            with self.clock.phase("train"):

                def weighed(logits: Tensor, loss_of: Any = loss_of, share: float = share) -> Tensor | None:
                    loss = loss_of(logits)
                    return loss if loss is None or share == 1.0 else loss * share

                loss = self.engine.train(batch, step, weighed, pulled=pulled)
                if loss is not None:
                    loss = loss if share == 1.0 else loss / share
                    # Scaled as gradients are: losses of all methods compare.
                    losses.append(loss if self.method.scale == 1.0 else loss * self.method.scale)
                    if self.device.type == "cpu" and not math.isfinite(float(losses[-1])):
                        raise diagnose(self.engine, batch, step, loss_of)
            if show is not None:
                last = float(losses[-1]) if losses and self.device.type == "cpu" else None
                show(first + index + 1, count, last)
        if losses:
            with self.clock.phase("train"):
                self.engine.update(self.optimizer, self.config.clip)
        self.step = step
        return losses

    def evaluate(self, *, error: bool = False) -> dict[str, Any]:
        """Scores of train, val and test nodes by exact inference.

        With ``error`` also the errors of histories (:mod:`rest_triton.training.staleness`): ``error`` of the results
        computed with them, scores ``stale_train``, … of these, ``staleness`` and ``staleness_relative`` of each table.
        """
        writes = self.config.eval_updates_history and bool(self.history.tables)
        with self.clock.phase("evaluation"):
            if error and self.history.tables and self.method.fills:
                metrics, written = self._compare(), False
            else:
                # One pass scores and writes the tables, unless their dtype would round the inputs of layers.
                written = writes and self.config.dtype == "float32"
                metrics = self._score(record_at=self.step if written else None)
            if writes and not written:
                self.engine.fill(self.step)
        if writes:
            self.refresh.filled(self.step)
        return metrics

    def _score(self, record_at: int | None) -> dict[str, Any]:
        found = Scores(self.loaded.graph)
        with self.engine.inference(record_at=record_at, reach=self.scored) as exact:
            exact.run(found.add)
        return dict(found.by_split())

    def _compare(self) -> dict[str, Any]:
        found, stale = Scores(self.loaded.graph), Scores(self.loaded.graph)

        def pairs(exact: Inference) -> Iterator[tuple[Tensor, Tensor]]:
            for batch, ours, truth in compared(self.engine, exact, self.method.cover(), self.step):
                stale.add(batch, ours)
                yield ours, truth

        with exact_engine(self.engine, found) as (fresh, exact):
            error, _ = mean_distance(pairs(exact))
            rows, relative = table_staleness(self.history, fresh.history)
        metrics = found.by_split() | {f"stale_{split}": value for split, value in stale.by_split().items()}
        return {**metrics, "error": error, "staleness": rows, "staleness_relative": relative}

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, without the tables."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.refresh.state(),
            "method": self.method.state(),
            "step": self.step,
            "generator": torch.random.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.refresh.load(state["schedule"])
        self.method.load(state.get("method", {}))  # checkpoints of version 0.1 have none
        self.step = state["step"]
        torch.random.set_rng_state(state["generator"])

    def close(self) -> None:
        self.history.close()
