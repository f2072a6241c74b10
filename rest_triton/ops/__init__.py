"""The fused ops. Each is one torch op with its plain-torch definition beside it.

    from rest_triton.ops import Adjacency, history_spmm

Numba kernels compute on tensors in host memory, Triton kernels on tensors on a GPU. Inside
``with use_backend("torch"):`` the definitions compute on both.
"""

from .activate import activate, activate_definition
from .adjacency import Adjacency
from .attention import history_attention, history_attention_definition
from .backend import debug, use_backend
from .halo import halo, halo_definition
from .halo_spmm import halo_spmm
from .inside import edges_inside, edges_inside_definition
from .moments import column_moments, column_moments_definition
from .rows import gather_rows, gather_rows_definition, scatter_rows, scatter_rows_definition
from .sample import (
    place_nodes,
    place_nodes_definition,
    sample_neighbours,
    sample_neighbours_definition,
    transpose,
    transpose_definition,
)
from .sparse_linear import sparse_linear, sparse_linear_definition
from .spmm import history_spmm, history_spmm_definition

__all__ = [
    "Adjacency",
    "activate",
    "activate_definition",
    "column_moments",
    "column_moments_definition",
    "debug",
    "edges_inside",
    "edges_inside_definition",
    "gather_rows",
    "gather_rows_definition",
    "halo",
    "halo_definition",
    "halo_spmm",
    "history_attention",
    "history_attention_definition",
    "history_spmm",
    "history_spmm_definition",
    "place_nodes",
    "place_nodes_definition",
    "sample_neighbours",
    "sample_neighbours_definition",
    "scatter_rows",
    "scatter_rows_definition",
    "sparse_linear",
    "sparse_linear_definition",
    "transpose",
    "transpose_definition",
    "use_backend",
]
