"""Models, written against a :class:`rest_triton.view.View`."""

from .appnp import APPNP
from .gcn import GCN
from .gcnii import GCNII

__all__ = ["APPNP", "GCN", "GCNII"]
