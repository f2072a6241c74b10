"""VR-GCN in runs: the rows that steps and refreshes write, tables anywhere, resumed runs, memory, refusals."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.methods.engine import Engine
from rest_triton.predict import predict
from rest_triton.sampling.batch import Batch
from rest_triton.training import memory
from rest_triton.training import run as session
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import NODES, Run, disk, same_results
from ..training.data import settings, small
from ..training.resuming import Data, newest, same, state_in
from ..training.test_killed import Child, go_on
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
    given = dict(input="exact") if exact else {}
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
    run = vrgcn(model, input="exact", far=far)
    losses = run.losses(4)
    assert len(run.history.tables) == len(run.model.history_dims) - 1 and losses != vrgcn(model).losses(4)
    assert losses == vrgcn(model, input="exact").losses(4)


# Resumed runs.


@pytest.mark.parametrize("method", ["vrgcn", "vrgcn+rest"])
@pytest.mark.parametrize(("model", "place"), [("gcn", "device"), ("appnp", "disk"), ("gcnii", "device")])
def test_a_run_that_was_killed_is_the_same_run(
    method: str, model: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "write_report", lambda path: None)
    (tmp_path / "data").mkdir()
    data = Data.make(tmp_path / "data")
    config = data.config(model=model, history=place, epochs=4, method=method, batch_nodes=15, fanout="2")
    data.run(config, tmp_path / "whole")

    def work(say: Callable[[bytes], Any]) -> None:
        update = Trainer.update

        def dying(trainer: Trainer, *batches: Any) -> list[Tensor]:
            if trainer.step == 7:  # in the third epoch of three steps
                os.kill(os.getpid(), signal.SIGKILL)
            return update(trainer, *batches)

        Trainer.update = dying  # type: ignore[method-assign]
        go_on(config, data, tmp_path / "killed")

    child = Child(work)
    assert child.wait() == b"" and os.WIFSIGNALED(child.end(kill=False))
    assert newest(tmp_path / "killed").stem == "epoch-000002"
    go_on(config, data, tmp_path / "killed")
    whole, killed = state_in(tmp_path / "whole"), state_in(tmp_path / "killed")
    assert same(whole, killed) and len(whole["tables"]) > 0
    assert set(predict(newest(tmp_path / "killed"), config)[1]) == {"train", "val", "test"}


# Memory.


@pytest.mark.parametrize("model", [*MODELS, "gin"])
def test_the_plan_counts_tables_and_rows(model: str) -> None:
    """Rows are those of the mean layer, 30 % too many at most: the plan takes neighbours as drawn from all nodes."""
    config = settings(model=model, method="vrgcn", dtype="bfloat16", batch_nodes=20, fanout="3")
    loaded = small()
    edges = loaded.adj.num_edges - loaded.adj.num_nodes
    sizes = Sizes(nodes=loaded.graph.num_nodes, edges=edges, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    trainer = Trainer(config, loaded)
    tables = trainer.history.all_tables
    assert planned["history tables"] == sum(table.rows.nbytes for table in tables)
    assert planned["stamps"] == sum(table.stamp.nbytes for table in tables)
    found = [trainer.method.prepare(trainer.engine, trainer.method.batches(1)[0], step) for step in range(20)]
    rows = mean(mean(batch.counts) for batch in found if batch.counts is not None)
    assert rows <= memory.Run(sizes, config).rows <= 1.3 * rows
    kept = mean(nbytes(batch) for batch in found)
    assert kept <= planned["samples"] <= 1.5 * kept


def nbytes(batch: Batch) -> int:
    """Of the samples, each array once, without the graph's."""
    found: dict[int, int] = {}
    for sample in batch.samples or ():
        if sample is not None and sample.adj.reverse is not None:
            arrays = [sample.by_node.rowptr, sample.by_node.col, sample.by_node.row_scale]
            for adj in (sample.adj, sample.adj.reverse):
                arrays += [adj.rowptr, adj.col, adj.row_scale, adj.col_scale]
            found |= {array.data_ptr(): array.nbytes for array in arrays if array is not None}
    return sum(found.values())


@pytest.mark.parametrize("model", ["gcn", "gcnii"])
def test_the_plan_counts_rows_of_far_tables(model: str, tmp_path: Path) -> None:
    """A buffer holds the rows of a layer, and all their neighbours."""
    config = settings(model=model, method="vrgcn", history="disk", batch_nodes=20, fanout="3")
    edges = small().adj.num_edges - NODES
    sizes = Sizes(nodes=small().graph.num_nodes, edges=edges, features=12, classes=5, name="small", prepared=True)
    run = memory.Run(sizes, config)
    trainer = Trainer(config, small(), folder=tmp_path / "history")
    trainer.begin()
    trainer.epoch(1)
    largest = max(buffer.rows.shape[0] for buffer in trainer.history._buffers.values())
    trainer.close()
    assert run.pulled <= largest <= 5 * small().graph.num_nodes // 4 and run.pulled > run.halo > 0


# What is refused.


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(model=model), f"method is vrgcn, but model {model} does not sum over neighbours; give --method gas"
    yield dict(edge_dropout=0.2), "edge_dropout is 0.2, but method vrgcn samples neighbours instead; give --edge-dropout 0"
    for fanout in ("10,5", "0", "3,-1,2", "1,2,3,4", "x", ""):
        yield dict(fanout=fanout), f"fanout is '{fanout}'; .*one for each of the 3 layers, such as 10,10,10"
    yield dict(method="vrgcn+rest", gradient_frequency=1), "method vrgcn.rest has no tables of gradients"
    drift = dict(method="vrgcn+rest", frequency="auto", target_drift=0.1)
    yield drift, "target_drift is 0.1, but rows of a batch of method vrgcn.rest differ in age"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(dataset="cora", num_layers=3, **(dict(method="vrgcn") | given))


def test_a_fan_out_has_no_effect_without_samples() -> None:
    said = Config(dataset="small").idle(["fanout", "batch_nodes"])
    assert {line.split(" ")[0] for line in said} == {"--fanout", "--batch-nodes"}
    assert all("vrgcn" in line and line.endswith("method is gas") for line in said)
    assert Config(dataset="small", method="vrgcn").idle(["fanout", "batch_nodes"]) == []
    assert Config(dataset="small", method="vrgcn", num_layers=3, fanout="4, 3,2").fanouts == (4, 3, 2)


def test_without_a_training_mask_it_is_refused() -> None:
    run = vrgcn("gcn")
    with pytest.raises(ValueError, match="vrgcn has batches of training nodes: make it with a graph that has a training"):
        type(run.trainer.method)(run.config, run.data.ptr, "cpu")
    assert isinstance(run.engine, Engine)
