"""VR-GCN in runs: the rows that steps and refreshes write, and tables anywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.sampling.batch import Batch

from ..history.runs import NODES, Run, disk, same_results
from .test_vrgcn import ALL, MODELS, noise, sampled, vrgcn

REFRESHES = ["vrgcn+rest", "vrgcn+rest-is"]


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


def copies(run: Run) -> list[tuple[Tensor, Tensor]]:
    return [(table.rows.clone(), table.stamp.clone()) for table in run.history.tables]


def rows_written(run: Run, batch: Batch) -> list[Tensor]:
    """Of each table: the rows of its layer's input."""
    assert batch.counts is not None
    layers = range(run.model.num_layers)
    return [batch.rows[: batch.counts[layer]] for layer in layers if run.engine.inputs.number(layer) is not None]


def others(rows: Tensor) -> Tensor:
    found = torch.ones(NODES, dtype=torch.bool)
    found[rows] = False
    return found


# Rows of a step.


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", [*MODELS, "gcn-linear", "gin"])
def test_a_step_writes_the_rows_that_it_computes(model: str, far: bool) -> None:
    """Its field, which grows from layer to layer, and nothing else. It is stamped with the step."""
    run = noise(vrgcn(model, batch_nodes=5, far=far))
    batch, before = sampled(run), copies(run)
    written = rows_written(run, batch)
    run.engine.train(batch, 9, lambda logits: None)
    assert len(written) == len(before) and [len(rows) for rows in written] == sorted(map(len, written), reverse=True)
    for table, rows, (old, stamp) in zip(run.history.tables, written, before, strict=True):
        assert (table.stamp[rows] == 9).all() and 5 <= len(rows) < NODES
        changed = (table.rows != old).any(1)
        assert changed[rows].all() and not changed[others(rows)].any()
        assert torch.equal(table.stamp[others(rows)], stamp[others(rows)])
    free = [position for maps in run.engine.maps.values() for position in maps._free]
    assert free and all(torch.equal(position, ~torch.arange(NODES).int()) for position in free)


@pytest.mark.parametrize("model", MODELS)
def test_written_rows_are_the_inputs_of_layers(model: str) -> None:
    """With all neighbours those of an exact pass with the weights before the update."""
    run, exact = noise(vrgcn(model, ALL, batch_nodes=5, dropout=0.0)), vrgcn(model, ALL, dropout=0.0)
    batch = sampled(run)
    run.trainer.update([Batch(NODES, nodes=batch.rows[:5])])
    assert not torch.equal(next(run.model.parameters()), next(exact.model.parameters()))
    for table, expected, rows in zip(run.history.tables, exact.history.tables, rows_written(run, batch), strict=True):
        torch.testing.assert_close(table.rows[rows], expected.rows[rows], rtol=1e-4, atol=1e-5)


def test_ages_are_counted_from_the_last_step_that_computed_a_row() -> None:
    run = vrgcn("gcn", batch_nodes=8)
    expected = [torch.zeros(NODES, dtype=torch.int32) for _ in run.history.tables]
    train = run.engine.train

    def watched(batch: Batch, step: int, *args: Any, **options: Any) -> Tensor | None:
        for stamp, rows in zip(expected, rows_written(run, batch), strict=True):
            stamp[rows] = step
        return train(batch, step, *args, **options)

    run.engine.train = watched  # type: ignore[method-assign]
    run.losses(9)
    for table, stamp in zip(run.history.tables, expected, strict=True):
        assert torch.equal(table.stamp, stamp) and len(set(stamp.tolist())) > 5
    assert float(run.trainer._age()) == pytest.approx(float((9 - expected[0]).double().mean()))


@pytest.mark.parametrize("model", MODELS)
def test_evaluation_is_exact_and_writes_nothing(model: str) -> None:
    """It is that of a full batch with the same weights, bitwise."""
    run, full = vrgcn(model), Run(model, method="full")
    run.losses(3)
    full.model.load_state_dict(run.model.state_dict())
    before = copies(run)
    found, expected = run.trainer.evaluate(), full.trainer.evaluate()
    assert found == expected and torch.equal(run.engine.exact(), full.engine.exact())
    run.trainer.evaluate(error=True)
    for table, (rows, stamp) in zip(run.history.tables, before, strict=True):
        assert torch.equal(table.rows, rows) and torch.equal(table.stamp, stamp)


# REST.


def test_without_refreshes_it_is_the_base() -> None:
    base, run, refreshed = (vrgcn("gcnii", method=method) for method in ("vrgcn", "vrgcn+rest", "vrgcn+rest"))
    run.trainer.refresh.frequency.count = 0  # type: ignore[attr-defined]
    losses = base.losses(6)
    assert run.losses(6) == losses and same_results(base, run)
    assert refreshed.losses(6) != losses


@pytest.mark.parametrize("method", REFRESHES)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_after_refreshes_is_the_bases_on_these_tables(model: str, method: str) -> None:
    run, base = vrgcn(model, method=method, frequency=2), vrgcn(model)
    train = run.engine.train

    def handed_over(*args: Any, **options: Any) -> Tensor | None:
        tables = list(zip(base.history.tables, copies(run), strict=True))
        assert not torch.equal(tables[-1][0].rows, tables[-1][1][0])
        for table, (rows, stamp) in tables:
            table.rows.copy_(rows)
            table.stamp.copy_(stamp)
        return train(*args, **options)

    run.engine.train = handed_over  # type: ignore[method-assign]
    for _ in range(2):
        run.step()
        base.step()
        assert same_results(run, base)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("model", ["gcn-norm", "appnp", "gcnii-norm"])
