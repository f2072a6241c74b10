"""Numba kernels: the same launchers as ``kernels.gpu``, for tensors in ordinary memory."""

from .activate import activate, activate_backward
from .attention import attention
from .attention_grad import attention_row_grad, attention_source_grad
from .edge_grad import edge_grad
from .halo import halo
from .inside import edges_inside
from .moments import column_moments
from .places import place_nodes
from .rows import gather_rows, scatter_rows
from .sample import sample_neighbours
from .spmm import spmm
from .transpose import transpose

__all__ = [
    "activate",
    "activate_backward",
    "attention",
    "attention_row_grad",
    "attention_source_grad",
    "column_moments",
    "edge_grad",
    "edges_inside",
    "gather_rows",
    "halo",
    "place_nodes",
    "sample_neighbours",
    "scatter_rows",
    "spmm",
    "transpose",
]
