"""What one would write otherwise: out of torch's parts, compiled by torch, or with another library.

Peers cut the batch's rows out of the graph, relabel them, and lay rows of batch and halo side by side. ``Cut`` is that, made
once: making it is not timed here (bench_batches does), but pulling the halo's rows and concatenating is, for every layer of
every step needs it.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from rest_triton.ops import Adjacency

from .shapes import Batch, neighbours

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

    def messages_bytes(self, width: int) -> int:
        return 4 * width * self.col.numel()


def _csr(rowptr: Tensor, col: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is in beta
        return torch.sparse_csr_tensor(rowptr, col, value, size=shape, check_invariants=False)


def _double(scale: Tensor | None, adj: Adjacency) -> Tensor:
    ones = torch.ones(adj.num_nodes, dtype=torch.float64, device=adj.rowptr.device)
    return ones if scale is None else scale.double()


def products(cut: Cut, source: Forward, *, thorough: bool) -> dict[str, Forward]:
    """Torch's sparse products times ``source()``, [R + H, D]: by both of its ways, with its default int64 indices; int32, if
    thorough."""
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


def messages(cut: Cut, source: Forward, value: Tensor | None = None) -> Forward:
    """A message per edge, then added up: what PyG does without a library for sparse matrices."""
    value = cut.value if value is None else value
    row, col, rows = cut.row, cut.col, cut.shape[0]

    def run() -> Tensor:
        x = source()
        message = value[:, None] * x.index_select(0, col)
        return x.new_zeros(rows, x.shape[1]).scatter_add(0, row[:, None].expand_as(message), message)

    return run


def compiled(forward: Forward, backend: str) -> Forward:
    """By torch.compile, for this very shape; compiled at the first call. Where it cannot, that call raises."""
    return torch.compile(forward, dynamic=False, backend=backend)


def _torch_sparse(module: ModuleType, cut: Cut) -> Callable[[Tensor], Tensor]:
    matrix = module.SparseTensor(
        rowptr=cut.rowptr, col=cut.col, value=cut.value, sparse_sizes=cut.shape, is_sorted=True, trust_data=True
    )
    return lambda dense: module.matmul(matrix, dense, reduce="sum")


def _dgl(module: ModuleType, cut: Cut) -> Callable[[Tensor], Tensor]:
    block = module.create_block(
        ("csc", (cut.rowptr, cut.col, [])), num_src_nodes=cut.shape[1], num_dst_nodes=cut.shape[0]
    ).to(cut.value.device)
    return lambda dense: module.ops.u_mul_e_sum(block, dense, cut.value[:, None])


#: Others' sparse products. pyg_lib has none.
LIBRARIES: dict[str, Callable[[ModuleType, Cut], Callable[[Tensor], Tensor]]] = {"torch_sparse": _torch_sparse, "dgl": _dgl}


def libraries(cut: Cut, source: Forward) -> dict[str, Forward]:
    """The same product by libraries that are installed. One that is not there is not listed; one that is there but cannot be
    used is, and raises when it is called."""
    found: dict[str, Forward] = {}
    for name, make in LIBRARIES.items():
        try:
            product = make(importlib.import_module(name), cut)
        except ModuleNotFoundError as error:
            if error.name == name:
                continue
            found[name] = partial(_fail, error)
        except Exception as error:  # libraries built for another torch fail in their own ways
            found[name] = partial(_fail, error)
        else:
            found[name] = partial(_call, product, source)
    return found


def _call(product: Callable[[Tensor], Tensor], source: Forward) -> Tensor:
    return product(source())


def _fail(error: Exception) -> Tensor:
    raise error