def test_a_refresh_changes_nothing_but_rows_of_its_batch(model: str, mode: str) -> None:
    run = vrgcn(model, method="vrgcn+rest", refresh_mode=mode)
    run.step()
    batch, before = run.batch(0), copies(run)
    field = run.trainer.method.prepare(run.engine, batch, 50, draw=4, refreshing=True)
    of_tables = {id(x) for table in run.history.tables for x in (table.rows, table.stamp)}
    kept = [t for t in run.results() if id(t) not in of_tables]
    values = [t.clone() for t in kept]
    run.engine.refresh(batch, 50, draw=4, training=mode == "train")
    assert all(map(torch.equal, kept, values)) and len(kept) > 10
    written = rows_written(run, field)
    assert torch.equal(written[-1], batch.rows)  # the last layer, which is not computed, reads no neighbours
    for table, rows, (old, stamp) in zip(run.history.tables, written, before, strict=True):
        assert torch.equal(table.rows[others(rows)], old[others(rows)]) and len(rows) < NODES
        assert torch.equal(table.stamp == 50, ~others(rows)) and not torch.equal(table.rows, old)
        assert torch.equal(table.stamp[others(rows)], stamp[others(rows)])
    run.model.zero_grad()
    run.engine.refresh(batch, 51)
    assert all(p.grad is None for p in run.model.parameters())


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("model", [*MODELS, "gcn-linear, exact"])
def test_rest_is_makes_all_rows_fresh_that_are_read_from_tables_alone(model: str, frequency: int, far: bool) -> None:
    """Of each layer: the neighbours of its rows that the layer before does not compute."""
    model, _, exact = model.partition(", ")
    given = dict(first="exact") if exact else {}
    run = vrgcn(model, method="vrgcn+rest-is", batch_nodes=3, frequency=frequency, far=far, **given)
    method, train, seen = run.trainer.method, run.engine.train, list[int]()

    def watched(batch: Batch, step: int, *args: Any, **options: Any) -> Tensor | None:
        run.history.streams.finish()
        every = set(method.reads(run.engine, batch).tolist())
        for layer in range(run.model.num_layers):
            table, block = run.engine.inputs.table(layer), batch.block(layer)
            if table is None:
                continue
            neighbours = set[int]()
            for row in block.rows.rows.tolist():
                neighbours |= set(run.data.adj.col[run.data.adj.rowptr[row] : run.data.adj.rowptr[row + 1]].tolist())
            read = neighbours - set(block.source.rows.tolist())
            assert read <= every and (table.stamp[list(read)] == step).all()
            seen.append(len(read))
        assert int((run.history.tables[-1].stamp < step).sum()) > 0
        return train(batch, step, *args, **options)

    run.engine.train = watched  # type: ignore[method-assign]
    run.losses(2)
    assert len(seen) == 2 * len(run.history.tables) and min(seen) > 0


def test_rest_refreshes_groups_of_all_nodes() -> None:
    """In two epochs of refreshes each node's row is written; training writes the fields of training nodes alone."""
    run = vrgcn("gcn", method="vrgcn+rest", batch_nodes=6, batch_size=3, num_parts=6, frequency=2)
    refreshed: list[Batch] = []
    refresh = run.engine.refresh
    run.engine.refresh = lambda batch, *a, **o: (refreshed.append(batch), refresh(batch, *a, **o))[1]  # type: ignore[assignment]
    run.losses(10)
    assert [len(batch) for batch in refreshed] == [6] * 20
    assert sorted(node for batch in refreshed for node in batch.rows.tolist()) == list(range(NODES))
    assert int(run.history.stamp(1).min()) > 0
    plain = vrgcn("gcn", batch_nodes=6)
    plain.losses(10)
    assert int(plain.history.stamp(1).min()) == 0


# Places and number formats of tables.


@pytest.mark.parametrize("model", [*MODELS, "gcn-norm"])
@pytest.mark.parametrize("method", ["vrgcn", *REFRESHES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_same_losses_wherever_the_tables_are(model: str, method: str, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(method=method, dtype=dtype, directed=model == "gcnii", frequency=2)
    expected = vrgcn(model, **options)
    losses = expected.losses(4)
    assert len(set(losses)) == 4
    for where in (dict(far=True), disk(tmp_path / "tables")):
        other = vrgcn(model, **options, **where)
        assert other.losses(4) == losses and same_results(expected, other)
        other.trainer.close()


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", ["appnp", "gcn-linear", "gcnii"])
def test_exact_input(model: str, far: bool) -> None:
    """One table less, near and far alike. The first aggregate reads all neighbours, whose features are encoded anew."""
    run = vrgcn(model, first="exact", far=far)
    losses = run.losses(4)
    assert len(run.history.tables) == len(run.model.history_dims) - 1 and losses != vrgcn(model).losses(4)
    assert losses == vrgcn(model, first="exact").losses(4)
