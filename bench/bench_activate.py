"""activate against BatchNorm, ReLU, index_put and dropout as torch has them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.ops import activate, column_moments

from .measure import ROUNDS, Report, best


def bench_activate(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    count, width, nodes = (100, 16, 300) if tiny else (84_000, 256, 170_000)
    h = torch.randn(count, width, requires_grad=True)
    rows = torch.randperm(nodes)[:count].sort().values
    table = torch.zeros(nodes, width)
    grad = torch.randn(count, width)
    norm = torch.nn.BatchNorm1d(width)

    def torchs() -> list[Tensor]:
        a = F.relu(norm(h))
        table[rows] = a.detach()
        y = F.dropout(a, 0.5)
        return [y, *torch.autograd.grad(y, (h, norm.weight, norm.bias), grad)]

    def normalised() -> list[Tensor]:
        """All that BatchNorm1d does when training: moments of the batch, running statistics, the gradient through both."""
        mean, var = column_moments(h)
        norm.running_mean.lerp_(mean, 0.1)
        norm.running_var.lerp_(var * (count / (count - 1)), 0.1)
        var = var + norm.eps
        scale = norm.weight * torch.rsqrt(var)
        shift = norm.bias - mean * scale
        y = activate(h, scale, shift, dropout=0.5, seed=1, rows=rows, history=table, moments=(mean, var))
        return [y, *torch.autograd.grad(y, (h, norm.weight, norm.bias), grad)]

    scale, shift = (torch.rand(width, requires_grad=True) for _ in range(2))

    def op_alone() -> None:
        y = activate(h, scale, shift, dropout=0.5, seed=1, rows=rows, history=table)
        torch.autograd.grad(y, (h, scale, shift), grad)

    def stream() -> None:
        """As many bytes as the op must move: three passes that read one matrix and write another."""
        for out in buffers:
            torch.mul(h.detach(), 2.0, out=out)

    buffers = [torch.empty(count, width) for _ in range(3)]
    norm.eval()  # without batch statistics, to compare values; dropout off
    with torch.no_grad():
        expected = F.relu(norm(h))
        scale0 = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        got = activate(h, scale0, norm.bias - norm.running_mean * scale0)
    torch.testing.assert_close(got, expected)
    norm.train()

    variants = {
        "activate alone, scale and shift given": op_alone,
        "activate + column_moments, as BatchNorm trains": normalised,
        "BatchNorm1d + relu + index_put + F.dropout": torchs,
        "F.dropout alone, forward": lambda: F.dropout(h.detach(), 0.5),
        "three passes that read and write, reused memory": stream,
    }
    times = best(variants, 1 if tiny else ROUNDS)
    theirs = times["BatchNorm1d + relu + index_put + F.dropout"]

    def remark(name: str, t: float) -> str:
        return f"{theirs / t:.1f} times faster than torch's" if name.startswith("activate") else ""

    title = f"activate forward + backward: {count} x {width} float32, dropout 0.5, write-back to {nodes} rows"
    report.table(title, [(n, t, remark(n, t)) for n, t in times.items()])
    benchmark.extra_info |= {
        "speedup": theirs / times["activate alone, scale and shift given"],
        "speedup_with_statistics": theirs / times["activate + column_moments, as BatchNorm trains"],
    }
    benchmark.pedantic(op_alone, rounds=1 if tiny else ROUNDS)
