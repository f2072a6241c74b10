"""The base class of refreshes before a training batch. It refreshes nothing."""

from collections.abc import Sequence
from typing import Any

from ..config import Config
from ..history.table import Rows
from ..sampling.batch import Batch
from .base import Method
from .engine import Engine


class Refresh:
    """No refresh.

    Args:
        config: of the run. method: of the tables to refresh.
    """

    refreshes: int | None = None  # since the run began or was resumed; None: they are not counted

    def __init__(self, config: Config, method: Method) -> None:
        self.config, self.method = config, method
        self.training, self.running = config.refresh_mode == "train", config.refresh_norm == "running"

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        """Refresh before training on ``batch``. Returns (batch, pulled), both for :meth:`Engine.train`.

        The batch has its halo if it was computed. ``pulled`` are the halo's rows if they are on the device already.
        """
        return batch, None

    def filled(self, step: int) -> None:
        """Called when an exact pass has written all rows of all tables."""

    def state(self) -> dict[str, Any]:
        """The refresh's part of a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
