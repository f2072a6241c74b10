"""The Triton kernels and their launchers: same names and arguments as ``rest_triton.kernels.cpu``.

The caller (``rest_triton.ops``) checks shapes, dtypes and values, and allocates the outputs. Kernels run on the output's
device, on its current stream.
"""

from .activate import activate, activate_backward, column_moments
from .attention import attention
from .attention_grad import attention_row_grad, attention_source_grad
from .edge_grad import edge_grad
from .halo import halo
from .inside import edges_inside
from .rows import gather_rows, scatter_rows
from .sample import place_nodes, sample_neighbours, transpose
from .spmm import spmm

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
