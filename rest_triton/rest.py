"""REST: which rows are refreshed before a training batch, how often and in which order.

A schedule is asked before every training batch, and refreshes with the weights of now:

    none        nothing: the method alone
    REST        F other batches of clusters, in random order or those first that have waited longest; or everyone, exactly
    REST-IS     the batch's own halo, in F pieces: afterwards every row that the batch reads is fresh
"""

from typing import Any

from torch import Tensor

from .batches import Batch, ClusterBatches
from .config import Config
from .engine import Engine
from .history import Staged
from .kernels._hash import mix64

REFRESHING = 0x5EED  # keeps the refresh iterator's shuffles apart from the training iterator's


class Schedule:
    """Refreshes nothing."""

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        """Refresh what is to be refreshed before ``batch`` is trained on. Returns the batch, with its halo if that became
        known, and the halo's rows if they are at hand: both are for :meth:`Engine.train`."""
        return batch, None

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


class Uniform(Schedule):
    """REST: other batches, from an iterator of their own that shuffles and wraps.

    Args:
        batches: the refresh batches. frequency: F. training: with dropout and batch statistics.
    """

    def __init__(self, batches: ClusterBatches, frequency: int, training: bool) -> None:
        self.batches, self.frequency, self.training = batches, frequency, training
        self.drawn = 0
        self._epoch: tuple[int, list[Batch]] = (-1, [])

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        for i in range(self.frequency):
            other = self._next()
            while other.clusters == batch.clusters and len(self.batches) > 1:
                other = self._next()  # the training forward writes these rows anyway
            engine.refresh(other, step, stream=i + 1, training=self.training)
        return batch, None

    def _next(self) -> Batch:
        epoch, index = divmod(self.drawn, len(self.batches))
        if self._epoch[0] != epoch:
            self._epoch = epoch, self.batches.epoch(epoch)
        self.drawn += 1
        return self._epoch[1][index]

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


class Oldest(Schedule):
    """REST: the clusters that have waited longest, so that ages are as even as they can be. Args: see :class:`Uniform`."""

    def __init__(self, batches: ClusterBatches, frequency: int, training: bool) -> None:
        self.batches, self.frequency, self.training = batches, frequency, training
        self.written = [0] * batches.num_clusters  # the step at which each cluster was written last

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, list[Staged] | None]:
        for cluster in batch.clusters:  # these the training forward is about to write
            self.written[cluster] = step
        for i in range(self.frequency):
            waiting = [k for k, at in enumerate(self.written) if at < step]
            if not waiting:
                break
            waiting.sort(key=lambda k: (self.written[k], mix64(mix64(self.batches.seed + step) + k)))
            chosen = waiting[: self.batches.per_batch]
            engine.refresh(self.batches.batch(chosen), step, stream=i + 1, training=self.training)
            for cluster in chosen:
                self.written[cluster] = step
        return batch, None

    def state(self) -> dict[str, Any]:
        return {"written": list(self.written)}

    def load(self, state: dict[str, Any]) -> None:
        self.written = list(state["written"])


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
        return Importance(config.frequency, training)
    if config.rest != "rest":
        return Schedule()
    if config.refresh_batch == "full":
        return Everyone()
    per_batch = min(config.per_batch, clusters) if config.refresh_batch == "same" else -(-clusters // 2)
    batches = ClusterBatches(ptr, per_batch, seed=mix64(config.seed + REFRESHING) >> 1, device=device)
    return (Oldest if config.refresh_order == "oldest" else Uniform)(batches, config.frequency, training)
