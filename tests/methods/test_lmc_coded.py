"""LMC as published: exact for beta 0 and tables that are up to date, else with an error that stays."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.history.history import GRADIENT, INPUT
from rest_triton.methods.base import Method
from rest_triton.nn import Context
from rest_triton.ops import debug, history_spmm, use_backend
from rest_triton.utils.errors import UserError

from ..history.runs import NODES, Run
from ..training.data import gradients
from .test_lmc import CPU, MODELS, Neighbours, flat, full_gradient, noise, off, sweep, sweeps

EXACT: dict[str, Any] = dict(method="lmc-coded", beta=0.0, dropout=0.0)
BIDIRECTIONAL: dict[str, Any] = dict(method="lmc-coded+rest", frequency=3, gradient_frequency=2)


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


# M5.

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{model: (model, {}) for model in MODELS},
    "gcn-linear": ("gcn-linear", {}),
    "gcn, directed": ("gcn", dict(directed=True)),
    "gcnii, directed, far": ("gcnii", dict(directed=True, far=True)),
    "appnp, exact": ("appnp", dict(first="exact")),
    "gcn-linear, exact, directed, far": ("gcn-linear", dict(first="exact", directed=True, far=True)),
    "gcnii, exact": ("gcnii", dict(first="exact")),
}


@pytest.mark.parametrize("case", CASES)
def test_without_computed_rows_the_gradient_of_an_epoch_is_that_of_the_full_batch(case: str) -> None:
    """With frozen weights, from tables of noise."""
    model, options = CASES[case]
    run = noise(Run(model, **EXACT, **options))
    truth = full_gradient(run)
    errors = [off(sweep(run, number), truth) for number in range(1, sweeps(run) + 1)]
    assert errors[0] > 1 and errors[-1] < 2e-6


@pytest.mark.parametrize(("model", "directed"), [*((model, False) for model in MODELS), ("gcn", True)])
def test_with_computed_rows_an_error_stays(model: str, directed: bool) -> None:
    """More sweeps do not make it smaller. It grows with beta."""
    errors = []
    for beta, score in ((0.2, "const"), (0.8, "linear"), (1.0, "const")):
        run = Run(model, method="lmc-coded", beta=beta, score=score, dropout=0.0, batch_size=1, directed=directed)
        truth = full_gradient(run)
        found = [off(sweep(run, number), truth) for number in range(1, sweeps(run) + 1)]
        errors.append(found[-1])
        assert found[-1] == pytest.approx(found[-2], rel=0.02)
    assert errors[0] > 0.01 and errors == sorted(errors) and errors[-1] < 0.4


@pytest.mark.parametrize("model", MODELS)
def test_tables_hold_rows_before_the_activation_and_their_gradients(model: str) -> None:
    run = noise(Run(model, **EXACT))
    for number in range(1, sweeps(run) + 1):
        sweep(run, number)
    full, made = Run(model, method="full", dropout=0.0), list[Tensor]()

    class Watched(Context):
        def output(self, h: Tensor, *of: Any, **options: Any) -> Tensor:
            self.seen(h)
            return super().output(h, *of, **options)

        def leave(self, h: Tensor) -> None:
            if not self._recorded:
                self.seen(h)
            super().leave(h)

        def seen(self, u: Tensor) -> None:
            u.retain_grad()
            made.append(u)

    full.trainer.method.context = Watched
    full.engine.train(full.batch(), 1, Method.loss(full.trainer.method, full.graph, full.batch(), CPU))
    rows, past = run.history.kinds[INPUT], run.history.kinds[GRADIENT]
    assert len(rows) == len(made) + run.model.encodes and len(past) == len(made) - 1 - (not run.model.encodes)
    for table, u in zip(reversed(rows), reversed(made), strict=False):
        assert off(table.rows.double(), u.detach().double()) < 2e-6
    for table, u in zip(reversed(past), reversed(made[:-1]), strict=False):
        assert u.grad is not None and off(table.rows.double(), u.grad.double()) < 2e-6


# A step by the paper's equations.


def dense(run: Run) -> Tensor:
    """float64 [N, N]: the normalised adjacency."""
    return history_spmm(run.data.adj, torch.arange(NODES), run.engine.inputs.outside(), None, torch.eye(NODES)).double()


def beta_of(run: Run, inside: Tensor, halo: Tensor) -> Tensor:
    edges = replace(run.data.adj, row_scale=None, col_scale=None, edge_weight=None, reverse=None)
    nodes, outside = torch.arange(NODES), run.engine.inputs.outside()
    count = history_spmm(edges, nodes, outside, None, torch.eye(NODES)).double()  # an edge may be there twice
    x = torch.minimum(*(e[halo][:, inside].sum(1) / e[halo].sum(1) for e in (count, count.t())))
    score = {
        "linear": x, "const": 1 + 0 * x, "concave": x * (2 - x), "convex": x**2, "sin": torch.sin(torch.pi * (x - 0.5))
    }[run.config.score]  # fmt: skip
    return torch.where(x == 1, 1.0, run.config.beta * score).unsqueeze(1)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("score", ["linear", "const", "concave", "convex", "sin"])
def test_a_step_is_that_of_the_equations(score: str, directed: bool) -> None:
    """A GCN in float64: what the tables then hold, and gradients of weights."""
    run = noise(Run("gcn", method="lmc-coded", beta=0.8, score=score, dropout=0.0, directed=directed))
    batch, a = run.batch(1, 4), dense(run)
    rows = batch.rows
    near = (a[rows] > 0).any(0) | (a[:, rows] > 0).any(1)
    near[rows] = False
    halo = torch.nonzero(near).squeeze(1)
    inside, b = torch.cat([rows, halo]), len(rows)
    assert torch.equal(run.trainer.method.reads(run.engine, batch), halo)
    beta, h = beta_of(run, inside, halo), run.data.x[inside].double()
    assert 0 < int((beta == 1).sum()) < len(halo)
    tables = {kind: [table.rows.double() for table in kept] for kind, kept in run.history.kinds.items()}
    weights, kept = [], list[Tensor]()
    for layer, conv in enumerate(run.model.convs):
        w, c = (p.detach().double().requires_grad_() for p in (conv.lin.weight, conv.bias))
        weights += [c, w]
        z = a[inside][:, inside] @ h
        u, v = z[:b] @ w.t(), z[b:] @ w.detach().t()
        last, old = layer == 2, tables[INPUT][layer][halo]
        if last:  # whose table holds results
            u, v = u + c, v + c.detach()
        v = v + ((1 - beta) * (old - v)).detach()
        if layer == 1:
            v.register_hook(lambda g: (1 - beta) * tables[GRADIENT][0][halo] + beta * g)
        u.retain_grad()
        kept.append(u)
        h = torch.cat([u, v]) if last else torch.cat([F.relu(u + c), F.relu(v + c.detach())])
    trains = run.graph.train_mask[inside]
    loss = F.cross_entropy(h[trains], run.graph.y[inside][trains], reduction="sum") / int(run.graph.train_mask.sum())
    loss.backward()
    run.model.zero_grad()
    run.engine.train(batch, 9, run.trainer.method.loss(run.graph, batch, CPU))
    for ours, theirs in zip(run.model.parameters(), weights, strict=True):
        assert ours.grad is not None and off(ours.grad.double(), theirs.grad) < 1e-5
    others = torch.ones(NODES, dtype=torch.bool)
    others[rows] = False
    written = [*zip(run.history.tables, kept, tables[INPUT], strict=True)]
    written.append((run.history.kinds[GRADIENT][0], kept[1].grad, tables[GRADIENT][0]))
    for table, now, before in written:
        assert off(table.rows[rows].double(), now.detach()) < 1e-5
        assert torch.equal(table.rows[others].double(), before[others]) and int((table.stamp == 9).sum()) == b


@pytest.mark.parametrize(("model", "given"), [("gcn", "cached"), ("appnp", "exact"), ("gcnii", "exact")])
def test_with_beta_one_and_score_const_no_table_is_read(model: str, given: str) -> None:
    """Bitwise. This is the setting that the authors publish for GCN on arxiv. With score linear tables are read."""
    for score in ("const", "linear"):
        runs = [Run(model, method="lmc-coded", beta=1.0, score=score, first=given) for _ in range(2)]
        for table in noise(runs[1]).history.all_tables:
            table.rows.mul_(1e3)
        found = [(run.losses(1), gradients(run.model)) for run in runs]
        alike = found[0][0] == found[1][0] and all(map(torch.equal, found[0][1], found[1][1]))
        assert alike == (score == "const")


@pytest.mark.parametrize("model", [*MODELS, "gcn-norm"])
def test_one_batch_of_all_nodes_is_full_batch(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bitwise, whatever the tables hold."""
    monkeypatch.setattr(Method, "transforms_first", lambda *of: False)
    found = []
    for method in ("lmc-coded", "full"):
        run = Run(model, method=method)
        loss_of = Method.loss(run.trainer.method, run.graph, run.batch(), CPU)
        (run if method == "full" else noise(run)).engine.train(run.batch(), 1, loss_of)
        found.append(gradients(run.model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and bool(flat(found[0]).any())


def test_a_loss_belongs_to_its_forward() -> None:
    """In a loop of one's own, other forwards between a forward and its loss change nothing."""
    run, other = (Run("gcnii", method="lmc-coded+rest") for _ in range(2))
    batch = run.batch(1, 4)
    logits = run.engine.forward(batch, 1)
    run.engine.predict(run.batch(2), 1)
    run.engine.refresh(run.batch(0), 1)
    loss = run.trainer.method.loss(run.graph, batch, CPU)(logits)
    assert loss is not None
    loss.backward()
    other.engine.train(batch, 1, other.trainer.method.loss(run.graph, batch, CPU))
    assert all(map(torch.equal, gradients(run.model), gradients(other.model)))
    other.engine.train(batch, 2, lambda logits: logits.sum())
    assert other.trainer.method.beside is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", [{}, dict(edge_dropout=0.3), dict(amp=True, dtype="bfloat16"), dict(directed=True)])
def test_it_learns(how: dict[str, Any]) -> None:
    run = Run("gcn-norm", method="lmc-coded+rest", **how)
    with debug():
        losses = run.losses(30)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    if "amp" not in how:
        with use_backend("torch"):
            again = Run("gcn-norm", method="lmc-coded+rest", **how).losses(4)
        assert again == pytest.approx(losses[:4], rel=1e-4)


# What is refused, and what has no effect.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(model="gin"), "method is lmc-coded, but layers of model gin have a ReLU inside.*give --method lmc, or"),
        (dict(model="gat"), "method is lmc-coded, but model gat does not sum over neighbours"),
        (dict(model="pna"), "method is lmc-coded, but model pna does not sum over neighbours"),
        (dict(gradient_frequency=1), "method lmc-coded has no refreshes that run backward"),
        (BIDIRECTIONAL | dict(gradient_frequency=4), "gradient_frequency is 4, but frequency is 3"),
        (dict(beta=1.5), "beta is 1.5"),
        (dict(beta=-0.1), "beta is -0.1"),
        (dict(score="cubic"), "score is 'cubic'"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**(dict(dataset="cora", method="lmc-coded") | given))


def test_a_model_that_reads_neighbours_itself_is_refused() -> None:
    with pytest.raises(UserError, match=r"reads neighbours by ctx\.neighbourhood\(\)"):
        Run(Neighbours(), method="lmc-coded").step()


def test_options_of_other_methods_have_no_effect() -> None:
    coded, lmc = Config(dataset="small", method="lmc-coded"), Config(dataset="small", method="lmc")
    assert coded.idle(["beta", "score"]) == [] and len(lmc.idle(["beta", "score"])) == 2
