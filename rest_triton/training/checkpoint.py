"""Checkpoints: atomic files with a checksum. Damaged files and those of other runs are refused.

    epoch-000012.pt       weights, optimizer, iterators, step, best scores
    epoch-000012.tables   the history tables after that epoch, with --save-history
    best.pt               like the first, at the best validation score

The file is: "rest_triton checkpoint 1\\n", length of the header (8 bytes), header (JSON: the run's settings and graph),
the output of torch.save, CRC-32 of all bytes before (4 bytes).
"""

import io
import json
import re
import shlex
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from ..config import Config, with_new_names
from ..history import file as tables_file
from ..history.history import History
from ..utils.errors import UserError
from ..utils.files import sync_folder, write_whole

MAGIC = b"rest_triton checkpoint 1\n"
KEPT = 2  # checkpoints of epochs: the older one is for the case that the last one is damaged
# Settings that may change when a run is resumed. They do not change its results.
FREE = {"root", "epochs", "runs", "device", "run_dir", "profile", "history", "features", "save_history"}
FREE |= {"eval_every", "error_every", "checkpoint_every", "memory_budget", "device_budget"}


class Unusable(UserError):
    """A checkpoint that cannot be used. The message names it, the reason and a usable checkpoint."""


def write(path: Path, state: dict[str, Any], config: Config, fingerprint: str) -> None:
    """Write a checkpoint. A crash leaves the old file or the new one."""
    header = json.dumps({"config": asdict(config), "fingerprint": fingerprint}).encode()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    pieces = (MAGIC, len(header).to_bytes(8, "little"), header, buffer.getbuffer())
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    write_whole(path, *pieces, checksum.to_bytes(4, "little"))


def read(path: Path, config: Config | None = None, fingerprint: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, settings of its run). Raises Unusable if it is damaged or of another run than the given one."""
    try:
        return _read(path, config, fingerprint)
    except Unusable as reason:
        raise Unusable(f"{reason}; {_instead(path, config, fingerprint)}") from None


def _read(path: Path, config: Config | None, fingerprint: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if not path.is_file():
        raise Unusable(f"{path} does not exist")
    data = memoryview(path.read_bytes())
    begin = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        what = f"its {len(data)} bytes do not begin as one" if data else "it is empty"
        raise Unusable(f"{path} is not a checkpoint of this version of rest_triton: {what}")
    if len(data) < begin + 4 or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise Unusable(f"{path} is damaged: its {len(data)} bytes do not have the checksum at its end")
    length = int.from_bytes(data[len(MAGIC) : begin], "little")
    try:
        header = json.loads(bytes(data[begin : begin + length]))
        settings, graph = with_new_names(header["config"]), str(header["fingerprint"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"{path} does not say what run it is of ({error!r})") from None
    if fingerprint is not None and graph != fingerprint:
        raise Unusable(f"{path} is of another graph than this run's, or of other clusters of it")
    if config is not None:
        # A version that did not have a setting yet behaved as its default does.
        known = {f.name: f.default for f in fields(Config)} | settings
        differs = [
            f"{name} {known.get(name)!r} instead of {value!r}"
            for name, value in asdict(config).items()
            if name not in FREE and known.get(name) != value
        ]
        if differs:
            raise Unusable(f"{path} is of another run, with {', '.join(differs)}")
    try:
        return torch.load(io.BytesIO(data[begin + length : -4]), map_location="cpu", weights_only=True), settings
    except MemoryError:
        raise
    except Exception:  # torch raises many kinds, and its message advises to run code of the file
        raise Unusable(f"{path} holds something else than tensors and plain values, and is not read any further") from None


def epoch_path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06}.pt"


def epochs(folder: Path) -> list[Path]:
    """The checkpoints of epochs, oldest first."""
    return sorted((path for path in folder.glob("epoch-*.pt") if _number(path) >= 0), key=_number)


def _number(path: Path) -> int:
    """The epoch in a checkpoint's name, -1 without one."""
    match = re.fullmatch(r"epoch-(\d{6,})\.pt", path.name)
    return -1 if match is None else int(match[1])


def _instead(path: Path, config: Config | None, fingerprint: str | None) -> str:
    """Advice that names a usable checkpoint: the newest one before ``path``, or else the newest of all."""
    others = [other for other in reversed(epochs(path.parent)) if other != path]
    before = [other for other in others if _number(other) < _number(path) or _number(path) < 0]
    for other in (*before, *(other for other in others if other not in before)):
        try:
            _read(other, config, fingerprint)
        except Unusable:
            continue
        which = "the one before it" if other in before[:1] else "an older one" if other in before else "a later one"
        return f"{which} is whole: --resume {shlex.quote(str(other))}"
    return "there is no other one before it: start again without --resume"


def tables_path(path: Path) -> Path:
    return path.with_suffix(".tables")


def write_tables(path: Path, store: History, step: int) -> None:
    """Write the tables of a checkpoint beside it. Tables on disk are copied, too, because training changes them."""
    store.streams.finish()
    path.parent.mkdir(parents=True, exist_ok=True)
    tables_file.save(store, tables_path(path), step)
    sync_folder(path.parent)  # the tables' name is durable before the checkpoint's


def read_tables(path: Path, store: History, step: int) -> bool:
    """Restore the tables of a checkpoint. Returns False if it has none. Raises Unusable if they are damaged."""
    store.streams.finish()
    saved = tables_path(path)
    if not saved.exists():
        return False
    try:
        return tables_file.load(store, saved, step)
    except ValueError as reason:
        way_out = "delete it, and the tables are filled again"
        raise Unusable(str(reason) if way_out in str(reason) else f"{reason}; {way_out}") from None


def remove_old(folder: Path) -> None:
    """Remove all checkpoints of epochs but the newest, and leftovers."""
    for path in epochs(folder)[:-KEPT]:
        path.unlink(missing_ok=True)
    _remove_remains(folder)


def remove_after(folder: Path, epoch: int) -> list[str]:
    """Remove the checkpoints of later epochs, which a resumed run computes again. Returns their names."""
    later = [path for path in epochs(folder) if _number(path) > epoch]
    for path in later:
        path.unlink(missing_ok=True)
    _remove_remains(folder)
    return [path.name for path in later]


def _remove_remains(folder: Path) -> None:
    """Remove the leftovers of killed processes: partial files, and tables without a checkpoint."""
    for path in folder.glob("*.partial-*"):
        path.unlink(missing_ok=True)
    for path in folder.glob("epoch-*.tables"):
        if not path.with_suffix(".pt").exists():
            path.unlink(missing_ok=True)
