"""activate: every backend against the definition, forward, write-back and gradients."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import activate, backend, column_moments, use_backend

from ..conftest import PLACES
from .budget import assert_within_budget
from .pairs import pairwise

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TABLE = 60


@dataclass(frozen=True)
class Case:
    count: int = 20
    width: int = 32
    h: torch.dtype = F32
    scale: bool = True
    shift: bool = True
    learn: bool = True  # scale and shift require gradients
    relu: bool = True
    dropout: float = 0.0
    rows: bool = True
    history: torch.dtype | None = F32
    own_history_rows: bool = False
    strided: bool = False
    moments: bool = False  # scale and shift come from h's own mean and variance


PLAIN = Case()
ANY = dict(
    width=[1, 3, 47, 100, 128, 256], h=[F32, BF16, F16], history=[F32, BF16, F16, None], scale=[True, False],
    shift=[True, False], learn=[True, False], relu=[True, False], dropout=[0.0, 0.5], rows=[True, False],
    own_history_rows=[False, True], strided=[False, True], moments=[False, True],
)  # fmt: skip


def never(chosen: dict[str, Any]) -> bool:
    """Whether a case has moments without scale and shift, or rows of a history without the history."""
    without_vectors = not (chosen.get("scale", True) and chosen.get("shift", True))
    return (chosen.get("moments", False) and without_vectors) or (
        chosen.get("own_history_rows", False) and chosen.get("history", F32) is None
    )


CASES: dict[str, Case] = {f"pairs-{n}": replace(PLAIN, **chosen) for n, chosen in enumerate(pairwise(ANY, never))}
# Options alone, where the kernels branch on several of them or the others would hide them.
CASES |= {
    "plain": PLAIN,
    "zero-rows": replace(PLAIN, count=0),
    "moments-zero-rows": replace(PLAIN, moments=True, count=0),
    "dropout-all": replace(PLAIN, dropout=1.0),
    "nothing": replace(PLAIN, scale=False, shift=False, relu=False, history=None),
    "no-scale": replace(PLAIN, scale=False),
    "no-shift": replace(PLAIN, shift=False),
    "no-relu": replace(PLAIN, relu=False, dropout=0.5),
    "frozen": replace(PLAIN, learn=False, dropout=0.5),
    "frozen-no-relu": replace(PLAIN, learn=False, relu=False, dropout=0.5),
    "moments-no-relu": replace(PLAIN, moments=True, relu=False),
    "relu-only": replace(PLAIN, scale=False, shift=False, history=None),
    "relu-dropout": replace(PLAIN, scale=False, shift=False, dropout=0.5),
    "dropout-only": replace(PLAIN, scale=False, shift=False, relu=False, dropout=0.5),
    "moments": replace(PLAIN, moments=True, dropout=0.5),
}  # fmt: skip


def run(case: Case, precision: torch.dtype | None, device: torch.device) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)

    def ready(t: Tensor, leaf: bool = False) -> Tensor:
        t = t.to(device, precision or t.dtype)
        return t.detach().requires_grad_() if leaf else t

    h = torch.randn(case.count, case.width, generator=g).to(case.h)
    if case.strided:
        h = torch.stack([h, torch.full_like(h, torch.nan)], 2)[:, :, 0]
    h = ready(h).requires_grad_()
    scale, shift = (torch.randn(case.width, generator=g) for _ in range(2))
    scale_in = ready(scale, case.learn) if case.scale else None
    shift_in = ready(shift, case.learn) if case.shift else None
    rows, other = (torch.randperm(TABLE, generator=g)[: case.count].to(device) for _ in range(2))
    table = None if case.history is None else ready(torch.full((TABLE, case.width), 7.0).to(case.history))
    moments, scale_of, shift_of = None, scale_in, shift_in
    if case.moments and scale_in is not None and shift_in is not None:
        mean, var = column_moments(h)
        moments = mean, var + 1e-5
        scale_of = scale_in * torch.rsqrt(moments[1])
        shift_of = shift_in - mean * scale_of
    y = activate(
        h, scale_of, shift_of, relu=case.relu, dropout=case.dropout, seed=5, rows=rows if case.rows else None,
        history=table, history_rows=other if case.own_history_rows else None, moments=moments,
    )  # fmt: skip
    results = {"y": y} | ({} if table is None else {"history": table})
    leaves = {"h": h} | {n: t for n, t in (("scale", scale_in), ("shift", shift_in)) if t is not None and t.requires_grad}
    grad = torch.randn(y.shape, generator=g).to(device, y.dtype)
    got = torch.autograd.grad(y, list(leaves.values()), grad)
    return results | {f"grad {n}": t for n, t in zip(leaves, got, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: str, place: torch.device) -> None:
    got = run(CASES[name], None, place)
    with use_backend("torch"):
        cpu = torch.device("cpu")
        plain, truth = run(CASES[name], None, cpu), run(CASES[name], torch.float64, cpu)
    assert got.keys() == plain.keys()
    for key in got:
        assert_within_budget(key, got[key], plain[key], truth[key])


@pytest.mark.parametrize("place", PLACES[1:], indirect=True)
def test_sums_of_programs_that_take_several_tiles(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from rest_triton.kernels import gpu

    monkeypatch.setitem(gpu.activate_backward.__globals__, "PARTIAL_PROGRAMS", 2)
    monkeypatch.setitem(CASES, "tiles", replace(PLAIN, count=50, width=128, dropout=0.5))
    test_against_the_definition("tiles", place)


def test_definition_is_torch_batch_norm_and_relu() -> None:
    h = torch.randn(50, 7, dtype=torch.float64)
    norm = torch.nn.BatchNorm1d(7, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    var, mean = torch.var_mean(h, 0, correction=0)
    scale = norm.weight * (var + norm.eps).rsqrt()
    with use_backend("torch"):
        y = activate(h, scale, norm.bias - mean * scale)
    torch.testing.assert_close(y, norm(h).relu())


def test_moments_are_torch_batch_norm_in_training() -> None:
    """Values and the gradients of h, weight and bias equal those of torch's BatchNorm1d in training mode."""
    h = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    norm = torch.nn.BatchNorm1d(7, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    inputs, grad = (h, norm.weight, norm.bias), torch.randn(50, 7, dtype=torch.float64)
    with use_backend("torch"):
        mean, var = column_moments(h)
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        y = activate(h, scale, norm.bias - mean * scale, moments=(mean, var + norm.eps))
    expected = norm(h).relu()
    torch.testing.assert_close(y, expected)
    for got, want in zip(torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_column_moments(dtype: torch.dtype, offset: float, place: torch.device) -> None:
    """Moments are right also far from zero, where a sum of squares would lose the variance."""
    h = (torch.randn(700, 9) + offset).to(dtype)
    mean, var = column_moments(h.to(place))
    true_var, true_mean = torch.var_mean(h.double(), 0, correction=0)
    torch.testing.assert_close(mean.cpu().double(), true_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(var.cpu().double(), true_var, rtol=1e-4, atol=1e-6)
    assert not column_moments(h.to(place).requires_grad_())[0].requires_grad


def test_gradcheck_of_the_definition() -> None:
    h = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    scale, shift = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with use_backend("torch"):
        assert torch.autograd.gradcheck(lambda *t: activate(*t, dropout=0.4, seed=3), (h, scale, shift))


@pytest.mark.parametrize("vectors", [False, True])
def test_nan_stays_nan_where_kept(vectors: bool, place: torch.device) -> None:
    """ReLU keeps NaN, so that a diverged run shows. A dropped element is 0, also if it was NaN."""
    h = torch.full((4, 40), torch.nan, device=place)
    table = torch.zeros(4, 40, device=place)
    ones = torch.ones(40, device=place)
    given = (ones, ones) if vectors else (None, None)
    y = activate(h, *given, dropout=0.5, seed=1, history=table)
    with use_backend("torch"):
        expected = activate(h, *given, dropout=0.5, seed=1)
    assert table.isnan().all()
    assert torch.equal(y.isnan(), expected.isnan()) and 0 < int(y.isnan().sum()) < y.numel()


def test_rows_and_vectors_with_gaps(place: torch.device) -> None:
    h, table = torch.randn(3, 8, device=place), torch.zeros(TABLE, 8, device=place)
    rows, scale, shift = torch.tensor([3, 50, 7], device=place), torch.rand(8, device=place), torch.rand(8, device=place)

    def spread(t: torch.Tensor) -> torch.Tensor:
        return torch.stack([t, torch.full_like(t, 55)], 1)[:, 0]

    expected = activate(h, scale, shift, dropout=0.5, seed=2, rows=rows)
    got = activate(h, spread(scale), spread(shift), dropout=0.5, seed=2, rows=spread(rows), history=table)
    assert torch.equal(got, expected) and int(table.any(1).sum()) == 3 and not table[55].any()


def test_rows_out_of_the_batch_are_not_written(place: torch.device) -> None:
    table = torch.full((TABLE, 8), 7.0, device=place)
    rows = torch.tensor([3, 50, 7], device=place)
    activate(torch.ones(3, 8, device=place), rows=rows, history=table)
    untouched = torch.ones(TABLE, dtype=torch.bool, device=place)
    untouched[rows] = False
    assert (table[untouched] == 7).all() and (table[rows] == 1).all()


def test_nothing_is_written_beside_the_gradients(place: torch.device) -> None:
    """The launcher of the backward writes into results that lie inside larger memory."""
    memory = torch.full((24, 60), 7.0, device=place)
    grad_h, grad_scale, grad_shift = memory[1:21, 4:51], memory[21, 4:51], memory[22, 4:51]
    h, grad_y, ones = (torch.ones(shape, device=place) for shape in ((20, 47), (20, 47), (47,)))
    backend.kernels(place).activate_backward(
        grad_h, grad_scale, grad_shift, grad_y, h, ones, ones, None, saved_is_output=False, relu=True, dropout=0.0, seed=0
    )
    for result, value in ((grad_h, 1), (grad_scale, 20), (grad_shift, 20)):
        assert (result == value).all()
        result.fill_(7.0)
    assert (memory == 7.0).all()


@pytest.mark.parametrize("count", [1, 5000])
def test_bitwise_repeatable_on_any_number_of_threads(count: int, threads: Any) -> None:
    results = []
    for n in (1, 2, 3, 2):
        threads(n)
        results.append(
            run(replace(PLAIN, count=count, width=9, dropout=0.5, history=None, rows=False), None, torch.device("cpu"))
        )
    for again in results[1:]:
        for key, value in results[0].items():
            assert torch.equal(value, again[key]), key


def test_backward_keeps_no_mask() -> None:
    """Backward saves h or the result, and vectors. A mask would be a second matrix."""
    sizes = []
    h = torch.randn(100, 64, requires_grad=True)
    for learn in (False, True):
        scale = torch.rand(64, requires_grad=learn)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            activate(h, scale, torch.rand(64), dropout=0.5, seed=1)
    assert sorted(sizes) == [64, 64, 64, 64, 6400, 6400]


def test_writing_history_raises_its_version() -> None:
    """Autograd notices that a table which it saved was overwritten."""
    table = torch.randn(10, 4)
    w = torch.randn(10, 4, requires_grad=True)
    product = table * w
    activate(torch.randn(10, 4), history=table)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
