"""A self-test: compares the kernel of every op with its definition on a small random graph."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..kernels._hubs import HUB_DEGREE
from . import Adjacency

NODES, EDGES, ROWS, WIDTH = HUB_DEGREE + 952, 9000, 700, 47  # no vector divides this width
ALLOWED = 2.0**-16  # of the largest value: float32 sums in another order
Op = Callable[..., Any]


class Case:
    """A graph with a hub, isolated nodes and GCN weights, a batch with the hub, and rows. Equal on all devices."""

    def __init__(self, device: torch.device) -> None:
        draw = torch.Generator().manual_seed(0)
        a, b = (torch.randint(1, NODES - 100, (EDGES,), generator=draw) for _ in range(2))
        spokes = torch.arange(1, HUB_DEGREE + 300)
        source, target = torch.cat([a, b, spokes, 0 * spokes]), torch.cat([b, a, 0 * spokes, spokes])
        degree = torch.bincount(target, minlength=NODES)
        rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
        scale = degree.clamp(min=1).float().rsqrt().to(device)
        col = source[target.argsort(stable=True)].int()
        self.adj = Adjacency(rowptr.to(device), col.to(device), row_scale=scale, col_scale=scale).undirected()
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(NODES - 1, generator=draw)[:ROWS]])
        position = ~torch.arange(NODES, dtype=torch.int32)
        position[rows] = torch.arange(len(rows), dtype=torch.int32)
        self.rows, self.position = rows.to(device), position.to(device)
        shapes = (len(rows), WIDTH), (len(rows), WIDTH), (len(rows), WIDTH), (NODES, WIDTH), (len(col),), (WIDTH,), (WIDTH,)
        given = [torch.randn(*shape, generator=draw).to(device) for shape in shapes]
        self.x, self.residual, self.grad, self.table, self.weight, self.scale, self.shift = given

    def both(self, run: Op, *inputs: Tensor) -> list[Tensor]:
        """The result of ``run`` and the gradients of its inputs."""
        leaves = [value.clone().requires_grad_() for value in inputs]
        result = run(*leaves)
        return [result, *torch.autograd.grad(result, leaves, self.grad)]


# A check calls an op, the kernel or the definition, and returns all tensors that the op computed.


def _spmm(op: Op, c: Case) -> list[Tensor]:
    def weighted(x: Tensor, weight: Tensor) -> Tensor:
        adj = replace(c.adj, edge_weight=weight, reverse=None).with_reverse()
        return op(adj, c.rows, c.position, x, c.table, edge_dropout=0.3, seed=7)

    def mixed(x: Tensor, residual: Tensor) -> Tensor:
        options: dict[str, Any] = dict(residual=residual, alpha=0.1, grad_history=c.table)
        return op(c.adj, c.rows, c.position, x, c.table.bfloat16(), **options)

    return [*c.both(weighted, c.x, c.weight), *c.both(mixed, c.x, c.residual)]


def _attention(op: Op, c: Case) -> list[Tensor]:
    """Two heads, with dropout."""
    adj = replace(c.adj, row_scale=None, col_scale=None, reverse=None).with_reverse()
    even = WIDTH // 2 * 2
    x, table, scores = c.x[:, :even], c.table[:, :even].contiguous(), c.residual[:, :4]

    def attend(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        out = op(adj, c.rows, c.position, x, source, target, table, c.table[:, :2].contiguous(), dropout=0.3, seed=7)
        return torch.nn.functional.pad(out, (0, WIDTH - even))

    return c.both(attend, x.contiguous(), scores[:, :2].contiguous(), scores[:, 2:].contiguous())


def _activate(op: Op, c: Case) -> list[Tensor]:
    table, (mean, var) = c.table.clone(), ops.column_moments_definition(c.x)
    options = dict(dropout=0.5, seed=3, rows=c.rows)
    return [
        *c.both(lambda *given: op(*given, **options, history=table), c.x, c.scale, c.shift),
        *c.both(lambda *given: op(*given, **options, moments=(mean, var + 1e-5)), c.x, (var + 1e-5).rsqrt(), c.shift),
        *c.both(op, c.x),
        table,
    ]


def _gather(op: Op, c: Case) -> list[Tensor]:
    dtypes = torch.float32, torch.bfloat16, torch.float16
    return [op(table, c.rows, dtype=dtype) for table in (c.table, c.table.bfloat16()) for dtype in dtypes]


def _scatter(op: Op, c: Case) -> list[Tensor]:
    written = []
    for dtype, blend in ((torch.float32, 1.0), (torch.float32, 0.3), (torch.bfloat16, 1.0)):
        table, stamp = c.table.to(dtype, copy=True), torch.zeros(NODES, dtype=torch.int32, device=c.x.device)
        op(table, c.rows, c.x, blend=blend, stamp=stamp, step=5)
        written += [table, stamp]
    return written


def _sample(op: Op, c: Case) -> list[Tensor]:
    few = op(c.adj, c.rows, 5, seed=7)
    return [*few, *op(c.adj, c.rows.flip(0), 1200, seed=-7)]  # a GPU has no registers for as many draws


def _place(op: Op, c: Case) -> list[Tensor]:
    position = c.position.clone()
    nodes = c.adj.col[:5000]
    return [*op(position, nodes, len(c.rows)), position]


def _sparse_linear(op: Op, c: Case) -> list[Tensor]:
    """Rows without an element among them; the weight's gradient, too."""
    rowptr, index = c.adj.rowptr[: len(c.rows) + 1], c.adj.col[: int(c.adj.rowptr[len(c.rows)])]
    return c.both(lambda weight: op(rowptr, index, c.weight[: len(index)], weight), c.table.t().contiguous())


CHECKS: dict[str, Callable[[Op, Case], Any]] = {
    "history_spmm": _spmm,
    "history_attention": _attention,
    "activate": _activate,
    "column_moments": lambda op, c: op(c.x),
    "gather_rows": _gather,
    "scatter_rows": _scatter,
    "halo": lambda op, c: [op(c.adj, c.rows), op(c.adj, c.rows[1:100])],
    "sample_neighbours": _sample,
    "place_nodes": _place,
    "transpose": lambda op, c: op(c.adj.rowptr, c.adj.col, NODES),
    "edges_inside": lambda op, c: [*op(c.adj, c.rows, c.position), *op(c.adj, c.rows[1:100], c.position)],
    "sparse_linear": _sparse_linear,
}


def compare(got: Tensor, expected: Tensor) -> None:
    """Raise AssertionError if two tensors differ. Integers and half precision must be equal."""
    single = got.dtype == torch.float32 and expected.numel() > 0
    allowed = ALLOWED * float(expected.detach().abs().max()) if single else 0.0
    torch.testing.assert_close(got, expected, rtol=0, atol=allowed)


def selftest(device: torch.device) -> Iterator[tuple[str, str]]:
    """Yield (op, problem) for every op on a device. The problem is empty where the kernel is right.

    Example::

        assert not any(problem for _, problem in selftest(torch.device("cpu")))
    """
    for name, check in CHECKS.items():
        problem = ""
        try:
            expected = check(getattr(ops, f"{name}_definition"), Case(device))
            for pair in zip(check(getattr(ops, name), Case(device)), expected, strict=True):
                compare(*pair)
        except Exception as error:  # of a kernel, its compiler or the driver: the other checks run nevertheless
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        yield name, problem
