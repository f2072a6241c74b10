"""history_spmm against gather, concatenate and multiply, and against only reading the rows."""

import warnings
from functools import partial

import pytest
import torch
from torch import Tensor

from rest_triton.ops import history_spmm, use_backend

from .limits import read_rows, row_addresses
from .measure import ROUNDS, Report, best
from .shapes import Batch, uniform


def batch(tiny: bool, width: int = 128) -> Batch:
    return uniform(200, 10, 1000, width, 0.7) if tiny else uniform(60_000, 50, 600_000, width, 0.7)


class PullAndMultiply:
    """What peers do per layer: pull halo rows, concatenate, multiply by the batch's own sparse matrix. Cutting that matrix
    out of the graph and relabelling it is not timed."""

    def __init__(self, b: Batch, index: torch.dtype) -> None:
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        out_of_batch = torch.unique(b.columns[b.position[b.columns] < 0])
        local = torch.empty(b.adj.num_nodes, dtype=torch.int64)
        local[b.rows] = torch.arange(len(b.rows))
        local[out_of_batch] = len(b.rows) + torch.arange(len(out_of_batch))
        assert b.adj.row_scale is not None and b.adj.col_scale is not None
        degree = b.edges // len(b.rows)
        value = b.adj.row_scale[b.rows].repeat_interleave(degree) * b.adj.col_scale[b.columns]
        self.b, self.halo = b, out_of_batch
        self.matrix = torch.sparse_csr_tensor(
            torch.arange(0, b.edges + 1, degree, dtype=index), local[b.columns].to(index), value,
            size=(len(b.rows), len(b.rows) + len(out_of_batch)),
        )  # fmt: skip

    def pull(self) -> Tensor:
        return torch.cat([self.b.x, self.b.table[self.halo]])

    def matmul(self) -> Tensor:
        return self.matrix @ self.pull()

    def reduce(self) -> Tensor:
        return torch.sparse.mm(self.matrix, self.pull(), "sum")


def bench_forward(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    b = batch(tiny)
    peers = {n: PullAndMultiply(b, d) for n, d in (("int64", torch.int64), ("int32", torch.int32))}
    addresses = row_addresses(b.position, b.columns, b.x, b.table)

    def ours() -> Tensor:
        return history_spmm(b.adj, b.rows, b.position, b.x, b.table)

    torch.testing.assert_close(ours(), peers["int64"].matmul(), rtol=1e-4, atol=1e-3)
    variants = {"history_spmm": ours}
    for name, peer in peers.items():
        variants[f"pull + cat + CSR @ dense, {name}"] = peer.matmul
        variants[f"pull + cat + sparse.mm(sum), {name}"] = peer.reduce
    variants["only reading the rows, plain loop"] = lambda: read_rows(addresses, 128, b.x, 0)
    variants["only reading the rows, asked for ahead"] = lambda: read_rows(addresses, 128, b.x, 32)
    times = best(variants, 1 if tiny else ROUNDS)
    mine = times["history_spmm"]
    peer_best = min(t for n, t in times.items() if n.startswith("pull"))
    nbytes = b.edges * 128 * 4

    def remark(name: str, t: float) -> str:
        if name == "history_spmm":
            return f"{nbytes / t / 1e9:5.1f} GB/s of rows; {peer_best / t:.2f} times the faster pull + cat + sparse product"
        if name.startswith("only"):
            return f"{nbytes / t / 1e9:5.1f} GB/s of rows; history_spmm reaches {100 * t / mine:.0f} % of it"
        return f"{t / mine:.2f} times ours"

    title = f"history_spmm forward: {len(b.rows)} rows, {b.edges} edges, 70 % in-batch, table {tuple(b.table.shape)} float32"
    report.table(title, [(n, t, remark(n, t)) for n, t in times.items()])
    benchmark.extra_info |= {
        "speedup": peer_best / mine,
        "of_plain_gather": times["only reading the rows, plain loop"] / mine,
    }
    benchmark.pedantic(ours, rounds=1 if tiny else 5, warmup_rounds=1)


def bench_bfloat16_table(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    rows = []
    for width in (16,) if tiny else (64, 128, 256):
        b = batch(tiny, width)
        everything = ~torch.arange(b.adj.num_nodes, dtype=torch.int32)
        tables = {"float32": b.table, "bfloat16": b.table.bfloat16()}
        variants, limits = {}, {}
        for name, table in tables.items():
            addresses = row_addresses(everything, b.columns, None, table)
            variants[name] = partial(history_spmm, b.adj, b.rows, everything, None, table)
            limits[name] = partial(read_rows, addresses, width, table, 32)
        torch.testing.assert_close(variants["float32"](), variants["bfloat16"](), rtol=2e-2, atol=0.5)
        times = best(variants | {f"{n} limit": run for n, run in limits.items()}, 1 if tiny else ROUNDS)
        gain, possible = times["float32"] / times["bfloat16"], times["float32 limit"] / times["bfloat16 limit"]
        rows.append((f"width {width}, float32 table", times["float32"], ""))
        remark = f"{gain:.2f} times faster (only reading the rows: {possible:.2f} times)"
        rows.append((f"width {width}, bfloat16 table", times["bfloat16"], remark))
        benchmark.extra_info[f"gain_{width}"] = gain
    report.table("history_spmm, all rows from the table", rows)
    benchmark.pedantic(variants["bfloat16"], rounds=1 if tiny else ROUNDS)


def bench_backward(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    """Forward and backward; the same through torch's sparse product, which transposes its matrix on the way."""
    b = batch(tiny)
    peer = PullAndMultiply(b, torch.int64)
    grad = torch.randn(len(b.rows), 128)
    x = b.x.requires_grad_()

    def ours() -> None:
        torch.autograd.grad(history_spmm(b.adj, b.rows, b.position, x, b.table), x, grad)

    def forward() -> None:
        with torch.no_grad():
            history_spmm(b.adj, b.rows, b.position, x, b.table)

    def torchs() -> None:
        torch.autograd.grad(peer.matmul(), x, grad)

    times = best(
        {"forward": forward, "forward + backward": ours, "pull + cat + CSR @ dense, both": torchs}, 1 if tiny else 5
    )
    mine = times["forward + backward"]
    rows = [(n, t, "" if n.startswith("forward") else f"{t / mine:.2f} times ours") for n, t in times.items()]
    report.table("history_spmm forward and backward, the same batch", rows)
    benchmark.extra_info["speedup"] = times["pull + cat + CSR @ dense, both"] / mine
    benchmark.pedantic(ours, rounds=1 if tiny else 3)


def bench_definition(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    """The plain-torch definition, for scale: a smaller batch, it builds every message."""
    b = uniform(200, 10, 1000, 16, 0.7) if tiny else uniform(6_000, 50, 60_000, 128, 0.7)

    def by(backend: str) -> None:
        with use_backend(backend):
            history_spmm(b.adj, b.rows, b.position, b.x, b.table)

    times = best({"kernel": lambda: by("kernel"), "definition": lambda: by("torch")}, 1 if tiny else ROUNDS)
    report.table(
        f"history_spmm, kernel and definition, {len(b.rows)} rows",
        [(n, t, f"{times['definition'] / t:.1f} times faster" if n == "kernel" else "") for n, t in times.items()],
    )
    benchmark.pedantic(by, args=("kernel",), rounds=1 if tiny else ROUNDS)
