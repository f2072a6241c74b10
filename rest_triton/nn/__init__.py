"""Models, written against a :class:`rest_triton.nn.context.View`."""

from torch.nn import Module

from ..utils.errors import did_you_mean
from .appnp import APPNP
from .gcn import GCN
from .gcnii import GCNII
from .layers import build, parameter_groups

MODELS: dict[str, type[Module]] = {"gcn": GCN, "appnp": APPNP, "gcnii": GCNII}


def model_named(name: str) -> type[Module]:
    if name not in MODELS:
        raise ValueError(f"model is {name!r}: {did_you_mean(name, MODELS)}")
    return MODELS[name]


__all__ = ["APPNP", "GCN", "GCNII", "MODELS", "build", "model_named", "parameter_groups"]
