"""LMC as published: its tables in any format and place, refreshes that renew them, and runs that go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.data.sizes import Sizes
from rest_triton.history.history import GRADIENT, INPUT
from rest_triton.methods.coded_context import CodedContext
from rest_triton.nn import Context
from rest_triton.ops import history_spmm_definition
from rest_triton.sampling.batch import node_batch
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer

from ..history.runs import CLASSES, NODES, Run, disk, same_results
from ..training.data import settings, small
from .test_lmc import CPU, MODELS, full_gradient, noise, off, sweep, sweeps

EXACT: dict[str, Any] = dict(method="lmc-coded", beta=0.0, dropout=0.0)
BIDIRECTIONAL: dict[str, Any] = dict(method="lmc-coded+rest", frequency=3, gradient_frequency=2)


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


# Tables: number formats, places, checkpoints, memory.


@pytest.mark.parametrize("model", MODELS)
def test_float16_does_not_underflow(model: str) -> None:
    """Of 2e8 training nodes each has a gradient that float16 rounds to zero. Scaled, it keeps its eleven bits."""
    found = {}
    for dtype in ("float32", "float16"):
        run = Run(model, **EXACT, dtype=dtype)
        method: Any = run.trainer.method
        method.training_nodes = 200_000_000
        for number in range(1, sweeps(run) + 1):
            gradient = sweep(run, number)
        unit = method.unit(run.history.dtype)
        found[dtype] = gradient, [table.rows.double() / unit for table in run.history.kinds[GRADIENT]]
    assert not any(bool(rows.half().any()) for rows in found["float32"][1])
    for exact, kept in zip(found["float32"][1], found["float16"][1], strict=True):
        assert 0 < off(kept, exact) < 4 * 2.0**-11
    assert 0 < off(found["float16"][0], found["float32"][0]) < 4 * 2.0**-11


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("directed", [False, True])
def test_same_losses_wherever_the_tables_are(model: str, directed: bool, tmp_path: Path) -> None:
    for method in (dict(method="lmc-coded"), BIDIRECTIONAL, dict(method="lmc-coded+rest-is", frequency=2)):
        options = dict(**method, directed=directed, first="exact" if model == "appnp" and directed else "cached")
        expected = Run(model, **options)
        losses = expected.losses(5)
        assert len(set(losses)) == 5
        for where in (dict(far=True), disk(tmp_path / f"{method['method']}")):
            other = Run(model, **options, **where)
            assert other.losses(5) == losses and same_results(expected, other)
            other.trainer.close()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("given", ["cached", "exact"])
def test_the_plan_counts_its_tables(model: str, given: str) -> None:
    config = settings(model=model, method="lmc-coded", dtype="bfloat16", first="cached" if model == "gcn" else given)
    sizes = Sizes(nodes=small().graph.num_nodes, edges=3000, features=12, classes=CLASSES, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    kinds = Trainer(config, small()).history.kinds
    for name, kind in (("history tables", INPUT), ("gradient tables", GRADIENT)):
        assert planned[name] == sum(table.rows.nbytes for table in kinds[kind]) > 0
    assert planned["stamps"] == sum(table.stamp.nbytes for tables in kinds.values() for table in tables)


# Exact passes and refreshes.


@pytest.mark.parametrize("model", [*MODELS, "gcn-norm", "gcn-linear"])
def test_evaluation_is_exact(model: str) -> None:
    """It leaves no trace, or writes the rows that batches of exact tables would write."""
    run, other = Run(model, method="lmc-coded"), Run(model, method="gas")
    run.losses(2)
    other.model.load_state_dict(run.model.state_dict())
    before = [table.rows.clone() for table in run.history.tables]
    assert torch.equal(run.engine.exact(), other.engine.exact())
    found = run.trainer.evaluate(error=True)
    assert found["error"] > 0 and len(found["staleness"]) == len(before)
    assert all(torch.equal(table.rows, rows) for table, rows in zip(run.history.tables, before, strict=True))
    run.engine.fill(3)
    filled = [table.rows.clone() for table in run.history.tables]
    assert all(int(table.stamp.min()) == 3 for table in run.history.tables)
    run.engine.refresh(run.batch(), 4, training=False)
    for table, rows in zip(run.history.tables, filled, strict=True):
        torch.testing.assert_close(table.rows, rows, rtol=1e-4, atol=1e-5)
        assert int(table.stamp.min()) == 4


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("model", ["gcn-norm", "appnp", "gcnii-norm"])
def test_a_refresh_changes_tables_alone(model: str, mode: str) -> None:
    """Rows of the batch; with backward in tables of both kinds, and inputs as without."""
    run, other = (Run(model, **BIDIRECTIONAL, refresh_mode=mode) for _ in range(2))
    for known in (run, other):
        known.step()
    batch, outside = run.batch(0, 3), torch.ones(NODES, dtype=torch.bool)
    outside[batch.rows] = False
    for known, backward in ((run, True), (other, False)):
        tables = [(t.rows.clone(), t.stamp.clone()) for t in known.history.all_tables]
        of_tables = {id(x) for table in known.history.all_tables for x in (table.rows, table.stamp)}
        before = [t.clone() for t in known.results() if id(t) not in of_tables]
        known.engine.refresh(batch, 50, draw=4, training=mode == "train", backward=backward)
        after = [t for t in known.results() if id(t) not in of_tables]
        assert all(map(torch.equal, before, after)) and len(before) > 10
        assert known.trainer.method.beside is None  # type: ignore[attr-defined]
        for table, (rows, stamp) in zip(known.history.all_tables, tables, strict=True):
            assert torch.equal(table.rows[outside], rows[outside]) and torch.equal(table.stamp[outside], stamp[outside])
            changes = backward or table in known.history.tables
            assert torch.equal(table.rows, rows) != changes and bool((table.stamp[batch.rows] == 50).all()) == changes
    for ours, theirs in zip(run.history.tables, other.history.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows)
    run.model.zero_grad()
    run.engine.refresh(batch, 51, backward=True)
    assert all(p.grad is None and p.requires_grad for p in run.model.parameters())


@pytest.mark.parametrize("far", [False, True])
def test_rest_is_refreshes_what_the_batch_reads(far: bool) -> None:
    """In a directed graph also the nodes that read the batch: of these backward reads gradients. Only tables change."""
    run = Run("gcnii", method="lmc-coded+rest-is", frequency=2, directed=True, far=far)
    batch = run.trainer.method.batches(1)[0]
    halo = run.trainer.method.reads(run.engine, batch)
    assert len(halo) > len(batch.halo(run.data.adj))
    run.step()
    run.history.streams.finish()
    fresh = torch.zeros(NODES, dtype=torch.bool)
    fresh[halo] = fresh[batch.rows] = True
    for table in run.history.tables:
        assert torch.equal(table.stamp == 1, fresh)


@pytest.mark.parametrize("model", MODELS)
def test_refreshes_with_backward_are_sweeps(model: str) -> None:
    """With frozen weights: only the last epoch trains, and its gradient is that of the full batch."""
    run = noise(Run(model, **EXACT))
    truth = full_gradient(run)
    for number in range(1, sweeps(run)):
        sweep(run, number, refresh=True)
    assert off(sweep(run, sweeps(run)), truth) < 2e-6


def test_a_refresh_normalises_the_halo_as_asked() -> None:
    """With running statistics the halo's, too; a halo of one row has no others."""
    for running in (False, True):
        run = Run("gcn-norm", method="lmc-coded", dropout=0.0)
        run.step()
        seen: list[bool] = []
        normalise = Context._normalise

        def watched(ctx: Context, *of: Any, seen: list[bool] = seen, real: Any = normalise) -> Any:
            seen.append(ctx.running and ctx.statistics is not None)
            return real(ctx, *of)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Context, "_normalise", watched)
            run.engine.refresh(run.batch(0, 3), 2, running=running)
        assert len(seen) > 4 and set(seen) == {running}
    run.engine.refresh(node_batch(torch.arange(1, NODES), NODES), 3)
    assert all(bool(table.rows.isfinite().all()) for table in run.history.tables)


