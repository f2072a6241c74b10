"""Models, written against a :class:`rest_triton.view.View`."""

from .appnp import APPNP
from .gcn import GCN
from .gcnii import GCNII
from .layers import build, parameter_groups

MODELS = {"gcn": GCN, "appnp": APPNP, "gcnii": GCNII}

__all__ = ["APPNP", "GCN", "GCNII", "MODELS", "build", "parameter_groups"]
