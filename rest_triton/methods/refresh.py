"""What is refreshed before a training batch: the base, which refreshes nothing."""

from collections.abc import Sequence
from typing import Any

from ..config import Config
from ..history.table import Rows
from ..sampling.batch import Batch
from .base import Method
from .engine import Engine


class Refresh:
    """Refreshes nothing.

    Args:
        config: the run's. method: the method whose tables are refreshed.
    """

    refreshes: int | None = None  # since the run began or was resumed; None: their number says nothing

    def __init__(self, config: Config, method: Method) -> None:
        self.config, self.method = config, method
        self.training = config.refresh_mode == "train"

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        """Refresh before training on ``batch``. Returns the batch, with its halo if that became known, and the halo's
        rows where they are on the device already: both are for :meth:`Engine.train`."""
        return batch, None

    def filled(self, step: int) -> None:
        """All rows of all tables were written by an exact pass."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take up the state of a checkpoint."""
