"""The folder of a run, and what a run prints.

config.yaml      all settings           metrics.jsonl    a line per epoch
plan.txt         memory, as planned     summary.json     the result
checkpoints/     to resume from         events.out.*     for TensorBoard, where it is installed
report.html      and its pictures       trace.json       with --profile
"""

import itertools
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..utils.errors import UserError
from ..utils.files import write_whole
from ..utils.lock import InUse as InUse
from ..utils.lock import locked
from ..utils.machine import most_memory, readable
from ..utils.progress import Progress
from ..utils.text import percent

# Reports are read without torch, which takes seconds to import.
if TYPE_CHECKING:
    import torch

LINES = 50  # of the table of one run, about
HEADER_EVERY = 40  # lines
# Columns of the table and their widths. A terminal that is too narrow shows the first ones.
COLUMNS = {
    "epoch": 6, "loss": 8, "train": 8, "val": 8, "test": 8, "best val": 8, "→ test": 8, "age": 6, "s/step": 7,
    "data/refresh/train": 18, "eval": 8, "memory": 10,
}  # fmt: skip


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The epochs in a metrics.jsonl. A last line that was cut off when its process was killed is left out."""
    lines = path.read_bytes().decode(errors="replace").splitlines() if path.exists() else []
    epochs = []
    for number, line in enumerate(lines, 1):
        try:
            epochs.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"line {number} of {path} is not JSON: {line[:60]!r}; delete that line") from None
    return epochs


class RunDirectory:
    """The folder of one run. It is made if missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._curves: Any = None  # TensorBoard's writer, False where it is not installed

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def write_config(self, config: Config) -> None:
        self.write_text("config.yaml", config.to_yaml())

    def write_text(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.write_text("summary.json", json.dumps(summary, indent=1))

    def summary(self) -> dict[str, Any] | None:
        """The content of summary.json, None if it is missing or damaged."""
        try:
            return json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return None

    def append(self, record: dict[str, Any]) -> None:
        """Add an epoch to metrics.jsonl, durably, and to TensorBoard's curves."""
        # JSON has no NaN, which is the loss of an epoch without training nodes.
        known = {name: None if value != value else value for name, value in record.items()}
        with open(self.metrics, "a") as file:
            file.write(json.dumps(known) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._curves is None:
            self._curves = _summary_writer(self.path)
        if self._curves:
            for name, value in _scalars(record):
                self._curves.add_scalar(name, value, record["epoch"])
            self._curves.flush()

    def records(self) -> list[dict[str, Any]]:
        """The epochs in metrics.jsonl."""
        return read_metrics(self.metrics)

    def forget_after(self, epoch: int) -> None:
        """Remove later epochs from metrics.jsonl: they are trained again."""
        if self.metrics.exists():
            kept = [record for record in self.records() if record["epoch"] <= epoch]
            write_whole(self.metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def close(self) -> None:
        if self._curves:
            self._curves.close()
        self._curves = None


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(folder))


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of an epoch's figures. ``time/refresh`` is one of several, ``staleness/0`` one of each table."""
    for name, value in record.items():
        several = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if several is not None:
            yield from ((f"{name}/{part}", each) for part, each in several)
        elif isinstance(value, int | float) and name != "epoch":
            yield name, value


def claimed(path: Path) -> AbstractContextManager[None]:
    """Hold the folder of a run until the block ends. InUse if another process writes into it."""
    return locked(path, "wait for it, or name another --run-dir")


def check_free(run_dir: str) -> None:
    """Refuse a folder that holds a run already."""
    path = Path(run_dir)
    if (path / "config.yaml").exists():
        raise UserError(f"{path} holds a run already; resume it with --resume {path}, or name another --run-dir")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder with --run-dir")


def new_folder(config: Config) -> Path:
    """Make the folder of a new run: ``run_dir``, or else ``runs/<data set>-<model>-<method>-<number>``."""
    if config.run_dir:
        check_free(config.run_dir)
        return RunDirectory(Path(config.run_dir)).path
    name = Path(config.dataset).stem if config.dataset.endswith(".npz") else config.dataset
    stem = re.sub(r"[^A-Za-z0-9.@=_+-]+", "-", f"{name}-{config.model}-{config.method}")
    for number in itertools.count(1):
        path = Path("runs") / f"{stem}-{number}"
        with suppress(FileExistsError):  # another run may have made it a moment ago
            path.mkdir(parents=True)
            return path
    raise AssertionError


@contextmanager
def profiled(path: Path, wanted: bool) -> Iterator[None]:
    """With ``wanted``, profile the block with torch and write a trace for Perfetto or chrome://tracing to ``path``."""
    if not wanted:
        yield
        return
    import torch
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler prints when it starts and stops
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as trace:
        yield
    trace.export_chrome_trace(str(path))


def peak_memory(device: "torch.device") -> int:
    """The largest number of bytes that this process has held, on the GPU it computes on or of the host."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return most_memory()


class Display:
    """The progress line and the table of one run.

    Args:
        config: of the run. shown: the progress line.
    """

    def __init__(self, config: Config, shown: Progress) -> None:
        self.config, self.shown = config, shown
        self.last: dict[str, Any] = {}
        self.every = max(1, config.epochs // LINES)
        self._printed = 0
        self._columns: list[str] = []

    def batch(self, epoch: int, number: int, count: int, loss: float | None) -> None:
        """Update the progress line after a batch. The last pieces are left out where the terminal is too narrow."""
        last, pieces = self.last, [f"epoch {epoch}/{self.config.epochs}", f"batch {number}/{count}"]
        pieces += [] if loss is None else [f"loss {loss:.4f}"]
        pieces += [f"val {100 * last['val']:.1f} %"] if "val" in last else []
        pieces += [f"{_per_step(last):.3f} s/step"] if "time" in last else []
        pieces += [f"age {last['age']:.1f}"] if "age" in last else []
        pieces += [readable(last["memory"])] if "memory" in last else []
        room = shutil.get_terminal_size().columns - len(f"{self.shown.what}:   9999 s ")
        ends = itertools.accumulate(len(piece) + 2 for piece in pieces)
        self.shown.say(", ".join(piece for piece, end in zip(pieces, ends, strict=True) if end - 2 <= room))

    def epoch(self, record: dict[str, Any], best: dict[str, Any]) -> None:
        """Print a line of the table after the first epoch, the last one, and about fifty in between."""
        self.last = self.last | record
        number = record["epoch"]
        if not (number == 1 or number % self.every == 0 or number == self.config.epochs):
            return
        if self._printed % HEADER_EVERY == 0:
            self._columns = _fitting()
            self._print({name: name for name in COLUMNS})
        self._printed += 1
        spent = {phase: seconds for phase, seconds in record["time"].items() if phase != "evaluation"}
        shares = "/".join(f"{100 * seconds / max(1e-9, sum(spent.values())):.0f}" for seconds in spent.values())
        self._print({
            "epoch": str(number),
            "loss": "-" if math.isnan(record["loss"]) else f"{record['loss']:.4f}",
            **{part: percent(record.get(part)) for part in ("train", "val", "test")},
            "best val": percent(best.get("val")),
            "→ test": percent(best.get("test")),
            "age": f"{record['age']:.1f}" if "age" in record else "-",
            "s/step": f"{_per_step(record):.3f}",
            "data/refresh/train": f"{shares} %",
            "eval": f"{record['time']['evaluation']:.2f} s",
            "memory": readable(record["memory"]),
        })  # fmt: skip

    def _print(self, cells: dict[str, str]) -> None:
        self.shown.print(" ".join(f"{cells[name]:>{COLUMNS[name]}}" for name in self._columns))


def _per_step(record: dict[str, Any]) -> float:
    """Seconds of training per step, without evaluations."""
    return sum(seconds for phase, seconds in record["time"].items() if phase != "evaluation") / max(1, record["steps"])


def _fitting() -> list[str]:
    """The columns that fit the terminal. A file has room for all."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    ends = itertools.accumulate(width + 1 for width in COLUMNS.values())
    return [name for name, end in zip(COLUMNS, ends, strict=True) if end <= room]
