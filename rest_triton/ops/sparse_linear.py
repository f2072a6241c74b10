"""sparse_linear: rows with few nonzero elements times a dense weight."""

import torch
from torch import Tensor

from . import backend, check
from .adjacency import Adjacency
from .sample import transpose
from .spmm import history_spmm


def sparse_linear_definition(rowptr: Tensor, index: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """The definition of :func:`sparse_linear` in plain torch: the product of dense rows. It also takes float64."""
    x = torch.zeros(rowptr.numel() - 1, weight.shape[1], dtype=value.dtype, device=value.device)
    row = torch.repeat_interleave(torch.arange(len(x), device=x.device), rowptr.diff())
    x.index_put_((row, index.long()), value, accumulate=True)
    return torch.nn.functional.linear(x.to(weight.dtype), weight)


def sparse_linear(rowptr: Tensor, index: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """``x W^T`` for a matrix x in CSR format: row i has ``value[k]`` in column ``index[k]``, k from ``rowptr[i]`` to
    ``rowptr[i+1]``. Duplicate elements add up.

    Args:
        rowptr: int64[R+1]. index: int32[K], the columns. value: float32[K], not differentiated.
        weight: [C, F], differentiable: float32, bfloat16 or float16. Autocast applies as to torch's products.

    Returns: [R, C] in the weight's dtype. Sums are accumulated in float32, in one order for any number of threads.

    Example::

        words = SparseRows.from_dense(x)
        h = sparse_linear(words.rowptr, words.index, words.value, lin.weight)
    """
    _check_arguments(rowptr, index, value, weight)
    device = weight.device
    if torch.is_autocast_enabled(device.type) and weight.dtype != torch.float64:
        weight = weight.to(torch.get_autocast_dtype(device.type))
    if backend.runs_definition():
        return sparse_linear_definition(rowptr, index, value, weight)
    rows, columns = torch.arange(rowptr.numel() - 1, device=device), torch.arange(weight.shape[1], device=device)
    reverse = _reverse(rowptr, index, value, columns.numel()) if torch.is_grad_enabled() and weight.requires_grad else None
    x = Adjacency(rowptr, index, edge_weight=value, reverse=reverse, columns=columns.numel(), _checked=True)
    return history_spmm(x, rows, columns.int(), weight.t(), x_rows=columns, row_position=rows.int())


def _reverse(rowptr: Tensor, index: Tensor, value: Tensor, columns: int) -> Adjacency:
    """The elements by column, with their numbers."""
    rows, elements = rowptr.numel() - 1, torch.arange(index.numel() + 1, device=index.device)
    first, element = transpose(elements, index, columns)  # as if each element were a row of its own
    row = torch.repeat_interleave(
        torch.arange(rows, dtype=torch.int32, device=index.device), rowptr.diff(), output_size=index.numel()
    )
    return Adjacency(first, row[element.long()], edge_weight=value, edge_id=element, columns=rows, _checked=True)


def _check_arguments(rowptr: Tensor, index: Tensor, value: Tensor, weight: Tensor) -> None:
    floats = (*check.ROW_DTYPES, torch.float64) if backend.runs_definition() else check.ROW_DTYPES
    check.tensor("rowptr", rowptr, (torch.int64,), 1)
    check.tensor("index", index, (torch.int32,), 1)
    check.tensor("value", value, (torch.float32, torch.float64) if backend.runs_definition() else (torch.float32,), 1)
    check.tensor("weight", weight, floats, 2)
    for name, tensor in (("rowptr", rowptr), ("index", index), ("value", value)):
        check.device(name, tensor, weight.device)
    check.size("value", value, 0, index.numel(), "one per index")
    check.no_gradient("value", value, "only the weight is differentiated")
    if backend.debugging():
        check.row_pointers("rowptr", rowptr, index.numel(), "elements")
        check.in_range("index", index, 0, weight.shape[1], "the columns of weight")
