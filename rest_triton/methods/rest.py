"""REST ("Haste Makes Waste"; Xue et al., 2025): other batches are refreshed before each training batch."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ..config import Config
from ..history.table import Rows
from ..kernels._hash import mix64
from ..sampling.batch import Batch
from .base import Method
from .engine import Engine
from .frequency import frequency_for
from .refresh import Refresh

REFRESHING = 0x5EED  # makes the refresh iterator's shuffles differ from the training iterator's


class ClusterRefresh(Refresh):
    """Refresh batches before every training batch. :class:`Frequency` controls their number.

    They come from a second iterator over shuffled clusters, or hold the clusters with the oldest rows.
    ``gradient_frequency`` of them also renew tables of gradients.
    """

    def __init__(self, config: Config, method: Method) -> None:
        super().__init__(config, method)
        clusters = method.ptr.numel() - 1
        batch_size = min(config.batch_size, clusters) if config.refresh_batch == "same" else -(-clusters // 2)
        self.batches = method.refresh_batches(batch_size, config.seed + REFRESHING)
        self.frequency = frequency_for(config, len(self.batches))
        self.refreshes = 0
        self.drawn = 0  # batches drawn from the iterator
        self.written = [0] * clusters  # the step at which each cluster was last written
        self.sizes = [end - begin for begin, end in pairwise(self.batches.bounds)]
        self._epoch: tuple[int, list[Batch]] = (-1, [])

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        self.frequency.observe(engine, batch, step, self._age(step, batch.clusters))
        self._wrote(batch, step)  # the training forward of this step writes them
        done = 0
        while not self.frequency.reached(done, self._age(step, range(len(self.sizes)))):
            refresh_batch = self._next(step)
            if refresh_batch is None:
                break
            done += 1
            # Those with backward come last: their forward reads the freshest rows.
            wanted = self.config.gradient_frequency
            backward = wanted > 0 and done > self.config.refreshes - wanted
            engine.refresh(refresh_batch, step, draw=done, training=self.training, running=self.running, backward=backward)
            self._wrote(refresh_batch, step)
        self.refreshes = (self.refreshes or 0) + done
        return batch, None

    def _next(self, step: int) -> Batch | None:
        """The next refresh batch, None if this step has written all rows already."""
        if self.config.refresh_order == "oldest":
            return self._oldest(step)
        for _ in range(2 * len(self.batches)):  # this covers at least one whole epoch
            epoch, index = divmod(self.drawn, len(self.batches))
            if self._epoch[0] != epoch:
                self._epoch = epoch, self.batches.epoch(epoch)
            self.drawn += 1
            if any(self.written[k] < step for k in self._epoch[1][index].clusters):
                return self._epoch[1][index]
        return None

    def _oldest(self, step: int) -> Batch | None:
        waiting = [k for k, at in enumerate(self.written) if at < step]
        if not waiting:
            return None
        waiting.sort(key=lambda k: (self.written[k], mix64(mix64(self.batches.seed + step) + k)))
        return self.batches.batch(waiting[: self.batches.batch_size])

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
        return {"written": list(self.written), "frequency": self.frequency.state(), "drawn": self.drawn}

    def load(self, state: dict[str, Any]) -> None:
        self.written, self.drawn = list(state["written"]), state.get("drawn", 0)
        self.frequency.load(state["frequency"])
