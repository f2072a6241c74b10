"""The folder of a run: everything it leaves behind, in files that a person can open.

config.yaml      all settings           metrics.jsonl    a line per epoch
plan.txt         memory, as planned     summary.json     the result, when there is one
checkpoints/     to go on from          events.out.*     curves for TensorBoard
report.html      and its pictures       trace.json       with --profile
"""

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config import Config
from .checkpoint import write_whole
from .events import EventWriter

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PARTS_OF_TIME = "time"


class RunDirectory:
    """One run's folder, new or taken up again.

    Args:
        path: where. It is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._events: EventWriter | None = None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def write_config(self, config: Config) -> None:
        write_whole(self.path / "config.yaml", config.to_yaml().encode())

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_whole(self.path / "summary.json", json.dumps(summary, indent=1).encode())

    def summary(self) -> dict[str, Any] | None:
        """What :meth:`write_summary` wrote; None if it did not."""
        try:
            return json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return None

    def append(self, record: dict[str, Any]) -> None:
        """One epoch's figures: a line of metrics.jsonl, on disk before this returns, and TensorBoard's curves."""
        # JSON has no NaN, which is the loss of an epoch without a training node.
        known = {name: None if value != value else value for name, value in record.items()}
        with open(self.metrics, "a") as file:
            file.write(json.dumps(known) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._events is None:
            self._events = EventWriter(self.path)
        flat = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "epoch"}
        flat |= {f"{PARTS_OF_TIME}/{name}": value for name, value in record.get(PARTS_OF_TIME, {}).items()}
        for name, values in record.items():
            if isinstance(values, list):  # one for each table
                flat |= {f"{name}/{number}": value for number, value in enumerate(values)}
        self._events.scalars(record["epoch"], flat)

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one that was torn is left out, and all after it."""
        found: list[dict[str, Any]] = []
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    break
        return found

    def forget_after(self, epoch: int) -> None:
        """Remove the figures of later epochs: they are computed again."""
        if self.metrics.exists():
            kept = [record for record in self.records() if record["epoch"] <= epoch]
            write_whole(self.metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


class InUse(ValueError):
    """Another process is writing into the folder."""


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """The folder is this process's until the block ends, or InUse at once. A process that was killed claims nothing."""
    path.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    folder = os.open(path, os.O_RDONLY)  # the folder itself is locked: no file is left in it
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise InUse(f"{path} is being written by another process; wait for it, or name another --run-dir") from None
    except OSError:
        pass  # a file system that knows no locks
    try:
        yield
    finally:
        os.close(folder)


def check_free(run_dir: str) -> None:
    """An error if a new run would overwrite what is there."""
    path = Path(run_dir)
    if (path / "config.yaml").exists():
        raise ValueError(f"{path} holds a run already; go on with it by --resume {path}, or name another --run-dir")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; name a folder with --run-dir, one that is not there yet is made")


def new_folder(config: Config) -> Path:
    """Make the folder of a new run: ``run_dir`` if that is free, else an error; without one, a new name in ``runs/``."""
    if config.run_dir:
        check_free(config.run_dir)
        return RunDirectory(Path(config.run_dir)).path
    name = Path(config.dataset).stem if config.dataset.endswith(".npz") else config.dataset
    stem = re.sub(r"[^A-Za-z0-9.@=_+-]+", "-", f"{name}-{config.model}-{config.method}")
    for number in itertools.count(1):
        path = Path("runs") / f"{stem}-{number}"
        with suppress(FileExistsError):  # also of a run that began a moment ago
            path.mkdir(parents=True)
            return path
    raise AssertionError
