"""Tables of the last known embeddings of all nodes: one class for each kind of storage."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..ops import gather_rows, scatter_rows
from ..ops.memory import new_rows
from ..sampling.batch import Batch
from .age import NEVER
from .streams import IO, Resource, Streams


@dataclass(eq=False)
class Rows:
    """Rows on the model's device, and the resource of their memory.

    ``in_place``: row i belongs to node i. Otherwise row i belongs to the i-th node of the pull.
    """

    rows: Tensor
    resource: Resource
    in_place: bool = False


class Table(ABC):
    """One layer's history.

    Args:
        name: for logs. rows: [N, width]. stamp: int32[N], the step at which each row was written, -1 if never.

    ``in_place``: whether the ops read and write ``rows`` directly. Rows of other tables are pulled into a buffer.
    """

    in_place: ClassVar[bool]

    def __init__(self, name: str, rows: Tensor, stamp: Tensor) -> None:
        self.rows, self.stamp, self.resource = rows, stamp, Resource(name)

    @classmethod
    @abstractmethod
    def new(
        cls, name: str, num_nodes: int, width: int, dtype: torch.dtype, device: torch.device, folder: Path | None
    ) -> "Table":
        """A table of zeros, with no row marked as written."""

    @abstractmethod
    def push(self, streams: Streams, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        """Submit the write of a batch's rows: ``(1 - momentum) * rows + momentum * h``. Without a step stamps stay."""

    @abstractmethod
    def fetch(self, nodes: Tensor, out: Tensor) -> None:
        """Copy the rows of ``nodes``, int64[K], into ``out``, [K, width] on the device."""

    def write(self, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        """Write the rows of a batch, and stamp them if there is a step."""
        if step is None:
            return scatter_rows(self.rows, batch.rows, h, blend=momentum)
        # On one device the kernel's copy bypasses the caches. From a GPU to the host, copy engines do plain copies.
        if batch.ranges is None or momentum != 1.0 or (self.rows.device == h.device and self.rows.dtype == h.dtype):
            scatter_rows(self.rows, batch.rows, h, blend=momentum, stamp=self.stamp, step=step)
            return
        at = 0
        for begin, end in batch.ranges:
            self.rows[begin:end].copy_(h[at : at + end - begin], non_blocking=True)
            self.stamp[begin:end] = step
            at += end - begin

    def mark_written(self, batch: Batch, step: int) -> None:
        """Stamp rows that an op has written."""
        if batch.ranges is None:
            self.stamp[batch.rows] = step
        else:
            for begin, end in batch.ranges:
                self.stamp[begin:end] = step

    def close(self) -> None:  # noqa: B027 (memory needs no closing)
        """Release files. All writes are done before."""


class DeviceTable(Table):
    """Rows on the model's device. The ops read and write them in place."""

    in_place = True

    @classmethod
    def new(
        cls, name: str, num_nodes: int, width: int, dtype: torch.dtype, device: torch.device, folder: Path | None
    ) -> Table:
        return cls(name, new_rows(num_nodes, width, dtype, device).zero_(), new_stamps(num_nodes, device))

    def push(self, streams: Streams, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        streams.submit(streams.current, lambda: self.write(batch, h, step, momentum), writes=[self.resource])

    def fetch(self, nodes: Tensor, out: Tensor) -> None:
        gather_rows(self.rows, nodes, out=out)


class FetchedTable(DeviceTable):
    """Rows on the model's device that are not numbered as nodes are. They are fetched into buffers."""

    in_place = False


class PinnedTable(Table):
    """Rows in page-locked host memory. The GPU reads and writes them on the io stream while it computes."""

    in_place = False

    @classmethod
    def new(
        cls, name: str, num_nodes: int, width: int, dtype: torch.dtype, device: torch.device, folder: Path | None
    ) -> Table:
        rows = torch.zeros(num_nodes, width, dtype=dtype, pin_memory=True)
        return cls(name, rows, new_stamps(num_nodes, device))

    def push(self, streams: Streams, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        work = partial(self.write, batch, h, step, momentum)
        streams.submit(IO, work, writes=[self.resource], inputs=[h, batch.rows])

    def fetch(self, nodes: Tensor, out: Tensor) -> None:
        gather_rows(self.rows, nodes, out=out)


def new_stamps(num_nodes: int, device: torch.device) -> Tensor:
    """int32[N]: stamps of rows that were never written."""
    return torch.full((num_nodes,), NEVER, dtype=torch.int32, device=device)


def total_bytes(tables: Sequence[Table]) -> int:
    """The bytes of all rows and stamps."""
    return sum(table.rows.nbytes + table.stamp.nbytes for table in tables)
