"""Small programs for several streams."""

from collections.abc import Callable

import torch
from torch import Tensor

from rest_triton.history.streams import COMPUTE, IO, REFRESH, Resource
from tests.streams.recorder import Recording


def recorded(program: Callable[[Recording], object]) -> Recording:
    with Recording() as streams:
        program(streams)
    return streams


class Everything:
    """Steps that need each kind of waiting: tables go from compute to refresh and back, h from compute to io, and the writer
    reads and writes what the others do. Each step leaves its mark in all of the state."""

    def __init__(self) -> None:
        self.table, self.mirror, self.disk = (torch.arange(6.0).view(3, 2) + n for n in range(3))
        self.sums = torch.zeros(2)

    @property
    def state(self) -> list[Tensor]:
        return [self.table, self.mirror, self.disk, self.sums]

    def __call__(self, streams: Recording) -> None:
        table, mirror, disk, sums = (Resource(name) for name in ("table", "mirror", "disk", "sums"))
        for step in range(3):
            streams.submit(COMPUTE, lambda: self.table.mul_(0.5).add_(self.mirror), reads=[mirror], writes=[table])
            streams.submit(REFRESH, lambda: self.sums.add_(self.table.sum(0)), reads=[table], writes=[sums])
            h = self.table.new_full((3, 2), 1.0 + step).cumsum(0)  # after all that io waits for otherwise
            streams.submit(IO, lambda h=h: self.mirror.mul_(0.5).add_(h), writes=[mirror], inputs=[h])
            streams.submit_io(lambda: self.disk.mul_(0.5).add_(self.mirror), reads=[mirror], writes=[disk])
            streams.submit(COMPUTE, lambda: self.table.sub_(self.disk), reads=[disk], writes=[table])
            streams.submit(REFRESH, lambda: self.disk.sub_(self.table), reads=[table], writes=[disk])
        streams.submit_io(lambda: self.disk.mul_(self.sums), reads=[sums], writes=[disk])
        streams.submit(IO, lambda: self.disk.add_(1), writes=[disk])
