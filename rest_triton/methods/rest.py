"""REST: which rows are refreshed before a training batch, how often and in which order.

A schedule is asked before every training batch, and refreshes with the weights of now:

    none        nothing: the method alone
    REST        F other batches of clusters, in random order or those first that have waited longest; or everyone, exactly.
                F is fixed, or chosen for each step: frequency.py
    REST-IS     the batch's own halo, in F pieces: afterwards every row that the batch reads is fresh
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from torch import Tensor

from ..config import Config
from ..history.history import Staged
from ..kernels._hash import mix64
from ..sampling.batch import Batch, ClusterLoader
from .engine import Engine
from .frequency import Frequency, frequency_for

REFRESHING = 0x5EED  # keeps the refresh iterator's shuffles apart from the training iterator's


class Schedule:
    """Refreshes nothing."""

    refreshes = 0  # since the run began, or was taken up again

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        """Refresh what is to be refreshed before ``batch`` is trained on. Returns the batch, with its halo if that became
        known, and the halo's rows if they are at hand: both are for :meth:`Engine.train`."""
        return batch, None

    def filled(self, step: int) -> None:
        """All rows of all tables were written, by somebody else."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


class Rest(Schedule, ABC):
    """REST: other batches of clusters, until ``frequency`` has enough.

    Args:
        batches: the refresh batches. training: with dropout and batch statistics.
    """

    def __init__(self, batches: ClusterLoader, frequency: Frequency, training: bool) -> None:
        self.batches, self.frequency, self.training = batches, frequency, training
        self.written = [0] * batches.num_clusters  # the step at which each cluster was written last
        self.sizes = [end - begin for begin, end in pairwise(batches.bounds)]

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        self.frequency.look(engine, batch, step, self._age(step, batch.clusters))
        self._wrote(batch, step)  # these the training forward is about to write
        done = 0
        while not self.frequency.enough(done, self._age(step, range(len(self.sizes)))):
            other = self._next(batch, step)
            if other is None:
                break
            done += 1
            engine.refresh(other, step, draw=done, training=self.training)
            self._wrote(other, step)
        self.refreshes += done
        return batch, None

    @abstractmethod
    def _next(self, batch: Batch, step: int) -> Batch | None:
        """What is refreshed next, before training on ``batch``; None if there is nothing left."""

    def _wrote(self, batch: Batch, step: int) -> None:
        for cluster in batch.clusters:
            self.written[cluster] = step

    def _age(self, step: int, clusters: Iterable[int]) -> float:
        """The mean age of the clusters' rows."""
        rows = [(self.sizes[k], step - self.written[k]) for k in clusters]
        return sum(size * age for size, age in rows) / max(1, sum(size for size, _ in rows))

    def filled(self, step: int) -> None:
        self.written = [step] * len(self.written)

    def state(self) -> dict[str, Any]:
        return {"written": list(self.written), "frequency": self.frequency.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.written = list(state["written"])
        self.frequency.load(state["frequency"])


class Uniform(Rest):
    """From an iterator of their own that shuffles and wraps."""

    def __init__(self, batches: ClusterLoader, frequency: Frequency, training: bool) -> None:
        super().__init__(batches, frequency, training)
        self.drawn = 0
        self._epoch: tuple[int, list[Batch]] = (-1, [])

    def _next(self, batch: Batch, step: int) -> Batch | None:
        for _ in range(2 * len(self.batches)):  # at least once round
            other = self._draw()
            if any(self.written[k] < step for k in other.clusters):  # else its rows are of these weights already
                return other
        return None

    def _draw(self) -> Batch:
        epoch, index = divmod(self.drawn, len(self.batches))
        if self._epoch[0] != epoch:
            self._epoch = epoch, self.batches.epoch(epoch)
        self.drawn += 1
        return self._epoch[1][index]

    def state(self) -> dict[str, Any]:
        return super().state() | {"drawn": self.drawn}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.drawn = state["drawn"]


class Oldest(Rest):
    """The clusters that have waited longest, so that ages are as even as they can be."""

    def _next(self, batch: Batch, step: int) -> Batch | None:
        waiting = [k for k, at in enumerate(self.written) if at < step]
        if not waiting:
            return None
        waiting.sort(key=lambda k: (self.written[k], mix64(mix64(self.batches.seed + step) + k)))
        return self.batches.batch(waiting[: self.batches.batch_size])


class Everyone(Schedule):
    """REST with all clusters at a time: one exact pass, in eval mode."""

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        engine.fill(step)
        return batch, None


class Importance(Schedule):
    """REST-IS. Args: pieces: of the halo, one after the other. training: as of :class:`Uniform`."""

    def __init__(self, pieces: int, training: bool) -> None:
        self.pieces, self.training = pieces, training

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        return engine.refresh_halo(batch, self.pieces, step, training=self.training)


def schedule_for(config: Config, ptr: Tensor, device: str = "cpu") -> Schedule:
    """The schedule that a configuration asks for. ptr: int64[K+1], the bounds of the clusters."""
    training, clusters = config.refresh_mode == "train", ptr.numel() - 1
    if config.rest == "rest-is":
        return Importance(config.refreshes, training)
    if config.rest != "rest":
        return Schedule()
    if config.refresh_batch == "full":
        return Everyone()
    batch_size = min(config.batch_size, clusters) if config.refresh_batch == "same" else -(-clusters // 2)
    batches = ClusterLoader(ptr, batch_size, seed=mix64(config.seed + REFRESHING) >> 1, device=device)
    kind = Oldest if config.refresh_order == "oldest" else Uniform
    return kind(batches, frequency_for(config, len(batches)), training)
