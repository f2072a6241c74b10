"""What a person sees of a run: a bar on a terminal, lines everywhere."""

import resource
import shutil
import sys
from typing import Any

import torch

from .config import Config
from .machine import readable
from .progress import Progress

BAR = 16  # characters
LINES = 50  # printed per run, about: not one for each of a thousand epochs
HEADER_EVERY = 40  # lines
COLUMNS = {  # and how wide they are
    "epoch": 6, "loss": 8, "train": 7, "val": 7, "test": 7, "best val": 8, "→ test": 7, "age": 6, "s/step": 7,
    "data/refresh/train": 18, "eval": 7, "memory": 9,
}  # fmt: skip
LEFT_OUT = ("data/refresh/train", "eval", "train", "→ test", "memory", "s/step", "age")  # in this order, until the rest fits


def peak_memory(device: torch.device) -> int:
    """The most that this process has held: on the GPU it computes on, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


class Display:
    """Tells of one run's epochs.

    Args:
        config: the run's. shown: the line on the terminal.
    """

    def __init__(self, config: Config, shown: Progress) -> None:
        self.config, self.shown = config, shown
        self.last: dict[str, Any] = {}
        self.every = max(1, config.epochs // LINES)
        self._lines = 0
        self._columns = list(COLUMNS)

    def batch(self, epoch: int, number: int, count: int, loss: float | None) -> None:
        """After every batch: the bar. A narrow terminal has no room for shares of time, or not even for the bar."""
        room = shutil.get_terminal_size().columns - len(f"{self.shown.what}:   12345 s ")
        for bar, shares in ((True, True), (True, False), (False, False)):
            text = self._batch(epoch, number, count, loss, bar, shares)
            if len(text) <= room:
                break
        self.shown.say(text)

    def _batch(self, epoch: int, number: int, count: int, loss: float | None, bar: bool, shares: bool) -> str:
        filled = round(BAR * ((epoch - 1) + number / count) / self.config.epochs)
        drawn = f" [{'#' * filled}{'.' * (BAR - filled)}]" if bar else ""
        parts = [f"epoch {epoch}/{self.config.epochs}{drawn}", f"batch {number}/{count}"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if "val" in self.last:
            parts.append(f"val {100 * self.last['val']:.1f} %")
        if "age" in self.last:
            parts.append(f"age {self.last['age']:.1f}")
        if "time" in self.last:
            split = f" (data/refresh/train {self.split(self.last)})" if shares else ""
            parts += [f"{self.per_step(self.last):.3f} s/step{split}", readable(self.last["memory"])]
        return ", ".join(parts)

    @staticmethod
    def per_step(record: dict[str, Any]) -> float:
        spent = sum(seconds for phase, seconds in record["time"].items() if phase != "evaluation")
        return spent / max(1, record["steps"])

    @staticmethod
    def split(record: dict[str, Any]) -> str:
        """Shares of data, refresh and training in a step."""
        parts = {phase: seconds for phase, seconds in record["time"].items() if phase != "evaluation"}
        whole = max(1e-9, sum(parts.values()))
        return "/".join(f"{100 * seconds / whole:.0f}" for seconds in parts.values()) + " %"

    def epoch(self, record: dict[str, Any], best: dict[str, Any]) -> None:
        """After every epoch: a line, if it is one of those that are printed."""
        self.last = self.last | record
        number = record["epoch"]
        if not (number == 1 or number % self.every == 0 or number == self.config.epochs):
            return
        if self._lines % HEADER_EVERY == 0:
            self._columns = _fitting()
            self.shown.print(self._line({name: name for name in COLUMNS}))
        self._lines += 1
        self.shown.print(
            self._line({
                "epoch": str(number),
                "loss": f"{record['loss']:.4f}",
                **{part: percent(record.get(part)) for part in ("train", "val", "test")},
                "best val": percent(best.get("val")),
                "→ test": percent(best.get("test")),
                "age": f"{record['age']:.1f}" if "age" in record else "-",
                "s/step": f"{self.per_step(record):.3f}",
                "data/refresh/train": self.split(record),
                "eval": f"{record['time']['evaluation']:.2f} s",
                "memory": readable(record["memory"]),
            })
        )  # fmt: skip

    def _line(self, cells: dict[str, str]) -> str:
        return " ".join(f"{cells[name]:>{COLUMNS[name]}}" for name in self._columns)


def _fitting() -> list[str]:
    """The columns that a line has room for: all of them in a file."""
    names = list(COLUMNS)
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for name in LEFT_OUT:
        if sum(COLUMNS[n] + 1 for n in names) > wide:
            names.remove(name)
    return names
