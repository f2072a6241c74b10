"""Sparse features: a CSR matrix of the nonzero elements."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..ops import check


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A float32 matrix [N, width] in CSR format: row i has ``value[k]`` in column ``index[k]``, k from ``rowptr[i]`` to
    ``rowptr[i+1]``. Duplicate elements add up.

    Args:
        rowptr: int64[N+1]. index: int32[nnz]. value: float32[nnz]. width: number of columns.

    Example::

        x = SparseRows.from_dense(words)
        x.dense(torch.arange(100))  # rows 0 to 99, float32 [100, width]
    """

    rowptr: Tensor
    index: Tensor
    value: Tensor
    width: int
    _checked: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self._checked:
            return
        check.tensor("rowptr", self.rowptr, (torch.int64,), 1)
        check.tensor("index", self.index, (torch.int32,), 1)
        check.tensor("value", self.value, (torch.float32,), 1)
        check.size("value", self.value, 0, self.index.numel(), "one per index")
        check.row_pointers("rowptr", self.rowptr, self.index.numel(), "elements")
        check.in_range("index", self.index, 0, self.width, "the columns")
        object.__setattr__(self, "_checked", True)

    @classmethod
    def from_dense(cls, x: Tensor) -> "SparseRows":
        row, column = torch.nonzero(x, as_tuple=True)
        rowptr = torch.nn.functional.pad(torch.bincount(row, minlength=x.shape[0]).cumsum(0), (1, 0))
        return cls(rowptr, column.to(torch.int32), x[row, column].float(), x.shape[1])

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.rowptr.numel() - 1, self.width))

    @property
    def nbytes(self) -> int:
        return self.rowptr.nbytes + self.index.nbytes + self.value.nbytes

    def rows(self, ids: Tensor) -> "SparseRows":
        """The rows ``ids``, in this order."""
        count = self.rowptr[ids + 1] - self.rowptr[ids]
        rowptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
        element = torch.arange(int(rowptr[-1])) + torch.repeat_interleave(self.rowptr[ids] - rowptr[:-1], count)
        return SparseRows(rowptr, self.index[element], self.value[element], self.width, _checked=True)

    def dense(self, ids: Tensor | None = None) -> Tensor:
        """All rows, or those of ``ids``, as float32 [R, width]."""
        rows = self if ids is None else self.rows(ids)
        out = torch.zeros(rows.shape)
        row = torch.repeat_interleave(torch.arange(rows.shape[0]), rows.rowptr.diff())
        return out.index_put_((row, rows.index.long()), rows.value, accumulate=True)
