"""The tables of a run: they hold the last known inputs of layers for all nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import torch
from torch import Tensor

from ..ops import check, gather_rows
from ..ops.memory import new_rows
from ..sampling.batch import Batch
from ..utils.progress import notice
from .age import NEVER, Ages, ages
from .disk import DiskTable, require_room
from .streams import IO, Resource, Streams, streams_for
from .table import DeviceTable, FetchedTable, PinnedTable, Rows, Table

Place = Literal["device", "pinned", "disk"]
TIERS: dict[str, type[Table]] = {"device": DeviceTable, "pinned": PinnedTable, "disk": DiskTable}
# The kinds of tables: the input of a layer, and the gradient of a layer's aggregate.
INPUT, GRADIENT = "input", "gradient"


class History:
    """The tables of a model.

    Args:
        num_nodes: of the graph. widths: columns of the tables of layer inputs, the first layer's first.
        rows: of each table of layer inputs; by default one for each node.
        numbers: int32[N]: the row of each node, where it is not the node's id. A node whose number is not below a table's
            rows has none. No table is then in place.
        kinds: widths of further tables by kind, such as ``{"gradient": [256, 256]}``.
        place: ``device``: on the model's device. ``pinned``: in page-locked host memory, which the GPU reads and writes
            while it computes; without a GPU it means ``device``, and a notice is printed. ``disk``: in memory-mapped files.
        dtype: of the rows: float32, bfloat16 or float16. Pushes and pulls convert them.
        device: of the model.
        streams: the order of work. Default: CUDA streams on a GPU, synchronous on a CPU.
        folder: of the files, for ``disk``. :meth:`close` removes them.
        fingerprint: of the graph that the tables are for.

    New rows are zero and marked as never written.

    Example::

        history = History(graph.num_nodes, [256, 256], place="pinned", dtype=torch.bfloat16, device="cuda")
        history.push(0, batch, h, step)
    """

    def __init__(
        self,
        num_nodes: int,
        widths: Sequence[int],
        *,
        rows: Sequence[int] | None = None,
        numbers: Tensor | None = None,
        kinds: Mapping[str, Sequence[int]] | None = None,
        place: Place = "device",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        streams: Streams | None = None,
        folder: Path | str | None = None,
        fingerprint: str = "",
    ) -> None:
        if place not in get_args(Place):
            raise ValueError(f"place is {place!r}; it must be one of {', '.join(get_args(Place))}")
        if dtype not in check.ROW_DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be {check.names(check.ROW_DTYPES)}")
        if (place == "disk") != (folder is not None):
            raise ValueError(f"place is {place!r} and folder {folder!r}; disk needs a folder, and no other place has one")
        self.num_nodes, self.widths, self.place, self.dtype = num_nodes, tuple(widths), place, dtype
        self.device, self.fingerprint = torch.device(device), fingerprint
        self.streams = streams if streams is not None else streams_for(self.device)
        self.folder = None if folder is None else Path(folder).absolute()  # the working directory may change
        self._scratch: TemporaryDirectory[str] | None = None
        self.kinds: dict[str, list[Table]] = {}
        wanted = {INPUT: self.widths} | {kind: tuple(sizes) for kind, sizes in (kinds or {}).items()}
        self.numbers = None if numbers is None else numbers.to(self.device)
        counts = {kind: [num_nodes] * len(sizes) for kind, sizes in wanted.items()} | ({INPUT: list(rows)} if rows else {})
        shapes = {kind: list(zip(counts[kind], sizes, strict=True)) for kind, sizes in wanted.items()}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            require_room(
                self.folder, sum(n * (width * dtype.itemsize + 4) for sizes in shapes.values() for n, width in sizes)
            )
        for kind, sizes_of_kind in shapes.items():
            self.kinds[kind] = [
                self._tier().new(f"{kind} {t}", n, width, dtype, self.device, self.folder)
                for t, (n, width) in enumerate(sizes_of_kind)
            ]
        self._buffers: dict[tuple[str, int | str, int], Rows] = {}

    def _tier(self) -> type[Table]:
        if self.place == "pinned" and self.device.type != "cuda":
            if not History._said_so:
                notice("history: pinned memory belongs to a GPU; without one, tables are in ordinary memory")
                History._said_so = True
            return DeviceTable if self.numbers is None else FetchedTable
        return FetchedTable if self.place == "device" and self.numbers is not None else TIERS[self.place]

    _said_so = False

    @property
    def tables(self) -> list[Table]:
        """The tables of layer inputs."""
        return self.kinds[INPUT]

    @property
    def all_tables(self) -> list[Table]:
        """The tables of all kinds."""
        return [table for tables in self.kinds.values() for table in tables]

    def like(
        self, widths: Sequence[int], dtype: torch.dtype, *, rows: Sequence[int] | None = None,
        numbers: Tensor | None = None,
    ) -> "History":  # fmt: skip
        """New tables in the same place, on the same streams. On disk their files are temporary."""
        scratch = None if self.folder is None else TemporaryDirectory(prefix="scratch-", dir=self.folder)
        other = type(self)(
            self.num_nodes, widths, rows=rows, numbers=numbers, place=self.place, dtype=dtype, device=self.device,
            streams=self.streams, folder=None if scratch is None else scratch.name,
        )  # fmt: skip
        other._scratch = scratch
        return other

    def push(
        self, table: int, batch: Batch, h: Tensor, step: int | None, *, momentum: float = 1.0, kind: str = INPUT
    ) -> None:
        """Write the rows of a batch: ``(1 - momentum) * rows[batch] + momentum * h``, stamped with ``step``.

        Without a step rows keep their stamps. ``ages`` then ignores the write.

        ``h``, [R, D], must not change afterwards: the write may run later.
        """
        target = self.kinds[kind][table]
        if h.shape != (len(batch), target.rows.shape[1]):
            raise ValueError(
                f"h has shape {list(h.shape)}; for a batch of {len(batch)} rows, table {table} takes "
                f"{[len(batch), target.rows.shape[1]]}"
            )
        if self.numbers is not None:
            batch = Batch(self.num_nodes, nodes=self._rows_of(batch.rows), device=self.device)
        target.push(self.streams, batch, h.detach(), step, momentum)

    def _rows_of(self, nodes: Tensor) -> Tensor:
        """int64[K]: the rows of nodes."""
        return nodes if self.numbers is None else self.numbers[nodes].long()

    def pull(self, table: int, nodes: Tensor, *, kind: str = INPUT) -> Rows:
        """Rows that the ops can read: the table if it is in place, else the rows of ``nodes`` in a buffer.

        Tables of inputs alternate between two buffers, so that one is filled while the other is read. Tables of another
        kind have a buffer each, since backward reads it after later layers have filled theirs. Buffers grow as needed.
        """
        source = self.kinds[kind][table]
        if source.in_place:
            return Rows(source.rows, source.resource, in_place=True)
        nodes = self._rows_of(nodes)
        buffer = self.buffer(table % 2 if kind == INPUT else f"{kind} {table}", nodes.numel(), source.rows.shape[1])
        self.streams.submit(
            IO,
            lambda: source.fetch(nodes, buffer.rows),
            reads=[source.resource],
            writes=[buffer.resource],
            inputs=[nodes, buffer.rows],
        )
        return buffer

    def read(self, table: int, nodes: Tensor, *, kind: str = INPUT) -> Tensor:
        """float32 [K, D]: a copy of the rows of ``nodes``, int64[K], after all work that was submitted before."""
        source = self.pull(table, nodes, kind=kind)

        def copy() -> Tensor:
            if source.in_place:
                return gather_rows(source.rows, nodes, dtype=torch.float32)
            return source.rows.to(torch.float32, copy=True)

        return self.streams.submit(self.streams.current, copy, reads=[source.resource])

    def buffer(self, turn: int | str, count: int, width: int) -> Rows:
        """A buffer of ``count`` rows on the device, in the tables' dtype. A large enough one is used again."""
        key = (self.streams.current, turn, width)  # each stream has its own buffers, so that no stream waits for another's
        kept = self._buffers.get(key)
        if kept is None or kept.rows.shape[0] < count:
            # The old one is freed when its readers are done. A quarter more rows make growth rare.
            rows = new_rows(count + count // 4, width, self.dtype, self.device)
            kept = Rows(rows, Resource(f"buffer {turn} of width {width}"))
            self._buffers[key] = kept
        return Rows(kept.rows[:count], kept.resource)

    def stamp(self, table: int, nodes: Tensor | None = None, *, kind: str = INPUT) -> Tensor:
        """int32[N]: a copy of the steps at which the rows were last written, -1 if never. int32[K] with ``nodes``."""
        source = self.kinds[kind][table]

        def copy() -> Tensor:
            if nodes is None:
                return source.stamp.clone()
            return source.stamp[self._rows_of(nodes).to(source.stamp.device)].to(nodes.device)

        return self.streams.submit(self.streams.current, copy, reads=[source.resource])

    def ages(self, table: int, step: int, rows: Tensor | None = None) -> Ages:
        """The age of all rows, or of those of ``rows``."""
        return ages(self.stamp(table, rows), step)

    def refuse_unwritten(self, table: int, rows: Tensor) -> None:
        """Raise ValueError if one of ``rows`` was never written. It is a check for debug mode."""
        count = int((self.stamp(table, rows) == NEVER).sum())
        if count:
            raise ValueError(
                f"{count} of {rows.numel()} rows that are read from table {table} were never written; fill the tables first"
            )

    def close(self) -> None:
        """Finish all writes, and remove files."""
        self.streams.finish()
        for table in self.all_tables:
            table.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        elif self.folder is not None and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
