"""What one would write otherwise: with torch's parts, compiled by torch, or with another library.

They cut the batch's rows out of the graph, relabel them, and lay rows of batch and halo side by side. ``Cut`` is that,
made once and not timed here (bench_graph times it). Pulling the halo's rows and concatenating is timed: every layer of
every step needs it.
"""

import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from rest_triton.ops import Adjacency

from .cases import Batch, Case, neighbours
from .harness import Variant

Forward = Callable[[], Tensor]
MOST_MESSAGES = 1 << 30  # bytes; a vector per edge takes three times as much in backward, and seconds


class Cut:
    """A batch's own matrix, [R, R + H]: columns 0 .. R are the batch's rows, the others its halo's."""

    def __init__(self, b: Batch) -> None:
        self.halo, rows, device = b.halo, b.rows, b.rows.device
        self.shape = len(rows), len(rows) + len(self.halo)
        local = torch.empty(b.adj.num_nodes, dtype=torch.int64, device=device)
        local[torch.cat([rows, self.halo])] = torch.arange(self.shape[1], device=device)
        degree = b.adj.rowptr[rows + 1] - b.adj.rowptr[rows]
        self.rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
        self.row = torch.repeat_interleave(torch.arange(len(rows), device=device), degree)
        columns = neighbours(b.adj, rows)
        self.col = local[columns]
        self.value64 = _double(b.adj.row_scale, b.adj)[rows[self.row]] * _double(b.adj.col_scale, b.adj)[columns]
        self.value = self.value64.float()

    def matrix(self, index: torch.dtype = torch.int64) -> Tensor:
        return _csr(self.rowptr.to(index), self.col.to(index), self.value, self.shape)

    def product64(self, source: Tensor) -> Tensor:
        """Times batch's and halo's rows, float64."""
        return _csr(self.rowptr, self.col, self.value64, self.shape) @ source.double()

    def transposed64(self, grad: Tensor) -> Tensor:
        """The gradient of batch's and halo's rows, float64."""
        column, order = torch.sort(self.col, stable=True)
        rowptr = torch.nn.functional.pad(torch.bincount(column, minlength=self.shape[1]).cumsum(0), (1, 0))
        return _csr(rowptr, self.row[order], self.value64[order], self.shape[::-1]) @ grad.double()


def _csr(rowptr: Tensor, col: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is in beta
        return torch.sparse_csr_tensor(rowptr, col, value, size=shape, check_invariants=False)


def _double(scale: Tensor | None, adj: Adjacency) -> Tensor:
    ones = torch.ones(adj.num_nodes, dtype=torch.float64, device=adj.rowptr.device)
    return ones if scale is None else scale.double()


def aggregates(cut: Cut, source: Forward, inputs: tuple[Tensor, ...], case: Case, named: str, tiny: bool) -> list[Variant]:
    """All ways to multiply with ``source()``, [R + H, D]. The slow ones, and torch.compile, where the case is thorough."""
    made = products(cut, source, thorough=case.thorough) | libraries(cut, source)
    small = case.thorough and 4 * case.width * cut.col.numel() <= MOST_MESSAGES
    if small:
        made["messages + scatter_add"] = messages(cut, source)
    found = [Variant(f"{named} + {name}", forward, inputs) for name, forward in made.items()]
    slow = ("CSR @ dense, int64", "messages + scatter_add")
    return found + [v.compiled() for v in found if small and not tiny and v.name.removeprefix(f"{named} + ") in slow]


def products(cut: Cut, source: Forward, *, thorough: bool) -> dict[str, Forward]:
    """Torch's two sparse products, with its default int64 indices; with int32, too, if thorough."""
    found: dict[str, Forward] = {}
    for index in (torch.int64, torch.int32) if thorough else (torch.int64,):
        matrix, name = cut.matrix(index), str(index)[6:]
        found[f"CSR @ dense, {name}"] = partial(_matmul, matrix, source)
        # Torch has it on CPUs only. With int32 its gradient overflows, in torch 2.13, where R (R + H) is 2^31 or more.
        if cut.value.device.type == "cpu":
            found[f"sparse.mm(sum), {name}"] = partial(_reduce, matrix, source)
    return found


def _matmul(matrix: Tensor, source: Forward) -> Tensor:
    return matrix @ source()


def _reduce(matrix: Tensor, source: Forward) -> Tensor:
    return torch.sparse.mm(matrix, source(), "sum")


def messages(cut: Cut, source: Forward, weight: Tensor | None = None) -> Forward:
    """A message per edge, then added up: what PyG does without a library for sparse matrices. weight: of each edge."""

    def run() -> Tensor:
        x = source()
        value = cut.value if weight is None else cut.value * weight
        message = value[:, None] * x.index_select(0, cut.col)
        return x.new_zeros(cut.shape[0], x.shape[1]).scatter_add(0, cut.row[:, None].expand_as(message), message)

    return run


def _torch_sparse(module: ModuleType, cut: Cut) -> Callable[[Tensor], Tensor]:
    matrix = module.SparseTensor(
        rowptr=cut.rowptr, col=cut.col, value=cut.value, sparse_sizes=cut.shape, is_sorted=True, trust_data=True
    )
    return lambda dense: module.matmul(matrix, dense, reduce="sum")


def _dgl(module: ModuleType, cut: Cut) -> Callable[[Tensor], Tensor]:
    csc = ("csc", (cut.rowptr, cut.col, []))
    block = module.create_block(csc, num_src_nodes=cut.shape[1], num_dst_nodes=cut.shape[0]).to(cut.value.device)
    return lambda dense: module.ops.u_mul_e_sum(block, dense, cut.value[:, None])


def libraries(cut: Cut, source: Forward) -> dict[str, Forward]:
    """The same product by libraries that are installed; one that is installed but broken raises when it is called."""
    found: dict[str, Forward] = {}
    for name, make in {"torch_sparse": _torch_sparse, "dgl": _dgl}.items():
        if importlib.util.find_spec(name) is not None:
            found[name] = partial(_by_library, name, make, cut, source, {})
    return found


def _by_library(name: str, make: Callable, cut: Cut, source: Forward, made: dict[str, Callable]) -> Tensor:
    if name not in made:
        made[name] = make(importlib.import_module(name), cut)
    return made[name](source())
