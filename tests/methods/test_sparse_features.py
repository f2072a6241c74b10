"""Sparse features: every model and method computes from them what it computes from the same features stored dense."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear

from rest_triton.data.features import SparseRows
from rest_triton.nn import GCN, HistoryGNN
from rest_triton.nn.context import Context
from rest_triton.sampling.loader import ClusterLoader
from rest_triton.training.loop import REST
from rest_triton.utils.errors import UserError

from ..history.runs import CLASSES, NODES, Run, graph

WIDTH = 1000


def words() -> SparseRows:
    """About three nonzeros a row, each in two parts; some rows have none."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(NODES, WIDTH, generator=g) * (torch.rand(NODES, WIDTH, generator=g) < 0.015)
    rows = SparseRows.from_dense(x)
    half = rows.value / 2
    return SparseRows(2 * rows.rowptr, rows.index.repeat_interleave(2), half.repeat_interleave(2), WIDTH)


WORDS = words()
KINDS: dict[str, dict[str, Any]] = {
    "appnp-one": dict(model="appnp", num_layers=2, mlp_layers=1, drop_input=True),
    "gin-drop": dict(model="gin", num_layers=2, drop_input=True),
    "gat-drop": dict(model="gat", num_layers=2, heads=2, drop_input=True),
}
SAMPLING = dict(fanout="3", batch_nodes=40)

CASES = [
    *((kind, "gas", {}) for kind in ("gcn", "appnp", "appnp-one", "gcnii", "gin", "gat")),
    *((kind, "gas+rest", {}) for kind in ("gcn", "gcn-norm", "gcn-linear", "gin-drop", "gat-drop")),
    *((kind, "lmc", {}) for kind in ("gcn-norm", "gin-drop", "gcnii")),
    *((kind, "lmc-coded", {}) for kind in ("gcn", "gcn-norm", "gcn-linear")),
    *((kind, "vrgcn", SAMPLING) for kind in ("gcn", "gcn-norm", "gin-drop", "gcn-linear")),
    *((kind, "full", {}) for kind in ("gcn-norm", "appnp", "gat-drop")),
    ("gcn-norm", "refresh", SAMPLING),
    ("gcn-norm", "sage", SAMPLING),
    ("gcn", "ladies", dict(batch_nodes=40)),
    ("gcn-norm", "cluster", {}),
    ("gcn-linear", "saint-node", dict(batch_nodes=40)),
    ("gcn", "saint-node", dict(batch_nodes=40)),
    ("gcn-norm", "gas+rest-is", dict(edge_dropout=0.2, directed=True)),
    ("gin-drop", "gas", dict(edge_dropout=0.2, far=True)),
    ("gcn-linear", "gas+rest", dict(first="exact", history_dropout=True)),
    ("gcn-norm", "graphfm+rest", dict(far=True)),
]


def run_of(kind: str, method: str, x: SparseRows | Tensor, **settings: Any) -> Run:
    options = KINDS.get(kind, {}) | settings
    return Run(options.pop("model", kind), method=method, x=x, **options)


def assert_same(a: Run, b: Run) -> None:
    torch.testing.assert_close(a.losses(4), b.losses(4), rtol=2e-5, atol=2e-6)
    b.model.load_state_dict(a.model.state_dict())  # Adam's first steps enlarge the rounding of small gradients
    results = []
    for run in (a, b):
        run.engine.fill(4)
        results.append((run.engine.exact(), run.engine.predict(run.batch(), 4)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "method", "settings"), CASES, ids=[f"{k}-{m}-{'-'.join(s)}" for k, m, s in CASES])
def test_as_dense_features(kind: str, method: str, settings: dict[str, Any]) -> None:
    a, b = run_of(kind, method, WORDS, **settings), run_of(kind, method, WORDS.dense(), **settings)
    assert a.engine.inputs.features.sparse and not b.engine.inputs.features.sparse
    assert_same(a, b)


@pytest.mark.parametrize("kind", ["gcn", "gcn-norm", "gcn-linear", "appnp", "gcnii", "gin-drop", "gat-drop"])
def test_nothing_is_made_dense(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by steps, nor by refreshes and exact passes."""
    monkeypatch.setattr(SparseRows, "dense", None)
    run = run_of(kind, "gas+rest", WORDS)
    run.losses(2)
    assert run.engine.exact().shape == (NODES, CLASSES)


@pytest.mark.parametrize("kind", ["gcn-norm", "gat-drop", "appnp"])
def test_amp(kind: str) -> None:
    a, b = (run_of(kind, "gas", x, amp=True) for x in (WORDS, WORDS.dense()))
    torch.testing.assert_close(a.losses(3), b.losses(3), rtol=0.02, atol=0.02)


def test_attention_has_gradients_of_the_halo() -> None:
    with pytest.raises(UserError, match="lmc"):
        run_of("gat", "lmc", WORDS).losses(1)


def test_sgc_aggregates_dense_rows() -> None:
    a, b = (run_of("gcn", "sgc", x, dropout=0.0) for x in (WORDS, WORDS.dense()))
    assert a.losses(3) == b.losses(3) and torch.equal(a.engine.exact(), b.engine.exact())


class Own(HistoryGNN):
    """Encodes features as a user may do it: F.linear of a tensor."""

    feature_dropout = 0.4

    def __init__(self) -> None:
        super().__init__([8, 8])
        self.lins = torch.nn.ModuleList([Linear(WIDTH, 8), Linear(8, CLASSES)])

    def encode(self, x: Tensor, ctx: Context) -> Tensor:
        return F.linear(x, self.lins[0].weight).relu()

    def layer(self, layer: int, ctx: Context) -> Tensor:
        return ctx.propagate() + ctx.h

    def decode(self, h: Tensor) -> Tensor:
        return self.lins[1](h)


class Reading(HistoryGNN):
    """Asks for sparse features, and reads their rows and their aggregate."""

    sparse_features = True
    feature_dropout = 0.4

    def __init__(self) -> None:
        super().__init__([8])
        self.lins = torch.nn.ModuleList([Linear(WIDTH, 8), Linear(8, CLASSES)])

    def layer(self, layer: int, ctx: Context) -> Tensor:
        u = self.lins[layer](ctx.propagate() + ctx.h)
        return u if layer else ctx.output(u)


@pytest.mark.parametrize("kind", [Own, Reading])
def test_own_models(kind: type[HistoryGNN]) -> None:
    runs = []
    for x in (WORDS, WORDS.dense()):
        torch.manual_seed(0)
        runs.append(Run(kind(), method="gas+rest", x=x))
    a, b = runs
    assert_same(a, b)
    assert a.engine.inputs.features.sparse == kind.sparse_features


def test_own_loop() -> None:
    """REST keeps features sparse as the Trainer does, and makes those dense that have many nonzeros."""
    results = []
    for x in (WORDS, WORDS.dense()):
        torch.manual_seed(0)
        loader = ClusterLoader(replace(graph(), x=x), num_parts=4, batch_size=2)
        rest = REST(GCN(WIDTH, 16, CLASSES, 2), loader)
        assert rest.engine.inputs.features.sparse == isinstance(x, SparseRows)
        results.append([rest(batch) for batch in loader] + [rest.inference()])
    torch.testing.assert_close(*results)
    full = replace(graph(), x=SparseRows.from_dense(torch.ones(NODES, 12)))
    loader = ClusterLoader(full, num_parts=4, batch_size=2)
    assert not REST(GCN(12, 16, CLASSES, 2), loader).engine.inputs.features.sparse
