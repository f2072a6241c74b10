"""Tables that are written once and then only read: features, and their aggregate."""

import json
import mmap
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..ops.memory import new_rows
from ..utils.errors import UserError
from ..utils.files import replacing, write_whole
from ..utils.progress import notice
from .disk import DiskTable, require_room
from .table import DeviceTable, PinnedTable, Table

LARGEST = 65_504  # the largest float16
PIECE = 64 << 20  # bytes that are read at a time
WAY_OUT = "free some, put --root on another disk, or give --feature-dtype float16"


@dataclass(frozen=True)
class Storage:
    """The place and the number format of such tables.

    Args:
        place: ``device``, ``pinned`` (without a GPU it means ``device``) or ``disk``, as for a History.
        dtype: of the rows. folder: of the files, for ``disk``; they stay for later runs.
        name: of the adjacency, for the name of a file.
    """

    place: str = "device"
    dtype: torch.dtype = torch.float32
    folder: Path | None = None
    name: str = "sum"

    def table(self, name: str, shape: tuple[int, int], pieces: Iterator[Tensor], device: torch.device) -> Table:
        """A table of these rows, on disk the one that an earlier run has written.

        Args:
            name: of the file. pieces: consecutive rows, on any device. device: of the model.
        """
        nothing = torch.empty(0, dtype=torch.int32)  # a row that never changes needs no stamp
        if self.place == "disk":
            assert self.folder is not None
            return DiskTable(name, self._file(name, shape, pieces), nothing, [])
        pinned = self.place == "pinned" and device.type == "cuda"
        rows = torch.empty(shape, dtype=self.dtype, pin_memory=True) if pinned else new_rows(*shape, self.dtype, device)
        at = 0
        for piece in pieces:
            rows[at : at + len(piece)] = narrow(piece, self.dtype, name, at)
            at += len(piece)
        return (PinnedTable if pinned else DeviceTable)(name, rows, nothing)

    def _file(self, name: str, shape: tuple[int, int], pieces: Iterator[Tensor]) -> Tensor:
        """The rows of a file, which is written first if there is none. A crash leaves no file, or a whole one."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        dtype = str(self.dtype).removeprefix("torch.")
        path = self.folder / f"{name}-{dtype}.rows"
        about = path.with_suffix(".json")
        wanted = {"shape": list(shape), "dtype": dtype}
        reason = _damage(path, about, wanted)
        if reason is not None:
            if about.exists():
                notice(f"{path} {reason}: it is written again")
                about.unlink()
            require_room(self.folder, shape[0] * shape[1] * self.dtype.itemsize, "features", WAY_OUT)
            checksum = at = 0
            with replacing(path) as file:
                for piece in pieces:
                    rows = narrow(piece, self.dtype, name, at).cpu().contiguous()
                    data = rows.view(torch.uint8).numpy().data
                    checksum, at = zlib.crc32(data, checksum), at + len(rows)
                    file.write(data)
            write_whole(about, json.dumps(wanted | {"crc": checksum}).encode())
        return _mapped(path, self.dtype).view(shape)


def _mapped(path: Path, dtype: torch.dtype) -> Tensor:
    """A file as a tensor that must not be written. The system counts no memory for such a map, however large it is."""
    if path.stat().st_size == 0:
        return torch.empty(0, dtype=dtype)
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no tensors that are read-only
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=dtype)


def narrow(rows: Tensor, dtype: torch.dtype, name: str, first: int) -> Tensor:
    """Rows in another format. UserError if float16 cannot hold a value. first: the number of the first row."""
    if dtype == torch.float16 and rows.dtype != torch.float16:
        bad = torch.nonzero(~(rows.abs() <= LARGEST))
        if bad.numel() > 0:
            row, column = bad[0].tolist()
            raise UserError(
                f"row {first + row} of {name} (in the order of clusters) has {float(rows[row, column])}; float16 holds "
                f"finite values up to {LARGEST:,}; give --feature-dtype bfloat16"
            )
    return rows.to(dtype)


def _damage(path: Path, about: Path, wanted: dict[str, Any]) -> str | None:
    """What is wrong with a file of rows, None if it is whole. All bytes are read, in order."""
    try:
        found = json.loads(about.read_text())
        size = path.stat().st_size
        expected = wanted["shape"][0] * wanted["shape"][1] * getattr(torch, wanted["dtype"]).itemsize
        if {key: found[key] for key in wanted} != wanted or size != expected:
            return f"has {size} bytes instead of {expected}"
        checksum = 0
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                checksum = zlib.crc32(piece, checksum)
        return None if checksum == found["crc"] else "has a wrong checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be read ({type(error).__name__})"
