"""Sparse features: every model and method computes from them what it computes from the same features stored dense."""

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear

from rest_triton.data.features import SparseRows
from rest_triton.nn import HistoryGNN
from rest_triton.nn.context import Context

from ..history.runs import CLASSES, NODES, Run

WIDTH = 200


def words(duplicates: bool = False) -> SparseRows:
    """About three nonzeros a row; some rows have none."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(NODES, WIDTH, generator=g) * (torch.rand(NODES, WIDTH, generator=g) < 0.015)
    rows = SparseRows.from_dense(x)
    if not duplicates:
        return rows
    half = rows.value / 2
    return SparseRows(2 * rows.rowptr, rows.index.repeat_interleave(2), half.repeat_interleave(2), WIDTH)


WORDS = words()
METHODS = ("gas", "gas+rest", "gas+rest-is", "lmc", "lmc-coded", "vrgcn", "full")
KINDS: dict[str, dict[str, Any]] = {
    "gcn": {}, "gcn-norm": {}, "gcn-linear": {}, "appnp": {}, "appnp-one": dict(model="appnp", num_layers=2, mlp_layers=1),
    "gcnii": {}, "gin": {}, "gin-drop": dict(model="gin", num_layers=2, drop_input=True), "gat": {},
}  # fmt: skip


def run_of(kind: str, method: str, x: SparseRows | Tensor, **settings: Any) -> Run:
    options = dict(KINDS[kind]) | settings
    if method.startswith(("vrgcn", "refresh")):
        options |= dict(fanout="3", batch_nodes=40)
    return Run(options.pop("model", kind), method=method, x=x, **options)


def assert_close(a: Run, b: Run, steps: int = 4) -> None:
    torch.testing.assert_close(a.losses(steps), b.losses(steps), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(a.engine.exact(), b.engine.exact(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "method"), product(KINDS, METHODS))
def test_as_dense_features(kind: str, method: str) -> None:
    if kind == "gat" and method in ("lmc", "lmc-coded", "vrgcn"):
        pytest.raises(Exception, run_of, kind, method, WORDS)
        return
    a, b = run_of(kind, method, WORDS), run_of(kind, method, WORDS.dense())
    assert a.engine.inputs.features.sparse and not b.engine.inputs.features.sparse
    assert_close(a, b)
