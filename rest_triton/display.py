"""What a person sees of a run: a bar on a terminal, lines everywhere."""

import resource
import sys
from typing import Any

import torch

from .config import Config
from .machine import readable
from .progress import Progress

BAR = 16  # characters
LINES = 50  # printed per run, about: not one for each of a thousand epochs


def peak_memory(device: torch.device) -> int:
    """The most that this process has held: on the GPU it computes on, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def percent(value: float | None) -> str:
    return "      -" if value is None else f"{100 * value:5.2f} %"


class Display:
    """Tells of one run's epochs.

    Args:
        config: the run's. shown: the line on the terminal.
    """

    HEADER = (
        f"{'epoch':>6} {'loss':>8} {'train':>7} {'val':>7} {'test':>7} {'best val':>8} {'→ test':>7} {'age':>6} "
        f"{'s/step':>7}  data/refresh/train {'eval':>7} {'memory':>9}"
    )

    def __init__(self, config: Config, shown: Progress) -> None:
        self.config, self.shown = config, shown
        self.last: dict[str, Any] = {}
        self.every = max(1, config.epochs // LINES)
        self._lines = 0

    def batch(self, epoch: int, number: int, count: int, loss: float | None) -> None:
        """After every batch: the bar."""
        done = ((epoch - 1) + number / count) / self.config.epochs
        filled = round(BAR * done)
        parts = [
            f"epoch {epoch} of {self.config.epochs} [{'#' * filled}{'.' * (BAR - filled)}]",
            f"batch {number} of {count}",
        ]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if "val" in self.last:
            parts.append(f"val {100 * self.last['val']:.1f} %")
        if "age" in self.last:
            parts.append(f"age {self.last['age']:.1f}")
        if "time" in self.last:
            parts.append(f"{self.per_step(self.last):.3f} s/step ({self.split(self.last)})")
            parts.append(readable(self.last["memory"]))
        self.shown.say(", ".join(parts))

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
        if self._lines % 40 == 0:
            self.shown.print(self.HEADER)
        self._lines += 1
        age = f"{record['age']:6.1f}" if "age" in record else "     -"
        self.shown.print(
            f"{number:6} {record['loss']:8.4f} {percent(record.get('train'))} {percent(record.get('val'))} "
            f"{percent(record.get('test'))} {percent(best.get('val')):>8} {percent(best.get('test'))} {age} "
            f"{self.per_step(record):7.3f} {self.split(record):>19} {record['time']['evaluation']:5.2f} s "
            f"{readable(record['memory']):>9}"
        )
