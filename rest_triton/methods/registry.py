"""Methods and refreshes by the names that a configuration has for them."""

from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from .base import Method
from .baselines.cluster_gcn import ClusterGCN
from .baselines.full import Full
from .baselines.layerwise import LADIES, FastGCN
from .baselines.sage import SAGE
from .baselines.saint import EdgeSAINT, NodeSAINT, WalkSAINT
from .baselines.sgc import SGC
from .full_refresh import FullRefresh
from .gas import GAS
from .graphfm import GraphFM
from .lmc import LMC
from .lmc_coded import LMCCoded
from .mvs import MVS
from .refresh import Refresh
from .rest import ClusterRefresh
from .rest_is import HaloRefresh
from .sampled.cached import Cached
from .sampled.graphfm_ib import GraphFMIB
from .sampled.vrgcn import VRGCN

METHODS: dict[str, type[Method]] = {
    "gas": GAS, "lmc": LMC, "lmc-coded": LMCCoded, "graphfm": GraphFM, "graphfm-ib": GraphFMIB, "vrgcn": VRGCN, "mvs": MVS,
    "refresh": Cached, "sage": SAGE, "fastgcn": FastGCN, "ladies": LADIES, "cluster": ClusterGCN, "saint-node": NodeSAINT,
    "saint-edge": EdgeSAINT, "saint-walk": WalkSAINT, "sgc": SGC, "full": Full,
}  # fmt: skip
REFRESHES: dict[str, type[Refresh]] = {"": Refresh, "rest": ClusterRefresh, "rest-is": HaloRefresh}


def method_for(config: Config, ptr: Tensor, device: str = "cpu", graph: Graph | None = None) -> Method:
    """The method of a configuration, without its refresh. The arguments are those of :class:`Method`."""
    return METHODS[config.base](config, ptr, device, graph)


def refresh_for(config: Config, method: Method) -> Refresh:
    """The refresh of a configuration, for a method."""
    kind = FullRefresh if config.rest == "rest" and config.refresh_batch == "full" else REFRESHES[config.rest]
    return kind(config, method)
