"""The features of all nodes, or an aggregate of them: rows that are only read."""

import torch
from torch import Tensor

from ..data.features import SparseRows
from ..history.table import Table
from ..ops import gather_rows
from ..ops.memory import new_rows
from ..sampling.batch import Batch


class Features:
    """Rows of all nodes. Batches get them as float32 on the model's device.

    Args:
        rows: [N, D], dense or sparse, on the model's device; or a table, in any place. device: of the model.
    """

    def __init__(self, rows: Tensor | SparseRows | Table, device: torch.device | None = None) -> None:
        self.table = rows if isinstance(rows, Table) else None
        self.rows: Tensor | SparseRows = rows.rows if isinstance(rows, Table) else rows
        self.device = self.rows.device if device is None else device

    @property
    def sparse(self) -> bool:
        return isinstance(self.rows, SparseRows)

    @property
    def in_place(self) -> bool:
        """Whether ops read the rows directly."""
        return self.table is None or self.table.in_place

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def take(self, batch: Batch) -> Tensor | SparseRows:
        """[R, D]: the rows of a batch. Ranges of a table elsewhere are read in order."""
        if isinstance(self.rows, SparseRows):
            return self.rows.rows(batch.rows)
        if self.in_place:
            return batch.take(self.rows).float()
        if batch.ranges is None:
            return self.gather(batch.rows)
        out, at = new_rows(len(batch), self.width, torch.float32, self.device), 0
        for begin, end in batch.ranges:
            out[at : at + end - begin].copy_(self.rows[begin:end], non_blocking=True)
            at += end - begin
        return out

    def gather(self, nodes: Tensor) -> Tensor | SparseRows:
        """[K, D]: the rows of ``nodes``, int64[K]."""
        if isinstance(self.rows, SparseRows):
            return self.rows.rows(nodes)
        if self.table is None or self.in_place:
            return gather_rows(self.rows, nodes, dtype=torch.float32)
        out = new_rows(nodes.numel(), self.width, torch.float32, self.device)
        self.table.fetch(nodes, out)
        return out


NodeRows = Tensor | SparseRows | Features  # what an engine takes
