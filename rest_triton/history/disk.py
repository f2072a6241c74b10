"""History tables in memory-mapped files: ``input-0.rows`` and ``input-0.stamps`` in a run's folder.

The files belong to one run and are removed when the run closes its tables. Checkpoints hold copies of the tables.
"""

import errno
import mmap
import os
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ..ops import gather_rows
from ..sampling.batch import Batch
from ..utils.errors import UserError
from ..utils.machine import readable
from .age import NEVER
from .streams import IO, Resource, Streams
from .table import Table

CHUNK_BYTES = 64 << 20  # the most bytes that one read fetches
WAY_OUT = "free some, put --run-dir on another disk, or give --dtype bfloat16"


class DiskTable(Table):
    """Rows in a mapped file. A writer thread writes them; the io stream reads them."""

    in_place = False

    def __init__(self, name: str, rows: Tensor, stamp: Tensor, files: list[Path]) -> None:
        super().__init__(name, rows, stamp)
        self.files = files

    @classmethod
    def new(
        cls, name: str, num_nodes: int, width: int, dtype: torch.dtype, device: torch.device, folder: Path | None
    ) -> Table:
        assert folder is not None
        files = [folder / f"{name.replace(' ', '-')}.{kind}" for kind in ("rows", "stamps")]
        try:
            rows = _mapped(files[0], num_nodes * width * dtype.itemsize, dtype).view(num_nodes, width)
            stamp = _mapped(files[1], num_nodes * 4, torch.int32).fill_(NEVER)
        except BaseException:
            for file in files:
                file.unlink(missing_ok=True)
            raise
        return cls(name, rows, stamp, files)

    def push(self, streams: Streams, batch: Batch, h: Tensor, step: int | None, momentum: float) -> None:
        copied = Resource("rows on their way to disk")
        # Rows and ids on a GPU are copied to host memory first.
        here, ids = streams.submit(
            IO, lambda: (h.to("cpu", non_blocking=True), batch.on("cpu")), writes=[copied], inputs=[h, batch.rows]
        )
        streams.submit_io(lambda: self.write(ids, here, step, momentum), reads=[copied], writes=[self.resource])

    def fetch(self, nodes: Tensor, out: Tensor) -> None:
        rows = max(1, CHUNK_BYTES // max(1, self.rows[:1].nbytes))
        for chunk, into in zip(nodes.split(rows), out.split(rows), strict=True):
            if into.is_cuda:  # a GPU does not read mapped files
                into.copy_(gather_rows(self.rows, chunk.cpu()))
            else:
                gather_rows(self.rows, chunk, out=into)

    def close(self) -> None:
        # The maps live as long as their tensors, so tensors in use keep their memory.
        for file in self.files:
            file.unlink(missing_ok=True)


def _mapped(path: Path, size: int, dtype: torch.dtype) -> Tensor:
    """A new file of zeros as a tensor. Its space on the disk is reserved: a write to a map cannot fail later."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        try:
            if not hasattr(os, "posix_fallocate"):  # on macOS
                raise OSError(errno.ENOSYS, "no posix_fallocate")
            os.posix_fallocate(descriptor, 0, max(1, size))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise no_room(path.parent, size) from None
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # of file systems that do not reserve
                raise
            os.ftruncate(descriptor, max(1, size))
        return torch.frombuffer(mmap.mmap(descriptor, max(1, size)), dtype=dtype, count=size // dtype.itemsize)
    finally:
        os.close(descriptor)


def require_room(folder: Path, size: int, what: str = "history tables", way_out: str = WAY_OUT) -> None:
    """Refuse tables of ``size`` bytes that the disk has no room for."""
    if size > shutil.disk_usage(folder).free:
        raise no_room(folder, size, what, way_out)


def no_room(folder: Path, size: int, what: str = "history tables", way_out: str = WAY_OUT) -> UserError:
    free = 0
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
    return UserError(f"{folder} needs {readable(size)} for {what}, {readable(free)} are free; {way_out}")
