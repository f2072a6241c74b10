"""activate, with scale and shift given and with the batch's moments, against BatchNorm, ReLU, index_put and dropout in
torch.

Dropout draws other bits in each variant, so which elements passed is read off the result: those must be positive in
float64, and as many as dropout is to leave. Values and gradients are compared with float64 at the same elements.
"""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.ops import activate, column_moments

from .cases import Batch, Case
from .harness import OURS, Bench, Check, Variant, relative_error
from .limits import activate_bytes, copy, triad

P = 0.5  # dropout
CASES = [Case("arxiv", 256, thorough=True), Case("products", 128, "bfloat16"), Case("papers100m", 47, "float16")]


class Layer:
    """What follows a linear layer of a batch: h, a BatchNorm that trains, the table that is written."""

    def __init__(self, b: Batch) -> None:
        self.rows, self.table = b.rows, b.table
        self.h = b.x.requires_grad_()
        self.norm = torch.nn.BatchNorm1d(b.x.shape[1]).to(b.x.device)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.uniform_(-0.5, 0.5)
            mean, var = column_moments(self.h)
        scale = self.norm.weight.detach() * torch.rsqrt(var + self.norm.eps)
        self.scale, self.shift = scale.requires_grad_(), (self.norm.bias.detach() - mean * scale).detach().requires_grad_()

    def ours(self) -> Tensor:
        return activate(self.h, self.scale, self.shift, dropout=P, seed=1, rows=self.rows, history=self.table)

    def ours_with_moments(self) -> Tensor:
        """All that BatchNorm1d does when training: moments of the batch, running statistics, the gradient through both."""
        norm, count = self.norm, len(self.h)
        mean, var = column_moments(self.h)
        norm.running_mean.lerp_(mean, 0.1)
        norm.running_var.lerp_(var * (count / (count - 1)), 0.1)
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        shift = norm.bias - mean * scale
        moments = mean, var + norm.eps
        return activate(self.h, scale, shift, dropout=P, seed=1, rows=self.rows, history=self.table, moments=moments)

    def torchs(self) -> Tensor:
        return self._finish(F.relu(self.h * self.scale + self.shift))

    def torchs_with_moments(self) -> Tensor:
        return self._finish(F.relu(self.norm(self.h)))

    def _finish(self, a: Tensor) -> Tensor:
        self.table[self.rows] = a.detach().to(self.table.dtype)
        return F.dropout(a, P)

    def check(self, inputs: Sequence[Tensor], moments: bool, grad: Tensor | None) -> Check:
        """Against float64, see above."""

        def error(got: Sequence[Tensor]) -> float:
            y, *grads = got
            h, weight, bias = exact = [t.detach().double().requires_grad_() for t in inputs]
            z = F.batch_norm(h, None, None, weight, bias, training=True, eps=self.norm.eps) if moments else h * weight + bias
            passed = y != 0
            with torch.no_grad():
                far = max(off_pattern(z, passed), off_table(z.relu(), self.table[self.rows]))
                self.table[self.rows] = float("nan")  # or the next variant need not write them
            result = z * passed / (1 - P)
            errors = [far, relative_error(y, result.detach())]
            if grad is not None:
                wanted = torch.autograd.grad(result, exact, grad.double())
                errors += [relative_error(g, w) for g, w in zip(grads, wanted, strict=True)]
            return max(errors)

        return error


def off_pattern(z: Tensor, passed: Tensor) -> float:
    """0, or infinity if an element passed that ReLU does not let pass, or not about as many as dropout leaves."""
    near = 1e-5 * float(z.abs().max())
    positive = z > near
    share, count = float(passed[positive].float().mean()), int(positive.sum())
    wrong = bool((passed & (z < -near)).any()) or abs(share - (1 - P)) > 5 * (P * (1 - P) / count) ** 0.5
    return float("inf") if wrong else 0.0


def off_table(a: Tensor, written: Tensor) -> float:
    """How far the written rows are off, 0 if no further than the rounding of their dtype."""
    error = relative_error(written, a)
    return 0.0 if error <= torch.finfo(written.dtype).eps else error


@pytest.mark.parametrize("mode", ["forward", "both"])
@pytest.mark.parametrize("moments", [False, True], ids=["given", "moments"])
@pytest.mark.parametrize("case", CASES, ids=str)
def bench_activate(bench: Bench, case: Case, moments: bool, mode: str) -> None:
    name, b = bench.build(case)
    layer, grad = Layer(b), torch.randn_like(b.x) if mode == "both" else None
    if moments:
        inputs = layer.h, layer.norm.weight, layer.norm.bias
        theirs = Variant("BatchNorm1d + relu + index_put + dropout", layer.torchs_with_moments, inputs)
    else:
        inputs = layer.h, layer.scale, layer.shift
        theirs = Variant("mul + add + relu + index_put + dropout", layer.torchs, inputs)
    ours = Variant(OURS, layer.ours_with_moments if moments else layer.ours, inputs)
    compiled = [theirs.compiled()] if case.thorough and not bench.tiny else []
    nbytes = activate_bytes(layer.h, b.table, moments=moments, backward=grad is not None)
    limits = [make(nbytes, b.x.device) for make in (triad, copy)]
    op = "activate with column_moments" if moments else "activate"
    bench.op(op, name, [ours, theirs, *compiled], layer.check(inputs, moments, grad), limits, grad)
