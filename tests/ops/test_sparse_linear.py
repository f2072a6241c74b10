"""sparse_linear: the product and its gradient are those of dense rows."""

import importlib

import pytest
import torch
from torch import Tensor

from rest_triton.data.features import SparseRows
from rest_triton.ops import activate, debug, sparse_linear, use_backend
from rest_triton.ops.hashing import element_kept, feature_kept

F = 60


def random(rows: int, share: float = 0.1) -> SparseRows:
    g = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, F, generator=g) * (torch.rand(rows, F, generator=g) < share)
    x[1::5] = 0  # empty rows
    return SparseRows.from_dense(x)


def twice(x: SparseRows) -> SparseRows:
    """Each element in two parts."""
    parts = torch.stack([0.25 * x.value, 0.75 * x.value], 1).flatten()
    return SparseRows(2 * x.rowptr, x.index.repeat_interleave(2), parts, x.width)


CASES = {
    "some": random(30),
    "one": random(1),
    "no rows": random(0),
    "empty rows": SparseRows.from_dense(torch.zeros(7, F)),
    "full rows": random(20, 1.0),
    "duplicates": twice(random(25)),
    "a frequent column": SparseRows.from_dense((torch.arange(F) == 3).float().repeat(100, 1)),
}


def product(x: SparseRows, weight: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(the product, a gradient of the weight)."""
    leaf = weight.clone().requires_grad_()
    out = x.linear(leaf)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    out.backward(grad.to(out))
    assert leaf.grad is not None and leaf.grad.is_contiguous()
    return out.detach(), leaf.grad


@pytest.mark.parametrize("width", [1, 47, 256])
@pytest.mark.parametrize("name", CASES)
def test_as_the_product_of_dense_rows(name: str, width: int, place: torch.device) -> None:
    x = CASES[name].to(place)
    weight = torch.randn(width, F, generator=torch.Generator().manual_seed(1)).to(place)
    out, grad = product(x, weight)
    leaf = weight.double().requires_grad_()
    expected = torch.nn.functional.linear(x.dense().double(), leaf)
    expected.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(expected))
    assert leaf.grad is not None
    torch.testing.assert_close(out, expected.detach().float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad, leaf.grad.float(), rtol=1e-4, atol=1e-4)
    with use_backend("torch"):
        for got, wanted in zip(product(x, weight), (out, grad), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_dtype_is_the_weights_and_autocasts(place: torch.device) -> None:
    x, weight = CASES["some"].to(place), torch.randn(8, F).to(place)
    half, grad = product(x, weight.bfloat16())
    assert half.dtype == grad.dtype == torch.bfloat16
    with torch.autocast(place.type, torch.bfloat16):
        cast, grad = product(x, weight)
    assert torch.equal(cast, half) and grad.dtype == torch.float32


def test_no_gradient_no_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("rest_triton.ops.sparse_linear"), "_reverse", None)
    x, weight = CASES["some"], torch.randn(8, F)
    x.linear(weight)
    with torch.no_grad():
        x.linear(weight.requires_grad_())
    with pytest.raises(TypeError):
        x.linear(weight)


def test_dropout_is_that_of_dense_rows(place: torch.device) -> None:
    x, ids = CASES["duplicates"].to(place), torch.arange(100, 125).to(place)
    for p in (0.0, 0.4, 1.0):
        expected = activate(x.dense(), relu=False, dropout=p, seed=9, rows=ids)
        torch.testing.assert_close(x.dropout(ids, p, 9).dense(), expected)
    columns = torch.tensor([5, 0, 17])
    everything = feature_kept(9, torch.tensor([3, 8, 2**40]), 20, 0.5)
    chosen = element_kept(9, torch.tensor([3, 8, 2**40]), columns, 0.5)
    assert torch.equal(chosen, everything[torch.arange(3), columns])


def test_rows_of_a_batch_on_any_device(place: torch.device) -> None:
    x, ids = CASES["some"].to(place), torch.tensor([7, 3, 0, 29]).to(place)
    assert torch.equal(x.rows(ids).dense(), x.dense()[ids]) and torch.equal(x.dense(ids), x.dense()[ids])


def test_refuses_what_it_cannot_multiply() -> None:
    x, weight = CASES["some"], torch.randn(8, F)
    with pytest.raises(ValueError, match=r"dimension 0 must be 163, one per index"):
        sparse_linear(x.rowptr, x.index, x.value[1:], weight)
    with pytest.raises(TypeError, match="index is int64; it must be int32"):
        sparse_linear(x.rowptr, x.index.long(), x.value, weight)
    with pytest.raises(ValueError, match="value requires a gradient"):
        sparse_linear(x.rowptr, x.index, x.value.clone().requires_grad_(), weight)
    with debug(), pytest.raises(ValueError, match="index"):
        sparse_linear(x.rowptr, x.index, x.value, weight[:, :20])
