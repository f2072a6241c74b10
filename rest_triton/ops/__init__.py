"""The fused ops: what to compute. Each one exists once, as a torch op with its plain-torch definition beside it.

    from rest_triton.ops import Adjacency, history_spmm

Tensors in ordinary memory are handled by the Numba kernels, tensors on a GPU by the Triton kernels, and inside
``with use_backend("torch"):`` both by the definitions.
"""

from .activate import activate, activate_definition
from .adjacency import Adjacency
from .attention import history_attention, history_attention_definition
from .backend import debug, use_backend
from .halo import halo, halo_definition
from .halo_spmm import halo_spmm
from .moments import column_moments, column_moments_definition
from .rows import gather_rows, gather_rows_definition, scatter_rows, scatter_rows_definition
from .spmm import history_spmm, history_spmm_definition

__all__ = [
    "Adjacency",
    "activate",
    "activate_definition",
    "column_moments",
    "column_moments_definition",
    "debug",
    "gather_rows",
    "gather_rows_definition",
    "halo",
    "halo_definition",
    "halo_spmm",
    "history_attention",
    "history_attention_definition",
    "history_spmm",
    "history_spmm_definition",
    "scatter_rows",
    "scatter_rows_definition",
    "use_backend",
]
