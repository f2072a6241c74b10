"""Every op on a small random graph, by its kernel and by its definition: do they agree on this machine?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import ops
from ..kernels._hubs import HUB_DEGREE
from . import Adjacency

NODES, EDGES, ROWS, WIDTH = HUB_DEGREE + 952, 9000, 700, 47  # a width that no vector divides
SPREAD = 2.0**-16  # of the largest value: float32 sums in another order
Pair = tuple[Tensor, Tensor]  # what the kernel gave, and what its definition says


@dataclass(frozen=True)
class Verdict:
    """How an op fared: ``difference`` is the largest one, ``problem`` is empty where all is well."""

    op: str
    difference: float
    problem: str = ""

    def __str__(self) -> str:
        said = self.problem or f"largest difference {self.difference:.1e}"
        return f"{self.op:<22}  {'WRONG' if self.problem else 'ok'}  {said}"


class Case:
    """A graph with a hub, isolated nodes and GCN weights, a batch of it, and rows; the same ones on every device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._random = device, torch.Generator().manual_seed(0)
        a, b = (torch.randint(1, NODES - 100, (EDGES,), generator=self._random) for _ in range(2))
        spokes = torch.arange(1, HUB_DEGREE + 300)
        source, target = torch.cat([a, b, spokes, 0 * spokes]), torch.cat([b, a, 0 * spokes, spokes])
        degree = torch.bincount(target, minlength=NODES)
        rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
        scale = degree.clamp(min=1).float().rsqrt().to(device)
        col = source[target.argsort(stable=True)].int()
        self.adj = Adjacency(rowptr.to(device), col.to(device), row_scale=scale, col_scale=scale).undirected()
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(NODES - 1, generator=self._random)[:ROWS]])
        position = ~torch.arange(NODES, dtype=torch.int32)
        position[rows] = torch.arange(len(rows), dtype=torch.int32)
        self.rows, self.position = rows.to(device), position.to(device)
        self.x, self.residual, self.grad = (self.random(len(rows), WIDTH) for _ in range(3))
        self.table = self.random(NODES, WIDTH)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._random).to(self.device)


