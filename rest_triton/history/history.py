"""Histories: tables of the last known embeddings of all nodes, where they live and how old they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..ops import check, gather_rows, scatter_rows
from ..ops.memory import new_rows
from ..sampling.batch import Batch
from ..utils.progress import notice
from . import file as tables_file
from .age import NEVER, Ages, ages
from .disk import DiskTables
from .streams import IO, Resource, Streams, streams_for

Place = Literal["device", "pinned", "disk"]
PIECE = 64 << 20  # bytes that are fetched from disk at a time, at the most


@dataclass(eq=False)
class Table:
    """One layer's history: rows [N, D], and the step at which each was written, int32[N]."""

    rows: Tensor
    stamp: Tensor
    resource: Resource


@dataclass(eq=False)
class Staged:
    """Rows on the device that is computed on, and the resource of the memory they are in."""

    rows: Tensor
    resource: Resource


class History:
    """The tables of a model.

    Args:
        num_nodes: rows of each table. widths: columns, table by table.
        place: ``device``: beside the model. ``pinned``: in page-locked memory of the host, read and written by the GPU while
            it computes; without a GPU this is the same as ``device``, and that is said. ``disk``: in memory-mapped files.
        dtype: of the rows: float32, bfloat16 or float16; they are converted on the way in and out.
        device: where the model computes.
        streams: what runs beside what; default: streams on a GPU, one after the other on a CPU.
        folder: for ``disk``, where the files are; they stay there. fingerprint: of the graph that they are for.
        budget: for ``disk``, how many bytes of the files may be mapped at a time.

    Rows are zero at birth, and marked as never written.

    Example::

        store = History(graph.num_nodes, [256, 256], place="pinned", dtype=torch.bfloat16, device="cuda")
        store.record(0, batch, h, step)
    """

    def __init__(
        self,
        num_nodes: int,
        widths: Sequence[int],
        *,
        place: Place = "device",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        streams: Streams | None = None,
        folder: Path | str | None = None,
        fingerprint: str = "",
        budget: int | None = None,
    ) -> None:
        if place not in get_args(Place):
            raise ValueError(f"place is {place!r}; it must be one of {', '.join(get_args(Place))}")
        if dtype not in check.ROW_DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be {check.names(check.ROW_DTYPES)}")
        if (place == "disk") != (folder is not None):
            raise ValueError(f"place is {place!r} and folder {folder!r}; a folder is what disk needs, and nothing else does")
        self.num_nodes, self.widths, self.place, self.dtype = num_nodes, tuple(widths), place, dtype
        self.device, self.fingerprint = torch.device(device), fingerprint
        self.streams = streams if streams is not None else streams_for(self.device)
        self.files: DiskTables | None = None
        if folder is not None:
            self.files = DiskTables(Path(folder), num_nodes, self.widths, dtype, fingerprint, budget=budget)
            memory = list(zip(self.files.rows, self.files.stamps, strict=True))
            if self.files.committed_step is None:
                self._forget_stamps()
        else:
            memory = [(self._zeros(width), torch.full((num_nodes,), NEVER, dtype=torch.int32, device=self.device))
                      for width in self.widths]  # fmt: skip
        self.tables = [Table(rows, stamp, Resource(f"table {t}")) for t, (rows, stamp) in enumerate(memory)]
        self._buffers: dict[tuple[str, int, int], Staged] = {}

    def like(
        self, widths: Sequence[int], dtype: torch.dtype, *, folder: Path | None = None, budget: int | None = None
    ) -> "History":
        """Other tables in the same place, for the same streams; on disk in a folder of their own."""
        return type(self)(
            self.num_nodes, widths, place=self.place, dtype=dtype, device=self.device, streams=self.streams, folder=folder,
            budget=budget,
        )  # fmt: skip

    def _zeros(self, width: int) -> Tensor:
        if self.place == "pinned" and self.device.type != "cuda":
            if not History._said_so:
                notice("history: pinned means memory beside a GPU; without one, tables are in ordinary memory")
                History._said_so = True
        elif self.place == "pinned":
            return torch.zeros(self.num_nodes, width, dtype=self.dtype, pin_memory=True)
        return new_rows(self.num_nodes, width, self.dtype, self.device).zero_()

    _said_so = False

    @property
    def direct(self) -> bool:
        """Whether the ops read and write the tables where they are, without staging."""
        return self.place == "device" or (self.place == "pinned" and self.device.type != "cuda")

    def record(self, table: int, batch: Batch, h: Tensor, step: int, *, blend: float = 1.0) -> None:
        """Write the rows of a batch: ``rows[batch] = (1 - blend) * rows[batch] + blend * h``, stamped with ``step``.

        ``h``, [R, D], must not be changed afterwards: where the table is far away it is written later.
        """
        to = self.tables[table]
        if h.shape != (len(batch), to.rows.shape[1]):
            raise ValueError(
                f"h has shape {list(h.shape)}; for a batch of {len(batch)} rows, table {table} takes "
                f"{[len(batch), to.rows.shape[1]]}"
            )
        h = h.detach()
        if self.direct:
            self.streams.submit(self.streams.current, lambda: self._write(to, batch, h, step, blend), writes=[to.resource])
        elif self.files is None:
            work = partial(self._write, to, batch, h, step, blend)
            self.streams.submit(IO, work, writes=[to.resource], inputs=[h, batch.rows])
        else:
            self._write_to_disk(self.files, to, batch, h, step, blend)

    def _write_to_disk(self, files: DiskTables, to: Table, batch: Batch, h: Tensor, step: int, blend: float) -> None:
        copied = Resource("rows on their way to disk")
        # From a GPU rows and ids come by way of the host's memory; on a CPU they are there.
        handed = [h, batch.rows]
        here, ids = self.streams.submit(
            IO, lambda: (h.to("cpu", non_blocking=True), batch.on("cpu")), writes=[copied], inputs=handed
        )

        def write() -> None:
            files.opened()
            self._write(to, ids, here, step, blend)
            files.touched(here.shape[0] * to.rows.shape[1] * to.rows.element_size())

        self.streams.submit_io(write, reads=[copied], writes=[to.resource])

    @staticmethod
    def _write(to: Table, batch: Batch, h: Tensor, step: int, blend: float) -> None:
        # On one device the kernel copies past the caches, which a plain copy does not; to the host a GPU has copy engines.
        if batch.ranges is None or blend != 1.0 or (to.rows.device == h.device and to.rows.dtype == h.dtype):
            scatter_rows(to.rows, batch.rows, h, blend=blend, stamp=to.stamp, step=step)
            return
        at = 0
        for begin, end in batch.ranges:
            to.rows[begin:end].copy_(h[at : at + end - begin], non_blocking=True)
            to.stamp[begin:end] = step
            at += end - begin

    def stamped(self, table: int, batch: Batch, step: int) -> None:
        """For rows that an op has written itself: say when."""
        stamp = self.tables[table].stamp
        if batch.ranges is None:
            stamp[batch.rows] = step
        else:
            for begin, end in batch.ranges:
                stamp[begin:end] = step

    def stage(self, table: int, halo: Tensor) -> Staged:
        """Fetch rows of a far table into a buffer on the device, beside whatever is computed there. halo: int64[H].

        There are two buffers for tables in turn, so that one is filled while the other is read; they grow as needed.
        """
        source = self.tables[table]
        buffer = self.buffer(table % 2, halo.numel(), source.rows.shape[1])
        self.streams.submit(
            IO,
            lambda: self._fetch(source, halo, buffer),
            reads=[source.resource],
            writes=[buffer.resource],
            inputs=[halo, buffer.rows],
        )
        return buffer

    def _fetch(self, source: Table, halo: Tensor, buffer: Staged) -> None:
        if self.files is None:
            gather_rows(source.rows, halo, out=buffer.rows)
            return
        # In pieces, so that mapped pages can be counted: as large as the budget allows, for large ones are copied faster.
        piece = PIECE if self.files.budget is None else min(PIECE, self.files.budget // 2)
        rows = max(1, piece // max(1, source.rows[:1].nbytes))
        for some, into in zip(halo.split(rows), buffer.rows.split(rows), strict=True):
            if into.is_cuda:  # a GPU does not read mapped files
                into.copy_(gather_rows(source.rows, some.cpu()))
            else:
                gather_rows(source.rows, some, out=into)
            self.files.touched(into.nbytes)

    def read(self, table: int, nodes: Tensor) -> Tensor:
        """float32 [K, D]: a copy of the rows of some nodes, int64[K], as they are after all that was submitted before."""
        if self.direct:
            held = self.tables[table]
            work = partial(gather_rows, held.rows, nodes, dtype=torch.float32)
            return self.streams.submit(self.streams.current, work, reads=[held.resource])
        staged = self.stage(table, nodes)
        return self.streams.submit(
            self.streams.current, lambda: staged.rows.to(torch.float32, copy=True), reads=[staged.resource]
        )

    def buffer(self, turn: int, count: int, width: int) -> Staged:
        """Memory for ``count`` rows on the device, in the tables' dtype: the same as last time, if it is enough."""
        key = (self.streams.current, turn, width)  # forwards on two streams do not wait for each other's buffers
        held = self._buffers.get(key)
        if held is None or held.rows.shape[0] < count:
            # The old one, if any, is freed when those who read it let go of it; a quarter more, so that it grows rarely.
            rows = new_rows(count + count // 4, width, self.dtype, self.device)
            held = Staged(rows, Resource(f"buffer {turn} of width {width}"))
            self._buffers[key] = held
        return Staged(held.rows[:count], held.resource)

    def stamp(self, table: int) -> Tensor:
        """int32[N]: the step at which each row was last written, -1 if never."""
        held = self.tables[table]
        return self.streams.submit(self.streams.current, lambda: held.stamp, reads=[held.resource])

    def ages(self, table: int, step: int, rows: Tensor | None = None) -> Ages:
        """How old all rows are, or those of ``rows``."""
        stamp = self.stamp(table)
        return ages(stamp if rows is None else stamp[rows.to(stamp.device)], step)

    def unwritten(self, table: int, rows: Tensor) -> int:
        """How many of ``rows`` nobody has ever written."""
        stamp = self.stamp(table)
        return int((stamp[rows.to(stamp.device)] == NEVER).sum())

    def refuse_unwritten(self, table: int, rows: Tensor) -> None:
        """For debug mode: reading a row that nobody wrote is an error."""
        count = self.unwritten(table, rows)
        if count:
            raise ValueError(
                f"{count} of {rows.numel()} rows that are read from table {table} were never written; fill the tables first"
            )

    def save(self, path: Path, step: int) -> None:
        """Keep the tables as they are after ``step``: in a file, or, where they are on disk already, in their own files.

        The file is written in pieces; no second copy is made in memory.
        """
        self.streams.finish()
        if self.files is not None:
            self.files.commit(step)
        else:
            tables_file.save(self, Path(path), step)

    def load(self, path: Path, step: int) -> bool:
        """Take the tables of ``step`` back. False if there are none of that step: then they have to be filled again.

        A damaged file, or one of another graph or model, is an error, before anything is changed.
        """
        self.streams.finish()
        if self.files is not None:
            good = self.files.committed_step == step
            if not good:
                self._forget_stamps()
            return good
        return Path(path).exists() and tables_file.load(self, Path(path), step)

    def _forget_stamps(self) -> None:
        """Tables on disk whose step is not known, or not the one that is wanted: nobody has written them."""
        assert self.files is not None
        self.files.opened()
        for stamp in self.files.stamps:
            stamp.fill_(NEVER)

    def close(self) -> None:
        """Finish all writes."""
        self.streams.finish()
        if self.files is not None:
            self.files.close()
