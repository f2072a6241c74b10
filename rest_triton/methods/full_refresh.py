"""REST with all clusters at a time: one exact pass in eval mode before each batch."""

from collections.abc import Sequence

from ..history.table import Rows
from ..sampling.batch import Batch
from .engine import Engine
from .refresh import Refresh


class FullRefresh(Refresh):
    """An exact pass that writes all rows of all tables."""

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        engine.fill(step)
        return batch, None