def _both(op: Callable[..., Tensor], definition: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> Iterator[Pair]:
    """Gradients of the inputs, through the op and through its definition."""
    found = []
    for run in (op, definition):
        leaves = [value.clone().requires_grad_() for value in inputs]
        found.append(torch.autograd.grad(run(*leaves), leaves, grad))
    yield from zip(*found, strict=True)


def _spmm(case: Case) -> Iterator[Pair]:
    given = case.adj, case.rows, case.position, case.x, case.table
    options = dict(residual=case.residual, alpha=0.1)
    yield ops.history_spmm(*given), ops.history_spmm_definition(*given)
    yield ops.history_spmm(*given, **options), ops.history_spmm_definition(*given, **options)  # type: ignore[arg-type]


def _spmm_backward(case: Case) -> Iterator[Pair]:
    def by(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, residual: op(
            case.adj, case.rows, case.position, x, case.table, residual=residual, alpha=0.1, grad_history=case.table
        )

    yield from _both(by(ops.history_spmm), by(ops.history_spmm_definition), case.grad, case.x, case.residual)


def _spmm_weights(case: Case) -> Iterator[Pair]:
    """Weights of edges, and dropout of edges: result and gradients."""
    weight = case.random(case.adj.num_edges)

    def by(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(x: Tensor, e: Tensor) -> Tensor:
            adj = replace(case.adj, edge_weight=e, reverse=None).with_reverse()
            return op(adj, case.rows, case.position, x, case.table, edge_dropout=0.3, seed=7)

        return run

    yield by(ops.history_spmm)(case.x, weight), by(ops.history_spmm_definition)(case.x, weight)
    yield from _both(by(ops.history_spmm), by(ops.history_spmm_definition), case.grad, case.x, weight)


def _attention(case: Case) -> Iterator[Pair]:
    """Two heads, with dropout: result and gradients."""
    adj = replace(case.adj, row_scale=None, col_scale=None, reverse=None).with_reverse()
    x, table, grad = (t[:, : WIDTH - 1] for t in (case.x, case.table, case.grad))
    scores = case.random(len(x), 2), case.random(len(x), 2)
    table_score = case.random(NODES, 2)

    def by(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *inputs: op(adj, case.rows, case.position, *inputs, table, table_score, dropout=0.3, seed=7)

    yield by(ops.history_attention)(x, *scores), by(ops.history_attention_definition)(x, *scores)
    yield from _both(by(ops.history_attention), by(ops.history_attention_definition), grad, x, *scores)


def _activate(case: Case) -> Iterator[Pair]:
    scale, shift = case.random(WIDTH), case.random(WIDTH)
    tables = case.table.clone(), case.table.clone()
    results = [
        run(case.x, scale, shift, dropout=0.5, seed=3, rows=case.rows, history=table)
        for run, table in zip((ops.activate, ops.activate_definition), tables, strict=True)
    ]
    yield results[0], results[1]
    yield tables


def _activate_backward(case: Case) -> Iterator[Pair]:
    mean, var = ops.column_moments_definition(case.x)

    def by(op: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
        return lambda *inputs: op(*inputs, dropout=0.5, seed=3, rows=case.rows, **options)

    vectors = (var + 1e-5).rsqrt(), case.random(WIDTH)
    for options in ({}, {"moments": (mean, var + 1e-5)}):
        yield from _both(by(ops.activate, **options), by(ops.activate_definition, **options), case.grad, case.x, *vectors)
    yield from _both(by(ops.activate), by(ops.activate_definition), case.grad, case.x)


def _moments(case: Case) -> Iterator[Pair]:
    yield from zip(ops.column_moments(case.x), ops.column_moments_definition(case.x), strict=True)


def _gather(case: Case) -> Iterator[Pair]:
    for table in (case.table, case.table.bfloat16()):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield (
                ops.gather_rows(table, case.rows, dtype=dtype),
                ops.gather_rows_definition(table, case.rows, dtype=dtype),
            )


def _scatter(case: Case) -> Iterator[Pair]:
    for dtype, blend in ((torch.float32, 1.0), (torch.float32, 0.3), (torch.bfloat16, 1.0)):
        tables = case.table.to(dtype, copy=True), case.table.to(dtype, copy=True)
        stamps = [torch.zeros(NODES, dtype=torch.int32, device=case.device) for _ in tables]
        for run, table, stamp in zip((ops.scatter_rows, ops.scatter_rows_definition), tables, stamps, strict=True):
            run(table, case.rows, case.x, blend=blend, stamp=stamp, step=5)
        yield tables
        yield stamps[0], stamps[1]


def _halo(case: Case) -> Iterator[Pair]:
    for rows in (case.rows, case.rows[1:100]):
        yield ops.halo(case.adj, rows), ops.halo_definition(case.adj, rows)


CHECKS: dict[str, Callable[[Case], Iterator[Pair]]] = {
    "history_spmm": _spmm,
    "history_spmm backward": _spmm_backward,
    "history_spmm weights": _spmm_weights,
    "history_attention": _attention,
    "activate": _activate,
    "activate backward": _activate_backward,
    "column_moments": _moments,
    "gather_rows": _gather,
    "scatter_rows": _scatter,
    "halo": _halo,
}


def compare(got: Tensor, expected: Tensor) -> tuple[float, str]:
    """(largest difference, what is wrong with it). Indices and stamps must be equal, as must all of half precision: there, a
    value is only rounded."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf"), f"{got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if got.numel() == 0:
        return 0.0, ""
    difference = float((got.detach().double() - expected.detach().double()).abs().max())
    allowed = SPREAD * float(expected.detach().abs().max()) if got.dtype == torch.float32 else 0.0
    fits = difference <= allowed  # NaN fits nothing
    return difference, "" if fits else f"largest difference {difference:.1e}, allowed {allowed:.1e}"


def selftest(device: torch.device) -> Iterator[Verdict]:
    """Every check on this device, one after the other. What a kernel raises is its problem.

    Example::

        assert not any(verdict.problem for verdict in selftest(torch.device("cpu")))
    """
    for op, check in CHECKS.items():
        try:
            found = [compare(got, expected) for got, expected in check(Case(device))]
            problem = next((text for _, text in found if text), "")
            yield Verdict(op, max(difference for difference, _ in found), problem)
        except Exception as error:  # whatever a kernel, its compiler or a driver raises: the others are still of interest
            lines = str(error).splitlines() or [""]
            yield Verdict(op, float("inf"), f"{type(error).__name__}: {lines[0]}")
