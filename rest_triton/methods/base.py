"""What a method is."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor
from torch.nn import Module

from ..config import Config
from ..history.history import Staged
from ..sampling.batch import Batch
from .engine import Engine


class Method(ABC):
    """One way to train on a graph.

    Args:
        config: the run's. ptr: int64[K+1]; cluster k is the nodes ``ptr[k] .. ptr[k+1]``. device: where rows lie.
    """

    def __init__(self, config: Config, ptr: Tensor, device: str) -> None:
        self.config, self.ptr, self.device = config, ptr, device

    @abstractmethod
    def batches(self, epoch: int) -> list[Batch]:
        """The batches of an epoch; they depend on its number alone, so that it can be repeated."""

    def cover(self) -> list[Batch]:
        """Every node in exactly one of these, to measure by."""
        return self.batches(0)

    @abstractmethod
    def widths(self, model: Module) -> list[int]:
        """The widths of the tables that it needs."""

    def train(
        self,
        engine: Engine,
        batch: Batch,
        step: int,
        loss_of: Callable[[Tensor], Tensor | None],
        staged: list[Staged] | None = None,
    ) -> Tensor | None:
        """Forward and backward of a batch: gradients are added to what is there."""
        return engine.train(batch, step, loss_of, staged=staged)
