"""Checkpoints: whole or not there. A file that was torn, or is of another run, is refused by name.

    epoch-000012.pt       weights, optimizer, iterators, step, best scores
    epoch-000012.tables   the history tables of that moment, if they are saved
    best.pt               the same as the former, of the best validation score

"rest_triton checkpoint 1\\n", length of the header (8 bytes), header (JSON: what run it is of), what torch.save wrote,
CRC-32 of all that (4 bytes)
"""

import io
import json
import os
import re
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import tables_file
from .config import Config
from .history import HistoryStore

MAGIC = b"rest_triton checkpoint 1\n"
KEPT = 2  # checkpoints of epochs: should the last one be damaged, there is the one before
# What may be another when a run goes on: how long it is, what it shows and where it is. All the rest makes it another run.
FREE = {"root", "epochs", "runs", "device", "run_dir", "profile", "history", "save_history"}
FREE |= {"eval_every", "error_every", "checkpoint_every"}


class Unusable(ValueError):
    """A checkpoint that cannot be used. The message says which, why, and what can be used instead."""


def write(path: Path, state: dict[str, Any], config: Config, fingerprint: str) -> None:
    """Write a checkpoint: all of the file or none of it, whenever the process ends."""
    header = json.dumps({"config": asdict(config), "fingerprint": fingerprint}).encode()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    pieces = (MAGIC, len(header).to_bytes(8, "little"), header, buffer.getbuffer())
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    write_whole(path, *pieces, checksum.to_bytes(4, "little"))


def write_whole(path: Path, *pieces: Any) -> None:
    """A file with these bytes, by way of a temporary one: readers see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with open(scratch, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Names in a folder are durable only when the folder itself is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, config: Config | None = None, fingerprint: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, the settings of the run it is of). Unusable if it is damaged, or of another run than the one given."""
    if not path.is_file():
        raise Unusable(f"{path} does not exist{_instead(path)}")
    data = path.read_bytes()
    begin = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise Unusable(f"{path} is not a checkpoint of this version of rest_triton{_instead(path)}")
    if len(data) < begin + 4 or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise Unusable(f"{path} is damaged: its {len(data)} bytes do not have the checksum at its end{_instead(path)}")
    length = int.from_bytes(data[len(MAGIC) : begin], "little")
    header = json.loads(data[begin : begin + length])
    if fingerprint is not None and header["fingerprint"] != fingerprint:
        raise Unusable(f"{path} is of another graph than this run's, or of other clusters of it{_instead(path)}")
    if config is not None:
        differs = [
            f"{name} {header['config'].get(name)!r} instead of {value!r}"
            for name, value in asdict(config).items()
            if name not in FREE and header["config"].get(name) != value
        ]
        if differs:
            raise Unusable(f"{path} is of another run, with {', '.join(differs)}{_instead(path)}")
    state = torch.load(io.BytesIO(data[begin + length : -4]), map_location="cpu", weights_only=True)
    return state, header["config"]


def epoch_path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06}.pt"


def epochs(folder: Path) -> list[Path]:
    """The checkpoints of epochs, oldest first."""
    return sorted(p for p in folder.glob("epoch-*.pt") if re.fullmatch(r"epoch-\d{6,}\.pt", p.name))


def _instead(path: Path) -> str:
    """The newest other checkpoint of the same run that is whole, as advice."""
    for other in reversed([p for p in epochs(path.parent) if p < path]):
        try:
            read(other)
        except Unusable:
            continue
        return f"; the one before it is whole: --resume {other}"
    return "; there is no other one before it: start again without --resume"


def tables_path(path: Path) -> Path:
    return path.with_suffix(".tables")


def write_tables(path: Path, store: HistoryStore, step: int) -> None:
    """The tables that belong to a checkpoint, beside it; a copy also of tables on disk, for those go on changing."""
    store.lanes.finish()
    path.parent.mkdir(parents=True, exist_ok=True)
    tables_file.save(store, tables_path(path), step)


def read_tables(path: Path, store: HistoryStore, step: int) -> bool:
    """Take the tables of a checkpoint back; False if none were saved with it."""
    store.lanes.finish()
    if not tables_path(path).exists():
        return False
    if store.files is not None:
        store.files.opened()
    return tables_file.load(store, tables_path(path), step)


def remove_old(folder: Path) -> None:
    """All checkpoints of epochs but the newest, and tables whose checkpoint is gone."""
    for path in epochs(folder)[:-KEPT]:
        path.unlink(missing_ok=True)
    for path in folder.glob("epoch-*.tables"):
        if not path.with_suffix(".pt").exists():
            path.unlink(missing_ok=True)
    for path in folder.glob("*.partial-*"):
        path.unlink(missing_ok=True)
