"""How a kernel's work is written down: the streams of bytes to and from its tensors, and what it waits for.

``least`` counts each item of a tensor once, ``most`` every access, and whole sectors where items lie scattered. Between the
two lies what caches can save.
"""

from dataclasses import dataclass, field
from math import ceil

import torch


@dataclass(frozen=True)
class Precision:
    """Dtypes of activations and of history tables."""

    name: str
    x: torch.dtype
    table: torch.dtype


PRECISIONS = (
    Precision("fp32", torch.float32, torch.float32),
    Precision("bf16 table", torch.float32, torch.bfloat16),
    Precision("bf16", torch.bfloat16, torch.bfloat16),
)


@dataclass(frozen=True)
class Stream:
    """Accesses to one tensor. ``shared``: so few items that no access but the first leaves the cache."""

    name: str
    accesses: int
    distinct: int
    item: int  # bytes next to each other
    write: bool = False
    scattered: bool = False
    shared: bool = False
    far: bool = False  # in the host's memory

    @property
    def least(self) -> int:
        return self.distinct * self.item

    def most(self, sector: int) -> int:
        if self.shared:
            return self.least
        return self.accesses * (ceil(self.item / sector) * sector if self.scattered else self.item)


@dataclass(frozen=True)
class Work:
    """What one launch does. Rounds are loads that wait for each other; those of one tile are asked for together."""

    streams: tuple[Stream, ...]
    programs: int
    warps: int  # of a program
    rounds: int  # of all programs together
    longest: int  # of the program with the most
    flops: int
    far_rounds: int = 0  # of these, over the bus
    cached_rounds: int = 0  # of these, in lists so short that the cache always has them
    loads: int = 0  # 16-byte loads of a lane in one tile; 0 where nobody counts them
    # How often each part of the binary runs: "program" is what is in no loop.
    runs: dict[str, int] = field(default_factory=dict)

    def bytes(self, sector: int | None = None, *, write: bool | None = None, far: bool = False) -> int:
        """Bytes moved: of distinct items, or of all accesses if a sector's size is given."""
        chosen = [s for s in self.streams if s.far == far and write in (None, s.write)]
        return sum(s.least if sector is None else s.most(sector) for s in chosen)
