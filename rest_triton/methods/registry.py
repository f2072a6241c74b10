"""Methods and refreshes by the names that a configuration has for them."""

from torch import Tensor

from ..config import Config
from .base import Method
from .full import Full
from .gas import GAS
from .graphfm import GraphFM
from .refresh import Refresh
from .rest import REST, FullRefresh
from .rest_is import RESTIS

METHODS: dict[str, type[Method]] = {"gas": GAS, "graphfm": GraphFM, "full": Full}
REFRESHES: dict[str, type[Refresh]] = {"": Refresh, "rest": REST, "rest-is": RESTIS}


def method_for(config: Config, ptr: Tensor, device: str = "cpu") -> Method:
    """The method of a configuration, without its refresh. ptr: int64[K+1], the bounds of the clusters."""
    return METHODS[config.base](config, ptr, device)


def refresh_for(config: Config, method: Method) -> Refresh:
    """The refresh of a configuration, for a method."""
    kind = FullRefresh if config.rest == "rest" and config.refresh_batch == "full" else REFRESHES[config.rest]
    return kind(config, method)