@pytest.mark.parametrize("refreshing", [False, True])
def test_the_first_aggregate_of_a_halo(refreshing: bool) -> None:
    """Of features of the batch and the halo; edges are dropped for training, and not for a refresh."""
    run = Run("gcn", method="lmc-coded", edge_dropout=0.4, dropout=0.0)
    method: Any = run.trainer.method
    ctx = CodedContext(run.engine.inputs, run.batch(2), run.engine.maps["compute"], method, step=1, refreshing=refreshing)
    ctx.begin(run.model)
    ctx.enter(0)
    assert ctx.beside is not None
    ctx.beside.enter(0)
    found, dropout = ctx.beside.propagate(), 0.0 if refreshing else 0.4
    x, seed = run.data.x[torch.cat([ctx.batch.rows, ctx.halo])], ctx.last_seed
    of = run.data.adj, ctx.halo, ctx.position(joined=True), x
    torch.testing.assert_close(found, history_spmm_definition(*of, edge_dropout=dropout, seed=seed))
    ctx.close()


def test_without_a_halo_it_is_the_loss_of_the_batch() -> None:
    """Isolated nodes: nothing is beside them."""
    run = Run("gcn", method="lmc-coded")
    batch = node_batch(torch.arange(NODES - 3, NODES), NODES)
    ctx = CodedContext(run.engine.inputs, batch, run.engine.maps["compute"], run.trainer.method, step=1)  # type: ignore[arg-type]
    run.model(ctx)
    assert ctx.beside is None
    ctx.close()
    run.engine.train(batch, 2, run.trainer.method.loss(run.graph, batch, CPU))
    assert all(bool((table.stamp[batch.rows] == 2).all()) for table in run.history.tables)
