"""The number of batches that REST refreshes before a step: fixed, or controlled by the age or the drift of rows."""

from typing import Any

from torch import Tensor

from ..config import Config
from ..sampling.batch import Batch
from .engine import Engine
from .options import AUTO

SAMPLE = 256  # rows that drift is measured on
SLOWEST, FASTEST = 0.8, 1.25  # limits of the factor by which one measurement changes the allowed age


class Frequency:
    """A fixed number of refreshes before every step."""

    def __init__(self, count: int) -> None:
        self.count = count

    def observe(self, engine: Engine, batch: Batch, step: int, age: float) -> None:
        """Called before the refreshes of a step. age: of the rows of ``batch``, in steps."""

    def reached(self, done: int, age: float) -> bool:
        """Whether ``done`` refreshes are enough. age: the mean age of all rows after the step without further refreshes."""
        return done >= self.count

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


class TargetAge(Frequency):
    """Refreshes until the mean age of rows is at most ``most`` steps."""

    def __init__(self, most: float) -> None:
        self.most = most

    def reached(self, done: int, age: float) -> bool:
        return age <= self.most


class TargetDrift(TargetAge):
    """Refreshes until rows change by at most ``target``, relative to their norm, between two writes.

    The allowed age is learned. Rows of the training batch are read before and after the step in the last table, which
    depends on all layers. The allowed age falls while they change by more than the target, and rises otherwise.

    With dropout two forwards with the same weights differ. A target below that difference refreshes all clusters at every
    step.
    """

    def __init__(self, target: float, longest: float) -> None:
        super().__init__(longest)
        self.target, self.longest = target, longest
        self.seen: tuple[Tensor, Tensor, float] | None = None  # nodes, their rows, their age

    def observe(self, engine: Engine, batch: Batch, step: int, age: float) -> None:
        history = engine.history
        if not history.tables:
            return
        last = len(history.tables) - 1
        if self.seen is not None:
            nodes, before, waited = self.seen
            # A checkpoint is loaded on the CPU; the tables may be on another device.
            nodes, before = nodes.to(engine.inputs.device), before.to(engine.inputs.device)
            now = history.read(last, nodes)
            drift = float((now - before).norm(dim=1).mean() / now.norm(dim=1).mean().clamp_min(1e-12))
            if waited > 0:
                self.most *= min(FASTEST, max(SLOWEST, self.target / max(drift, 1e-12)))
                self.most = min(self.longest, self.most)
        nodes = batch.rows[:: -(-len(batch) // SAMPLE)] if len(batch) else batch.rows
        self.seen = nodes, history.read(last, nodes), age

    def state(self) -> dict[str, Any]:
        return {"most": self.most, "seen": self.seen}

    def load(self, state: dict[str, Any]) -> None:
        self.most, self.seen = state["most"], state["seen"]


def frequency_for(config: Config, batches: int) -> Frequency:
    """The frequency of a configuration. batches: per epoch; without refreshes the mean age is smaller than that."""
    if config.frequency != AUTO:
        return Frequency(config.refreshes)
    return TargetDrift(config.target_drift, float(batches)) if config.target_drift > 0 else TargetAge(config.target_age)
