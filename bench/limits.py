"""What this machine can do at best, measured by the simplest loops that do it, in the same rounds as what they limit.

``read_rows`` reads rows whose addresses are already known, with nothing to translate, weigh or write: no index, no
position map, no scale. It is the ceiling for anything that reads the same rows in the same order. It comes twice: as a
plain loop, and asking for rows ahead as the kernels do. On a GPU, torch's index_select into a small buffer stands for it.

``copy`` and ``triad`` (a = b + s c) pass over memory from front to back, between buffers that are there already. ``bus``
is from pinned host memory to a GPU. (Nothing here has run on a GPU.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rest_triton.kernels.cpu.edges import prefetch_row
from rest_triton.kernels.cpu.intrinsics import load_i64, next_ticket
from rest_triton.kernels.cpu.pool import Task
from rest_triton.kernels.cpu.rowtypes import FLOAT32, add_four_rows, code

COUNT, CHUNK, ADDRESSES, WIDTH, DTYPE, AHEAD = range(1, 7)
ASKED_AHEAD = 32  # rows
BUFFER_ROWS = 1 << 16  # of the buffer that a GPU gathers into


@dataclass(frozen=True)
class Limit:
    """``name``: by what. ``mode``: which of an op's modes it limits, or "" for all. ``bytes`` that ``run`` moves."""

    name: str
    mode: str
    bytes: int
    run: Callable[[], object]


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


def read_rows(addresses: Tensor, width: int, like: Tensor, ahead: int) -> None:
    """Read the rows of ``width`` elements at these addresses, a multiple of four of them, ``ahead`` asked for in advance."""
    read_rows_task.launch(addresses.numel(), 3200, addresses, width, code(like), ahead)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


@dataclass(frozen=True)
class Reads:
    """Rows of ``source`` to be read: by address on a CPU, by index on a GPU."""

    source: Tensor
    where: Tensor

    @property
    def bytes(self) -> int:
        return self.where.numel() * self.source.shape[1] * self.source.element_size()

    def run(self, ahead: int) -> None:
        if _on_cpu(self.source):
            read_rows(self.where, self.source.shape[1], self.source, ahead)
            return
        buffer = self.source.new_empty(min(BUFFER_ROWS, len(self.where)), self.source.shape[1])
        for piece in self.where.split(BUFFER_ROWS):
            torch.index_select(self.source, 0, piece, out=buffer[: len(piece)])


def reads(position: Tensor, columns: Tensor, x: Tensor | None, table: Tensor | None) -> list[Reads]:
    """The rows that history_spmm reads, in its order; those of another dtype after the others. Without x or table, its rows
    are not read. Up to three are left out, for the loop takes four at a time."""
    p = position[columns].long()
    sources = [
        (t, p[inside] if t is x else ~p[inside], inside) for t, inside in ((x, p >= 0), (table, p < 0)) if t is not None
    ]
    if not _on_cpu(columns):
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
        found.append(Reads(group[0][0], address[: len(address) // 4 * 4]))
    return found


def row_limits(mode: str, wanted: list[Reads]) -> list[Limit]:
    """Reading just these rows, plainly and asked for ahead."""
    nbytes = sum(r.bytes for r in wanted)
    on_cpu = all(_on_cpu(r.source) for r in wanted)
    ways = {"only reading its rows": 0, "only reading its rows, asked for ahead": ASKED_AHEAD}
    return [
        Limit(name, mode, nbytes, partial(_read_all, wanted, ahead))
        for name, ahead in (ways.items() if on_cpu else [("index_select of its rows", 0)])
    ]


def _read_all(wanted: list[Reads], ahead: int) -> None:
    for some in wanted:
        some.run(ahead)


def copy(nbytes: int, device: torch.device) -> Limit:
    """As many bytes in all, half of them read and half written."""
    a, b = _buffers(2, nbytes // 2, device)
    return Limit("copy", "", a.nbytes + b.nbytes, partial(a.copy_, b))


def triad(nbytes: int, device: torch.device) -> Limit:
    """As many bytes in all, two thirds of them read and a third written."""
    a, b, c = _buffers(3, nbytes // 3, device)
    return Limit("triad", "", 3 * a.nbytes, partial(torch.add, b, c, alpha=2.0, out=a))


def bus(nbytes: int, device: torch.device) -> Limit:
    """From pinned host memory to the GPU."""
    (a,), b = _buffers(1, nbytes, device), torch.ones(max(1, nbytes // 4), pin_memory=True)
    return Limit("pinned host memory to device", "", a.nbytes, partial(a.copy_, b, non_blocking=True))


def _buffers(count: int, nbytes: int, device: torch.device) -> list[Tensor]:
    """float32, written: their pages are there."""
    return [torch.ones(max(1, nbytes // 4), device=device) for _ in range(count)]
