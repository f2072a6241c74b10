"""REST-IS: refreshes the halo of each batch before the batch, so that the batch reads fresh rows only."""

from collections.abc import Sequence

from ..history.table import Rows
from ..sampling.batch import Batch
from .engine import Engine
from .refresh import Refresh


class HaloRefresh(Refresh):
    """Refreshes of the rows that a batch reads, in ``frequency`` pieces."""

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        if batch.counts is None:
            batch = batch.with_halo(engine.inputs.adj)
        rows, history = self.method.reads(engine, batch), engine.history
        # For tables that are not in place, refreshed rows stay in a buffer for the training forward.
        buffers = [
            None if table.in_place or batch.counts is not None else history.buffer(2 + t, rows.numel(), table.rows.shape[1])
            for t, table in enumerate(history.tables)
        ]
        copies = buffers if any(buffer is not None for buffer in buffers) else None
        at = 0
        for i, piece in enumerate(rows.chunk(self.config.refreshes)):
            part = Batch(history.num_nodes, nodes=piece, device=piece.device)
            engine.refresh(part, step, draw=i + 1, training=self.training, running=self.running, copies=copies, copies_at=at)
            at += piece.numel()
        return batch, copies
