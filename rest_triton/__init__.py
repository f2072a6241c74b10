"""Training of graph neural networks with historical embeddings, and REST, on fused kernels.

Names are imported on first use: ``import rest_triton`` imports neither torch nor numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import ops
    from .data.convert import from_pyg, from_scipy
    from .data.datasets import load
    from .data.graph import Graph
    from .history.history import History
    from .nn import APPNP, GAT, GCN, GCNII, GIN, PNA, Context, HistoryGNN
    from .nn.pyg import PyGLayer
    from .sampling.loader import ClusterLoader
    from .training.loop import REST

_PUBLIC = {
    "load": ".data.datasets",
    "from_pyg": ".data.convert",
    "from_scipy": ".data.convert",
    "Graph": ".data.graph",
    "ClusterLoader": ".sampling.loader",
    "History": ".history.history",
    "REST": ".training.loop",
    "HistoryGNN": ".nn",
    "Context": ".nn",
    "GAT": ".nn",
    "GCN": ".nn",
    "GIN": ".nn",
    "PNA": ".nn",
    "APPNP": ".nn",
    "GCNII": ".nn",
    "PyGLayer": ".nn.pyg",
}

__all__ = [
    "APPNP", "GAT", "GCN", "GCNII", "GIN", "PNA", "REST", "ClusterLoader", "Context", "Graph", "History", "HistoryGNN",
    "PyGLayer", "from_pyg", "from_scipy", "load", "ops",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "ops":
        return import_module(".ops", __name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
