"""gather_rows and scatter_rows: copy rows out of and into a table, with conversion of dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import backend, check
from .library import define, dense, differentiate, mutate, row_major
from .memory import new_rows


def gather_rows_definition(
    table: Tensor, index: Tensor, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """The definition of :func:`gather_rows` in plain torch."""
    rows = table[index.to(table.device)].to(index.device, dtype or table.dtype)
    return rows if out is None else out.copy_(rows)


def gather_rows(table: Tensor, index: Tensor, *, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """``table[index]`` in another dtype, in one pass.

    Args:
        table: [N, D] float32, bfloat16 or float16, differentiable. The GPU reads it directly from pinned host memory.
        index: int64[K], on the device of the result.
        dtype: of the result. Default: the table's.
        out: [K, D], written and returned. The result has its dtype and is not differentiated. A buffer that is used again
            costs no page faults.

    Returns: [K, D].

    Example::

        staging = gather_rows(table, halo(adj, rows), dtype=torch.float32)
    """
    check.tensor("table", table, check.ROW_DTYPES, 2)
    check.tensor("index", index, (torch.int64,), 1)
    check.device("table", table, index.device, may_be_pinned=True)
    if dtype is not None and dtype not in check.ROW_DTYPES:
        raise TypeError(f"dtype is {dtype}; it must be {check.names(check.ROW_DTYPES)}")
    if out is not None:
        check.tensor("out", out, check.ROW_DTYPES, 2)
        check.size("out", out, 0, index.shape[0], "one per index")
        check.size("out", out, 1, table.shape[1], "the width of the table")
        check.device("out", out, index.device)
        check.no_gradient("table", table, "out is written, not differentiated")
        if out.stride(1) != 1 and out.shape[1] > 1:
            raise ValueError(f"out has strides {out.stride()}; its rows must be contiguous to be written")
        if dtype not in (None, out.dtype):
            raise TypeError(f"dtype is {dtype}, but out is {out.dtype}; do not pass dtype with out")
    if backend.debugging():
        check.in_range("index", index, 0, table.shape[0], "the rows of the table")
    if backend.runs_definition():
        return gather_rows_definition(table, index, dtype=dtype, out=out)
    if out is not None:
        _gather_into(table, index, out)
        return out
    return _gather(table, index, dtype or table.dtype)


def scatter_rows_definition(
    table: Tensor, index: Tensor, src: Tensor, *, blend: float = 1.0, stamp: Tensor | None = None, step: int = 0
) -> None:
    """The definition of :func:`scatter_rows` in plain torch."""
    index, new = index.to(table.device), src.detach().to(table.device, torch.float32)
    if blend != 1.0:
        new = (1 - blend) * table[index].float() + blend * new
    table[index] = new.to(table.dtype)
    if stamp is not None:
        stamp[index.to(stamp.device)] = step


def scatter_rows(
    table: Tensor, index: Tensor, src: Tensor, *, blend: float = 1.0, stamp: Tensor | None = None, step: int = 0
) -> None:
    """``table[index] = src`` in the table's dtype, in one pass. ``src`` is not differentiated.

    Args:
        table: [N, D] float32, bfloat16 or float16, written. The GPU writes it directly in pinned host memory.
        index: int64[K], distinct.
        src: [K, D] float32, bfloat16 or float16.
        blend: the rows become ``(1 - blend) * old + blend * new``.
        stamp: int32[N] or int64[N], the step at which each row was written: ``stamp[index] = step``.

    Example::

        scatter_rows(table, rows, h, stamp=written_at, step=step)
    """
    check.tensor("table", table, check.ROW_DTYPES, 2)
    check.tensor("index", index, (torch.int64,), 1)
    check.tensor("src", src, check.ROW_DTYPES, 2)
    check.size("src", src, 0, index.shape[0], "one per index")
    check.size("src", src, 1, table.shape[1], "the width of the table")
    check.device("src", src, index.device)
    check.device("table", table, index.device, may_be_pinned=True)
    check.probability("blend", blend)
    check.no_gradient("table", table, "it is written, not differentiated")
    if table.stride(1) != 1 and table.shape[1] > 1:
        raise ValueError(f"table has strides {table.stride()}; its rows must be contiguous to be written")
    if stamp is not None:
        check.tensor("stamp", stamp, check.INDEX_DTYPES, 1)
        check.size("stamp", stamp, 0, table.shape[0], "one per row of the table")
        check.device("stamp", stamp, index.device, may_be_pinned=True)
        if not stamp.is_contiguous():
            raise ValueError(f"stamp has stride {stamp.stride(0)}; it must be contiguous to be written")
    if backend.debugging():
        check.in_range("index", index, 0, table.shape[0], "the rows of the table")
        check.unique("index", index)
    if backend.runs_definition():
        scatter_rows_definition(table, index, src, blend=blend, stamp=stamp, step=step)
    else:
        _scatter(table, index, src, blend, stamp, step)


def _gather_kernel(table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    out = new_rows(index.shape[0], table.shape[1], dtype, index.device)
    backend.kernels(index.device).gather_rows(out, row_major(table), dense(index))
    return out


def _gather_into_kernel(table: Tensor, index: Tensor, out: Tensor) -> None:
    backend.kernels(index.device).gather_rows(out, row_major(table), dense(index))


def _gather_into_fake(table: Tensor, index: Tensor, out: Tensor) -> None:
    return None


def _gather_fake(table: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(index.shape[0], table.shape[1], dtype=dtype, device=index.device)


def _gather_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    table, index, _ = inputs
    ctx.save_for_backward(index)
    ctx.shape, ctx.dtype = table.shape, table.dtype


def _gather_backward(ctx: Any, grad: Tensor) -> tuple:
    (index,) = ctx.saved_tensors
    summed = torch.zeros(ctx.shape, dtype=torch.float32, device=grad.device)
    return summed.index_add_(0, index, grad.float()).to(ctx.dtype), None, None


def _scatter_kernel(table: Tensor, index: Tensor, src: Tensor, blend: float, stamp: Tensor | None, step: int) -> None:
    backend.kernels(index.device).scatter_rows(table, dense(index), row_major(src), blend=blend, stamp=stamp, step=step)


def _scatter_fake(table: Tensor, index: Tensor, src: Tensor, blend: float, stamp: Tensor | None, step: int) -> None:
    return None


def _not_differentiated(redispatch: Callable[..., None], *args: Any) -> None:
    redispatch(*args)


_gather = define("gather_rows(Tensor table, Tensor index, ScalarType dtype) -> Tensor", _gather_kernel, _gather_fake)
differentiate(_gather, _gather_setup, _gather_backward)
_gather_into = define(
    "gather_rows_into(Tensor table, Tensor index, Tensor(a!) out) -> ()", _gather_into_kernel, _gather_into_fake
)
mutate(_gather_into, _not_differentiated)
_scatter = define(
    "scatter_rows(Tensor(a!) table, Tensor index, Tensor src, float blend, Tensor(b!)? stamp, SymInt step) -> ()",
    _scatter_kernel,
    _scatter_fake,
)
mutate(_scatter, _not_differentiated)
