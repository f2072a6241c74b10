"""REST-IS: the halo of the batch is refreshed before the batch; then every row that the batch reads is fresh."""

from collections.abc import Sequence

from ..history.table import Rows
from ..sampling.batch import Batch
from .engine import Engine
from .refresh import Refresh


class RESTIS(Refresh):
    """The rows that a batch reads, in ``frequency`` pieces, one after the other."""

    def before(self, engine: Engine, batch: Batch, step: int) -> tuple[Batch, Sequence[Rows | None] | None]:
        batch = batch.with_halo(engine.inputs.adj)
        rows, history = self.method.reads(engine.inputs.adj, batch), engine.history
        # Refreshed rows of far tables stay on the device for the training forward, and are not fetched again.
        held = [
            None if table.in_place else history.buffer(2 + t, rows.numel(), table.rows.shape[1])
            for t, table in enumerate(history.tables)
        ]
        copies = held if any(kept is not None for kept in held) else None
        at = 0
        for i, piece in enumerate(rows.chunk(self.config.refreshes)):
            part = Batch(history.num_nodes, nodes=piece, device=piece.device)
            engine.refresh(part, step, draw=i + 1, training=self.training, copies=copies, copies_at=at)
            at += piece.numel()
        return batch, copies
