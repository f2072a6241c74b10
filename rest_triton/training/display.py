"""What a person sees of a run: a bar on a terminal, lines everywhere."""

import math
import shutil
import sys
from typing import Any

import torch

from ..config import Config
from ..utils.machine import most_memory, readable
from ..utils.progress import Progress

BAR = 16  # characters
LINES = 50  # printed per run, about: not one for each of a thousand epochs
HEADER_EVERY = 40  # lines
COLUMNS = {  # and how wide they are
    "epoch": 6, "loss": 8, "train": 8, "val": 8, "test": 8, "best val": 8, "→ test": 8, "age": 6, "s/step": 7,
    "data/refresh/train": 18, "eval": 8, "memory": 10,
}  # fmt: skip
# What a narrow terminal has no room for, in this order until the rest fits: columns, and pieces of the line with the bar.
LEFT_OUT = ("data/refresh/train", "eval", "train", "→ test", "memory", "s/step", "age")
NOT_SAID = ("shares", "bar", "memory", "age", "val")


def peak_memory(device: torch.device) -> int:
    """The most that this process has held: on the GPU it computes on, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return most_memory()


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
        """After every batch: the bar, and as much else as the terminal has room for."""
        pieces = self._pieces(epoch, number, count, loss)
        room = shutil.get_terminal_size().columns - len(f"{self.shown.what}:   9999 s ")
        for name in NOT_SAID:
            if sum(map(len, pieces.values())) > room:
                pieces.pop(name, None)
        self.shown.say("".join(pieces.values()))

    def _pieces(self, epoch: int, number: int, count: int, loss: float | None) -> dict[str, str]:
        last, filled = self.last, round(BAR * ((epoch - 1) + number / count) / self.config.epochs)
        pieces = {
            "epoch": f"epoch {epoch}/{self.config.epochs}",
            "bar": f" [{'#' * filled}{'.' * (BAR - filled)}]",
            "batch": f", batch {number}/{count}",
        }
        if loss is not None:
            pieces["loss"] = f", loss {loss:.4f}"
        if "val" in last:
            pieces["val"] = f", val {100 * last['val']:.1f} %"
        if "age" in last:
            pieces["age"] = f", age {last['age']:.1f}"
        if "time" in last:
            pieces["step"] = f", {self.per_step(last):.3f} s/step"
            pieces["shares"] = f" (data/refresh/train {self.split(last)})"
            pieces["memory"] = f", {readable(last['memory'])}"
        return pieces

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
                "loss": "-" if math.isnan(record["loss"]) else f"{record['loss']:.4f}",
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
