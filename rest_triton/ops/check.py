"""Checks of arguments, made before an op computes or writes. Errors name the argument, its value and what is allowed."""

from collections.abc import Sequence

import torch
from torch import Tensor

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INDEX_DTYPES = (torch.int32, torch.int64)


def names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(str(d).removeprefix("torch.") for d in dtypes)


def tensor(name: str, value: object, dtypes: Sequence[torch.dtype], dims: int) -> None:
    """Require a tensor of one of the dtypes with ``dims`` dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a {names(dtypes)} tensor")
    if value.dtype not in dtypes:
        hint = f"; convert it with {name}.to(torch.{names(dtypes[:1])})"
        if value.dtype == torch.float64:
            hint = f'; use {name}.float(), or the float64 definition with use_backend("torch")'
        raise TypeError(f"{name} is {names([value.dtype])}; it must be {names(dtypes)}{hint}")
    if value.dim() != dims:
        raise ValueError(f"{name} has shape {list(value.shape)}; it must have {dims} dimension{'s' * (dims > 1)}")


def size(name: str, value: Tensor, dim: int, expected: int, why: str) -> None:
    """Require ``value.shape[dim] == expected``. why: where that number comes from."""
    if value.shape[dim] != expected:
        raise ValueError(f"{name} has shape {list(value.shape)}; dimension {dim} must be {expected}, {why}")


def device(name: str, value: Tensor, expected: torch.device, *, may_be_pinned: bool = False) -> None:
    """Require a tensor on the op's device. may_be_pinned: pinned host memory beside a GPU is allowed, too."""
    if value.device == expected:
        return
    if may_be_pinned and value.device.type == "cpu":
        if is_fake(value) or value.is_pinned():
            return
        raise ValueError(
            f"{name} is in pageable memory, the op runs on {expected}; pin it with {name}.pin_memory() or move it there"
        )
    raise ValueError(f"{name} is on {value.device}, the op runs on {expected}; move it with {name}.to({str(expected)!r})")


def is_fake(value: Tensor) -> bool:
    """Whether a tensor has no data, as under torch.compile."""
    return torch.compiler.is_compiling() or isinstance(value, torch._subclasses.FakeTensor)


def probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}; it must be a probability between 0 and 1")


def no_gradient(name: str, value: Tensor | None, why: str) -> None:
    if value is not None and value.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient, but {why}; pass {name}.detach()")


def in_range(name: str, value: Tensor, low: int, high: int, why: str) -> None:
    """Require all elements in [low, high). It reads the values: for debug mode, and for checks made once per graph."""
    if value.numel() == 0:
        return
    least, most = (int(v) for v in torch.aminmax(value))
    if least < low or most >= high:
        raise ValueError(f"{name} has values from {least} to {most}; they must lie in [{low}, {high}), {why}")


def unique(name: str, value: Tensor) -> None:
    """Require distinct elements. It reads the values: for debug mode."""
    distinct = torch.unique(value).numel()
    if distinct != value.numel():
        raise ValueError(
            f"{name} has {value.numel()} elements, only {distinct} distinct; remove the duplicates with torch.unique({name})"
        )


def row_pointers(name: str, value: Tensor, end: int, what: str) -> None:
    """Require row pointers of a CSR: from 0 to ``end``, the number of ``what``, never decreasing. It reads the values."""
    if value.numel() == 0:
        raise ValueError(f"{name} is empty; for N rows it has N + 1 elements, the first of them 0")
    first, last = int(value[0]), int(value[-1])
    if first != 0 or last != end:
        raise ValueError(f"{name} runs from {first} to {last}; it must run from 0 to the number of {what}, {end}")
    falls = torch.nonzero(value[1:] < value[:-1])
    if falls.numel() > 0:
        g = int(falls[0])
        raise ValueError(
            f"{name} decreases after row {g}: {int(value[g])} to {int(value[g + 1])}; "
            "it must be the cumulative sum of the counts"
        )


def same_nodes(what: str, rows: int, columns: int) -> None:
    """Require an adjacency whose columns are its rows."""
    if rows != columns:
        raise ValueError(f"the adjacency has {rows} rows and {columns} columns; {what} needs one whose columns are its rows")
