"""GraphFM: what a push writes, what it leaves alone, and what follows from it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.nn import inference
from rest_triton.ops import history_spmm
from rest_triton.utils.errors import UserError

from ..history.runs import NODES, Run, disk, same_results

MODELS = ["gcn", "appnp", "gcnii"]


def dense(run: Run) -> Tensor:
    """float64 [N, N]: the normalised adjacency."""
    nodes = torch.arange(NODES)
    return history_spmm(run.data.adj, nodes, run.engine.inputs.outside(), None, torch.eye(NODES)).double()


def pushed(run: Run, layer: int, p: Tensor, h0: Tensor) -> Tensor:
    """The papers' equation of a layer for rows whose sums over neighbours are ``p``."""
    model: Any = run.model.double()
    if run.config.model == "appnp":
        return (1 - model.alpha) * p + model.alpha * h0
    conv = model.convs[layer]
    if run.config.model == "gcnii":
        z, beta = (1 - model.alpha) * p + model.alpha * h0, math.log(model.theta / (layer + 1) + 1)
        return F.relu((1 - beta) * z + beta * z @ conv.weight1)
    u = conv.lin(p) + conv.bias
    if len(model.bns):
        norm = model.bns[layer].eval()
        u = (u - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return F.relu(u)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", ["gcn", "gcn-batch-norm", "appnp", "gcnii"])
def test_what_a_push_writes(model: str, far: bool) -> None:
    """By the equation in float64, from what the layers of the batch see: rows after dropout."""
    name, _, norm = model.partition("-")
    run = Run(name, method="graphfm", push_momentum=0.3, far=far, batch_norm=bool(norm))
    run.losses(2)
    run.model.train()
    batch = run.batch(1, 4)
    rows, halo, tables = batch.rows, batch.halo(run.data.adj), run.history.tables
    before, stamps = [table.rows[halo].double() for table in tables], [table.stamp[halo] for table in tables]
    seen: dict[str, Tensor] = {}
    run.engine.train(batch, 9, lambda logits: None, probe=lambda what, h: seen.update({what: h.detach().double()}))
    encodes = run.model.encodes
    for number in range(int(encodes), len(tables)):
        layer = number - 1 if encodes else number
        if layer == 0 and not encodes:
            h = run.data.x[rows].double()
        else:
            h = tables[layer].rows[rows].double() if name == "appnp" else seen[f"activation of layer {layer - 1}"]
        q = pushed(run, layer, dense(run)[halo][:, rows] @ h, tables[0].rows[halo].double())
        expected = 0.7 * before[number] + 0.3 * q
        torch.testing.assert_close(tables[number].rows[halo].double(), expected, rtol=1e-4, atol=1e-5)
        assert (q - before[number]).abs().max() > 0.01
    for table, stamp in zip(tables, stamps, strict=True):
        assert torch.equal(table.stamp[halo], stamp) and (table.stamp[rows] == 9).all()
    if encodes:
        assert torch.equal(tables[0].rows[halo].double(), before[0])


@pytest.mark.parametrize("method", ["gas", "gas+rest", "gas+rest-is"])
@pytest.mark.parametrize("model", MODELS)
def test_without_momentum_it_is_gas(model: str, method: str) -> None:
    gas, ours = Run(model, method=method), Run(model, method=method.replace("gas", "graphfm"), push_momentum=0.0)
    assert gas.losses(3) == ours.losses(3) and same_results(gas, ours)
    moved = Run(model, method=method.replace("gas", "graphfm"))
    moved.losses(3)
    assert not same_results(gas, moved)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_is_gas_on_pushed_tables(model: str, far: bool) -> None:
    """A push comes before its rows are read, and no gradient goes through it."""
    ours, gas = Run(model, method="graphfm", push_momentum=0.6, far=far), Run(model, method="gas", far=far)
    loss = ours.losses(1)
    batch = gas.trainer.method.batches(1)[0]
    halo = batch.halo(gas.data.adj)
    for mine, theirs in zip(ours.history.tables, gas.history.tables, strict=True):
        theirs.rows[halo] = mine.rows[halo]
    assert gas.losses(1) == loss and same_results(ours, gas)


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", MODELS)
def test_with_momentum_one_tables_do_not_matter(model: str, given: str) -> None:
    """What was in them is nowhere in the halo's rows, nor in the step. Encoded features in a table are not pushed."""
    if model == "gcn" and given == "exact":
        given, model = "exact", "gcn-linear"
    options: dict[str, Any] = dict(method="graphfm", push_momentum=1.0, first=given)
    clean, poisoned = Run(model, **options), Run(model, **options)
    batch = clean.trainer.method.batches(1)[0]
    halo = batch.halo(clean.data.adj)
    first = int(poisoned.model.encodes and given == "cached")
    for table in poisoned.history.tables[first:]:
        table.rows[:] = torch.randn(table.rows.shape).mul(1e3)
    assert clean.losses(1) == poisoned.losses(1)
    for a, b in zip(clean.history.tables, poisoned.history.tables, strict=True):
        assert torch.equal(a.rows[halo], b.rows[halo]) and torch.equal(a.rows[batch.rows], b.rows[batch.rows])
    assert all(map(torch.equal, clean.model.state_dict().values(), poisoned.model.state_dict().values()))


@pytest.mark.parametrize("model", MODELS)
def test_everyone_in_one_batch_is_full_batch_training(model: str) -> None:
    full, ours = Run(model, method="full"), Run(model, method="graphfm", push_momentum=0.5, batch_size=6)
    assert full.losses(4) == ours.losses(4)
    assert all(map(torch.equal, full.model.state_dict().values(), ours.model.state_dict().values()))


@pytest.mark.parametrize("model", MODELS)
def test_the_error_of_a_push_is_permanent(model: str) -> None:
    """Weights that do not move, and tables that were exact: sweeps do not make the error go away."""
    errors = []
    for momentum in (0.0, 0.1, 0.5, 1.0):
        run = Run(model, method="graphfm", push_momentum=momentum, dropout=0.0)
        exact, worst = run.engine.exact(), 0.0
        for sweep in range(4):
            for batch in run.trainer.method.batches(sweep):
                ours = run.engine.forward(batch, sweep).detach()
                if sweep == 3:
                    expected = exact[batch.rows]
                    worst = max(worst, float((ours - expected).norm() / expected.norm()))
        run.engine.leave()
        errors.append(worst)
    assert errors[0] < 1e-5 and 0.02 < errors[1] < errors[2] < errors[3]


@pytest.mark.parametrize(
    ("model", "method", "where"),
    [("gcn", "graphfm+rest-is", "far"), ("appnp", "graphfm", "far"), ("gcnii", "graphfm+rest-is", "disk"),
     ("gcnii", "graphfm+rest", "far"), ("appnp", "graphfm+rest", "disk")],
)  # fmt: skip
def test_tables_anywhere_give_the_same_bits(model: str, method: str, where: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(method=method, push_momentum=0.5, dtype="bfloat16" if where == "far" else "float32")
    expected, other = Run(model, **options), Run(model, **options, **(dict(far=True) if where == "far" else disk(tmp_path)))
    assert other.losses(5) == expected.losses(5) and same_results(expected, other)
    other.trainer.close()


def test_refreshes_and_evaluation_do_not_push(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inference.CHUNK_ROWS, "cpu", 32)  # else a piece has no halo
    run = Run("gcn", method="graphfm+rest", push_momentum=1.0)
    run.step()
    batch = run.batch(2)
    others = torch.ones(NODES, dtype=torch.bool)
    others[batch.rows] = False
    before = [table.rows.clone() for table in run.history.tables]
    run.trainer.evaluate(error=True)
    run.engine.predict(batch, 1)
    assert all(torch.equal(table.rows, rows) for table, rows in zip(run.history.tables, before, strict=True))
    run.engine.refresh(batch, 1)
    for table, rows in zip(run.history.tables, before, strict=True):
        assert torch.equal(table.rows[others], rows[others]) and not torch.equal(table.rows, rows)


def test_running_statistics_are_the_batches() -> None:
    """Those of the first layer, which reads features; and each step counts once."""
    gas, ours = (Run("gcn", method=method, batch_norm=True) for method in ("gas", "graphfm"))
    for run in (gas, ours):
        run.step()
    a, b = (run.model.bns[0].state_dict() for run in (gas, ours))
    assert all(torch.equal(a[name], b[name]) for name in ("running_mean", "running_var", "num_batches_tracked"))
    assert int(ours.model.bns[1].num_batches_tracked) == 1


@pytest.mark.parametrize("model", ["gin", "gcn-norm", "gcn-linear", "gcnii-norm"])
def test_layers_that_add_rows_of_their_own(model: str) -> None:
    """Residuals are the halo's rows as the batch reads them, near and far."""
    near, far = (Run(model, method="graphfm", push_momentum=0.5, far=far) for far in (False, True))
    assert near.losses(3) == far.losses(3) and same_results(near, far)


@pytest.mark.parametrize("model", ["gat", "pna"])
def test_models_that_do_not_sum_are_refused(model: str) -> None:
    message = f"method is graphfm[+]rest, but model {model} does not sum over neighbours; give --method gas[+]rest, or"
    with pytest.raises(UserError, match=message):
        Config(dataset="small", model=model, method="graphfm+rest")
    assert "graphfm" in Config(dataset="small").idle(["push_momentum"])[0]
