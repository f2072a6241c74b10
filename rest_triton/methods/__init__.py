"""Methods: which nodes are computed together, and what a step does with them. REST composes with each of them."""

from torch import Tensor

from ..config import Config
from .base import Method
from .full import Full
from .gas import GAS

METHODS: dict[str, type[Method]] = {"gas": GAS, "full": Full}


def method_for(config: Config, ptr: Tensor, device: str = "cpu") -> Method:
    """The method that a configuration asks for, without its REST part. ptr: int64[K+1], the bounds of the clusters."""
    return METHODS[config.base](config, ptr, device)


__all__ = ["GAS", "METHODS", "Full", "Method", "method_for"]
