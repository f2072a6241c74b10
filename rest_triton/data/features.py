"""Sparse features: a CSR matrix of the nonzero elements."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..ops import check, gather_rows, sparse_linear
from ..ops.hashing import element_kept

# A product of sparse rows gathers a row of the weight for each nonzero element, 4 bytes per result. A dense product takes 2
# floating point operations for each element, of which 8 take as long as a byte. It costs as much for 1 nonzero in 16.
ELEMENTS_PER_NONZERO = 16
# The aggregate of dense features is computed once. Of sparse ones products are aggregated in every step, which costs as
# much as a dense product of about 40 columns for each neighbour of a node.
NARROW = 1000  # columns
PIECE_ROWS = 1 << 15  # that are taken at a time


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
    def device(self) -> torch.device:
        return self.value.device

    @property
    def nbytes(self) -> int:
        return self.rowptr.nbytes + self.index.nbytes + self.value.nbytes

    def rows(self, ids: Tensor) -> "SparseRows":
        """The rows ``ids``, in this order."""
        count = self.rowptr[ids + 1] - self.rowptr[ids]
        rowptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
        size = int(rowptr[-1])
        first = torch.repeat_interleave(self.rowptr[ids] - rowptr[:-1], count, output_size=size)
        element = torch.arange(size, device=ids.device) + first
        return SparseRows(rowptr, self.index[element], self.value[element], self.width, _checked=True)

    def dense(self, ids: Tensor | None = None) -> Tensor:
        """All rows, or those of ``ids``, as float32 [R, width]."""
        rows = self if ids is None else self.rows(ids)
        out = torch.zeros(rows.shape, device=self.device)
        return out.index_put_((rows._row_of_each(), rows.index.long()), rows.value, accumulate=True)

    def to(self, device: torch.device | str) -> "SparseRows":
        """The same rows on another device."""
        return SparseRows(
            self.rowptr.to(device), self.index.to(device), self.value.to(device), self.width, _checked=True
        )  # fmt: skip

    def linear(self, weight: Tensor) -> Tensor:
        """[R, C]: all rows times ``weight^T``, for a weight [C, width]."""
        return sparse_linear(self.rowptr, self.index, self.value, weight)

    def dropout(self, ids: Tensor, p: float, seed: int) -> "SparseRows":
        """The rows with the dropout that :func:`rest_triton.ops.activate` has for dense rows of the nodes ``ids``."""
        kept = element_kept(seed, ids[self._row_of_each()], self.index.long(), p)
        return replace(self, value=torch.where(kept, self.value / (1 - p) if p < 1 else self.value, 0))

    def _row_of_each(self) -> Tensor:
        """int64[nnz]: the row of each element."""
        rows = torch.arange(self.shape[0], device=self.device)
        return torch.repeat_interleave(rows, self.rowptr.diff(), output_size=self.index.numel())


@dataclass(frozen=True, eq=False)
class Reordered:
    """Features in another order of rows, which are taken in pieces: row i is row ``order[i]`` of ``rows``."""

    rows: Tensor | SparseRows
    order: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if isinstance(self.rows, SparseRows) else self.rows.dtype

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def pieces(self) -> Iterator[Tensor]:
        """All rows in order, dense."""
        for ids in self.order.split(PIECE_ROWS):
            yield self.rows.dense(ids) if isinstance(self.rows, SparseRows) else gather_rows(self.rows, ids)


def dense(x: Tensor | SparseRows) -> Tensor:
    """x as a dense tensor."""
    return x.dense() if isinstance(x, SparseRows) else x


def stays_sparse(nonzeros: int, rows: int, width: int) -> bool:
    """Whether features stay sparse: products of sparse rows then cost less than those of dense rows."""
    return width >= NARROW and nonzeros * ELEMENTS_PER_NONZERO <= rows * width


def kept(x: Tensor | SparseRows) -> Tensor | SparseRows:
    """x, dense unless it :func:`stays sparse <stays_sparse>`."""
    return x if isinstance(x, SparseRows) and stays_sparse(x.index.numel(), *x.shape) else dense(x)


def describe(nonzeros: int | None, rows: int, width: int, model: str, multiplies: bool) -> str:
    """How a run keeps its features, and why.

    Args:
        nonzeros: stored elements, None if the features are stored dense. multiplies: ``sparse_features`` of the model.
    """
    if nonzeros is None:
        return "features: dense, as they are stored"
    each = f"{nonzeros / max(1, rows):.3g} nonzeros a row"
    if width < NARROW:
        return f"features: dense: {width} columns are fewer than {NARROW:,}, and their aggregate is computed once ({each})"
    if not stays_sparse(nonzeros, rows, width):
        return f"features: dense: {each} of {width:,} are more than one in {ELEMENTS_PER_NONZERO}"
    if not multiplies:
        return f"features: dense: {model} does not only multiply them by a weight ({each})"
    return f"features: sparse, {each}: the first layer multiplies nonzero elements alone"
