"""The Triton kernels and their launchers: same names and arguments as ``rest_triton.kernels.cpu``.

Shapes, dtypes and values were checked by the caller (``rest_triton.ops``), which allocates the outputs as well. A
launch is made on the device of the output, on its current stream.
"""

from .activate import activate, activate_backward, column_moments
from .attention import attention
from .attention_grad import attention_row_grad, attention_source_grad
from .edge_grad import edge_grad
from .halo import halo
from .rows import gather_rows, scatter_rows
from .spmm import spmm

__all__ = [
    "activate",
    "activate_backward",
    "attention",
    "attention_row_grad",
    "attention_source_grad",
    "column_moments",
    "edge_grad",
    "gather_rows",
    "halo",
    "scatter_rows",
    "spmm",
]
