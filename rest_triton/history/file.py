"""Tables in one file, for checkpoints. They are written and read in pieces, so that memory holds them once.

The file is: "rest_triton tables 1\\n", length of the header (8 bytes), header (JSON), for each table its stamps and rows,
CRC-32 of all bytes before (4 bytes).
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .history import History

MAGIC = b"rest_triton tables 1\n"
PIECE = 64 << 20  # bytes


def save(store: "History", path: Path, step: int) -> None:
    """Write all tables with the number of the step. A crash leaves the old file or the new one."""
    header = json.dumps(_describe(store) | {"step": step}).encode()
    scratch = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            checksum = 0
            for piece in (MAGIC, len(header).to_bytes(8, "little"), header, *_pieces(store)):
                checksum = zlib.crc32(piece, checksum)
                file.write(piece)
            file.write(checksum.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def load(store: "History", path: Path, step: int) -> bool:
    """Read the tables of a file by :func:`save`. Returns False, and reads nothing, if they are of another step.

    The checksum of the whole file is compared before the first row changes.
    """
    with open(path, "rb") as file:
        saved, begin = _check(store, path, file)
        if saved != step:
            return False
        file.seek(begin)
        for tensor in _tensors(store):
            for piece in tensor.split(_rows_per_piece(tensor)):
                values = np.frombuffer(file.read(piece.nbytes), np.uint8)
                piece.copy_(torch.from_numpy(values.copy()).view(piece.dtype).view(piece.shape))
    return True


def _check(store: "History", path: Path, file: BinaryIO) -> tuple[int, int]:
    """(step, offset of the arrays). ValueError if the file is damaged or its tables have another shape."""
    again = f"{path} cannot be used: {{}}; delete it, and the tables are filled again"
    size = path.stat().st_size
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError(again.format("it was not written by this version of rest_triton"))
    length = int.from_bytes(file.read(8), "little")
    if length > size:
        raise ValueError(again.format(f"it ends after {size} bytes, within its header"))
    try:
        header = json.loads(file.read(length))
        step = int(header.pop("step"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(again.format(f"its header cannot be read ({error})")) from None
    for name, value in _describe(store).items():
        if header.get(name) != value:
            raise ValueError(f"{path} has tables with {name} {header.get(name)}, this run has {value}; it is of another run")
    begin = file.tell()
    expected = begin + sum(tensor.nbytes for tensor in _tensors(store)) + 4
    if size != expected:
        raise ValueError(again.format(f"it has {size} bytes instead of {expected}"))
    file.seek(0)
    checksum, left = 0, size - 4
    while left:
        piece = file.read(min(PIECE, left))
        checksum, left = zlib.crc32(piece, checksum), left - len(piece)
    if file.read(4) != checksum.to_bytes(4, "little"):
        raise ValueError(again.format("its checksum is wrong"))
    return step, begin


def _describe(store: "History") -> dict[str, Any]:
    rows = sorted({table.rows.shape[0] for table in store.all_tables}, reverse=True)
    return (
        {
            "num_nodes": store.num_nodes,
            "widths": list(store.widths),
            "dtype": str(store.dtype).removeprefix("torch."),
            "fingerprint": store.fingerprint,
        }
        | ({} if rows in ([], [store.num_nodes]) else {"rows": rows[0] if len(rows) == 1 else rows})
        | {f"{kind}_widths": [t.rows.shape[1] for t in tables] for kind, tables in store.kinds.items() if kind != "input"}
    )


def _tensors(store: "History") -> Iterator[Tensor]:
    for table in store.all_tables:
        yield table.stamp
        yield table.rows


def _rows_per_piece(tensor: Tensor) -> int:
    return max(1, PIECE // max(1, tensor[:1].nbytes)) if tensor.shape[0] else 1


def _pieces(store: "History") -> Iterator[Any]:
    for tensor in _tensors(store):
        for piece in tensor.split(_rows_per_piece(tensor)):
            if piece.numel():
                yield memoryview(piece.cpu().contiguous().view(torch.uint8).numpy()).cast("B")
