"""The least that this machine needs for an op, measured by the simplest loops in the same rounds as the op.

An aggregate is held against reading the same rows in the same order, with nothing to look up, weigh or write. On a GPU
torch's index_select into a small buffer stands for that. Other ops are held against a copy or a triad (a = b + s c) of as
many bytes as they have to move: all they read and write, once each. Indices count with their own size. (No limit has run
on a GPU.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rest_triton.kernels.cpu.edges import prefetch_row
from rest_triton.kernels.cpu.intrinsics import load_i64, next_ticket
from rest_triton.kernels.cpu.pool import Task
from rest_triton.kernels.cpu.rowtypes import FLOAT32, add_four_rows, code

from .cases import Batch, neighbours
from .harness import Limit

COUNT, CHUNK, ADDRESSES, WIDTH, DTYPE, AHEAD = range(1, 7)
ASKED_AHEAD = 32  # rows
BUFFER_ROWS = 1 << 16  # of the buffer that a GPU gathers into


@Task
def read_rows_task(block):
    addresses, count, chunk, width = block[ADDRESSES], block[COUNT], block[CHUNK], block[WIDTH]
    dtype, ahead = block[DTYPE], block[AHEAD]
    nbytes = width * (4 if dtype == FLOAT32 else 2)
    scratch = np.zeros(width, np.float32)
    one = np.float32(1)
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        end = min(begin + chunk, count)
        for k in range(begin, min(begin + ahead, end)):
            prefetch_row(load_i64(addresses + 8 * k), nbytes)
        for k in range(begin, end - 3, 4):
            if ahead > 0:
                for n in range(k + ahead, min(k + ahead + 4, end)):
                    prefetch_row(load_i64(addresses + 8 * n), nbytes)
            add_four_rows(
                scratch.ctypes.data, load_i64(addresses + 8 * k), load_i64(addresses + 8 * k + 8),
                load_i64(addresses + 8 * k + 16), load_i64(addresses + 8 * k + 24), dtype, width, one, one, one, one,
            )  # fmt: skip
    scratch[0] = 0  # in use until here: it is reached by address only


@dataclass(frozen=True)
class Reads:
    """Rows of ``source`` to be read: by address on a CPU, by index on a GPU."""

    source: Tensor
    where: Tensor

    @property
    def bytes(self) -> int:
        return self.where.numel() * self.source.shape[1] * self.source.element_size()

    def run(self) -> None:
        width = self.source.shape[1]
        if self.source.device.type == "cpu":
            read_rows_task.launch(self.where.numel(), 3200, self.where, width, code(self.source), ASKED_AHEAD)
            return
        buffer = self.source.new_empty(min(BUFFER_ROWS, len(self.where)), width)
        for piece in self.where.split(BUFFER_ROWS):
            torch.index_select(self.source, 0, piece, out=buffer[: len(piece)])


def reads(position: Tensor, columns: Tensor, x: Tensor | None, table: Tensor | None) -> list[Reads]:
    """What an aggregate reads of rows: for each column its row of x, or of the table. What is None is not read."""
    p = position[columns].long()
    sources = [(t, at, inside) for t, at, inside in ((x, p, p >= 0), (table, ~p, p < 0)) if t is not None]
    sources = [(t.detach(), at[inside], inside) for t, at, inside in sources if bool(inside.any())]
    if columns.device.type != "cpu":
        return [Reads(t, at) for t, at, _ in sources]
    by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for source in sources:
        by_dtype.setdefault(source[0].dtype, []).append(source)
    found = []
    for group in by_dtype.values():
        address = torch.zeros_like(p)
        for t, at, inside in group:
            address[inside] = t.data_ptr() + at * t.stride(0) * t.element_size()
        address = address[address != 0]
        found.append(Reads(group[0][0], address[: len(address) // 4 * 4]))  # the loop takes four at a time
    return found


def reading(wanted: Sequence[Reads], name: str = "only reading the rows") -> Limit:
    """Reading just these rows, each asked for ahead."""
    return Limit(name, sum(r.bytes for r in wanted), lambda: [r.run() for r in wanted])


def aggregate(b: Batch, table: Tensor, backward: Sequence[Tensor] = ()) -> Limit:
    """The rows that an aggregate reads. backward: the rows whose gradients it computes; those of the batch are read."""
    wanted = reads(b.position, b.columns, b.x, table)
    if backward:
        assert b.adj.reverse is not None
        columns = torch.cat([neighbours(b.adj.reverse, rows) for rows in backward])
        wanted += reads(b.position, columns, b.x, None)
    return reading(wanted)


def copy(nbytes: int, device: torch.device) -> Limit:
    """As many bytes in all, half of them read and half written."""
    a, b = (torch.ones(max(1, nbytes // 8), device=device) for _ in range(2))
    return Limit("a copy of as many bytes", a.nbytes + b.nbytes, partial(a.copy_, b))


def triad(nbytes: int, device: torch.device) -> Limit:
    """As many bytes in all, two thirds of them read and a third written."""
    a, b, c = (torch.ones(max(1, nbytes // 12), device=device) for _ in range(3))
    return Limit("a triad of as many bytes", 3 * a.nbytes, partial(torch.add, b, c, alpha=2.0, out=a))


def activate_bytes(h: Tensor, table: Tensor, *, moments: bool, backward: bool) -> int:
    """Forward: h is read, result and table rows are written, an id per row, scale and shift. Backward: gradient and h are
    read, the gradient of h is written. Moments take one more pass over h, and one over gradient and h backward."""
    per_feature, ids = 8 * h.shape[1], 8 * h.shape[0]
    forward = 2 * h.nbytes + h.numel() * table.element_size() + ids + per_feature + (h.nbytes if moments else 0)
    if not backward:
        return forward
    return forward + 3 * h.nbytes + ids + 2 * per_feature + (2 * h.nbytes if moments else 0)


def gather_bytes(table: Tensor, index: Tensor, out: Tensor) -> int:
    """Each row read and written, an index each."""
    return index.numel() * (8 + table.shape[1] * table.element_size()) + out.nbytes


def scatter_bytes(table: Tensor, index: Tensor, src: Tensor, stamp: Tensor) -> int:
    """Each row read and written, an index and a stamp each."""
    return src.nbytes + index.numel() * (8 + table.shape[1] * table.element_size() + stamp.element_size())


def halo_bytes(b: Batch) -> int:
    """Row ids, distinct row offsets and all columns read, the halo written."""
    offsets = len(torch.unique(torch.cat([b.rows, b.rows + 1])))
    return 8 * (len(b.rows) + offsets + len(b.halo)) + len(b.columns) * b.adj.col.element_size()


def sample_bytes(b: Batch, rowptr: Tensor, edge: Tensor) -> int:
    """Row ids and distinct row offsets read, row pointers and the edges of the sample written."""
    offsets = len(torch.unique(torch.cat([b.rows, b.rows + 1])))
    return 8 * (len(b.rows) + offsets + rowptr.numel() + edge.numel())


def place_bytes(nodes: Tensor, fresh: Tensor) -> int:
    """The nodes and distinct positions read, a place for each node and 12 bytes per new node written."""
    return nodes.nbytes + 4 * len(torch.unique(nodes)) + 4 * nodes.numel() + 12 * fresh.numel()


def transpose_bytes(rowptr: Tensor, col: Tensor, columns: int) -> int:
    """Row pointers and columns read, as many rows and the columns' pointers written."""
    return rowptr.nbytes + 2 * col.nbytes + 8 * (columns + 1)
