"""How many batches REST refreshes before a step: a fixed number, or as many as rows need to stay young, or close."""

from typing import Any

from torch import Tensor

from ..config import AUTO, Config
from ..sampling.batch import Batch
from .engine import Engine

SAMPLE = 256  # rows by which drift is measured
SLOWEST, FASTEST = 0.8, 1.25  # what one measurement changes the allowed age by, at the most


class Frequency:
    """F refreshes before every step."""

    def __init__(self, count: int) -> None:
        self.count = count

    def observe(self, engine: Engine, batch: Batch, step: int, age: float) -> None:
        """Before a step on ``batch``, whose rows are ``age`` steps old; nothing is refreshed yet."""

    def reached(self, done: int, age: float) -> bool:
        """Whether ``done`` refreshes are enough. age: the mean over all rows after the step, if there are no more."""
        return done >= self.count

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


class TargetAge(Frequency):
    """As many as it takes for the mean age of rows, in steps, not to exceed ``most``."""

    def __init__(self, most: float) -> None:
        self.most = most

    def reached(self, done: int, age: float) -> bool:
        return age <= self.most


class TargetDrift(TargetAge):
    """As many as it takes for rows not to have moved by more than ``target``, relative to their size, when they are written
    again. What that means in steps is learned: rows of the training batch are read before the step and after it, in the last
    table, where the changes of all layers come together; the age that is allowed falls while they move more than the
    target, and rises while they move less.

    With dropout two forwards of one moment differ, too: a target below that asks for the impossible, and everyone is
    refreshed at every step.
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
            # A checkpoint is loaded on the CPU, whatever the tables are on.
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
    """What a configuration asks for. batches: so many make an epoch; without any refresh rows are younger, on average."""
    if config.frequency != AUTO:
        return Frequency(config.refreshes)
    return TargetDrift(config.target_drift, float(batches)) if config.target_drift > 0 else TargetAge(config.target_age)
