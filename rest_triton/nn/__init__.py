"""Models. Each implements the equation of its layers once, for all methods."""

from ..utils.errors import did_you_mean
from .appnp import APPNP
from .context import Context
from .gat import GAT
from .gcn import GCN
from .gcnii import GCNII
from .gin import GIN
from .layers import build, parameter_groups
from .model import HistoryGNN
from .pna import PNA

MODELS: dict[str, type[HistoryGNN]] = {"gcn": GCN, "appnp": APPNP, "gcnii": GCNII, "gat": GAT, "gin": GIN, "pna": PNA}


def model_named(name: str) -> type[HistoryGNN]:
    if name not in MODELS:
        raise ValueError(f"model is {name!r}: {did_you_mean(name, MODELS)}")
    return MODELS[name]


__all__ = [
    "APPNP", "GAT", "GCN", "GCNII", "GIN", "MODELS", "PNA", "Context", "HistoryGNN", "build", "model_named",
    "parameter_groups",
]  # fmt: skip
