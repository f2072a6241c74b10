"""Staleness of histories: zero with fresh tables, and equal to values computed by hand with stale ones."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.methods.loss import mean_loss
from rest_triton.sampling.batch import Batch
from rest_triton.training.staleness import GradientError, compared, exact_engine, gradient_errors, table_staleness
from rest_triton.training.trainer import Trainer

from ..training.data import NODES, gradients, scores, settings, small

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn", batch_norm=True, dropout=0.5),
    "gcn-linear": dict(model="gcn", linear=True),
    "appnp": dict(model="appnp"),
    "gcnii": dict(model="gcnii"),
}


def begun(epochs: int = 0, **changes: Any) -> Trainer:
    trainer = Trainer(settings(**changes), small())
    trainer.begin()
    for number in range(1, epochs + 1):
        trainer.epoch(number)
    return trainer


def gradients_of(trainer: Trainer) -> list[tuple[Batch, GradientError]]:
    loss = partial(mean_loss, trainer.loaded.graph, device=trainer.device)
    return list(gradient_errors(trainer.engine, trainer.method.cover(), loss, trainer.step))


@pytest.mark.parametrize("model", MODELS)
def test_fresh_tables_are_not_stale(model: str) -> None:
    trainer = begun(**MODELS[model])
    found = trainer.evaluate(error=True)
    assert len(found["staleness"]) == len(trainer.history.tables) > 0
    assert max(found["staleness"]) < 1e-5 and max(found["staleness_relative"]) < 1e-5 and found["error"] < 1e-5
    assert [found[f"stale_{part}"] for part in ("train", "val", "test")] == [found[p] for p in ("train", "val", "test")]


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", MODELS)
def test_staleness_of_each_table_is_that_of_its_rows(model: str, given: str) -> None:
    """Staleness equals the distance to activations of a forward over the whole graph."""
    if model == "gcn" and given == "exact":
        return
    trainer = begun(epochs=2, **MODELS[model], first=given)
    full = begun(**MODELS[model], method="full")
    full.model.load_state_dict(trainer.model.state_dict())
    exact = Trainer(settings(**MODELS[model], batch_size=8, first=given), small())
    exact.model.load_state_dict(trainer.model.state_dict())
    exact.engine.refresh(exact.method.batches(1)[0], 1, training=False)  # one batch of all nodes writes all rows
    found = trainer.evaluate(error=True)
    for table, (ours, truth) in enumerate(zip(trainer.history.tables, exact.history.tables, strict=True)):
        by_hand = (ours.rows - truth.rows).norm(dim=1).mean()
        assert found["staleness"][table] == pytest.approx(float(by_hand), rel=1e-3)
        assert found["staleness_relative"][table] == pytest.approx(float(by_hand / truth.rows.norm(dim=1).mean()), rel=1e-3)
    assert min(found["staleness"][1:]) > 1e-3  # the first may hold what is computed of features alone
    assert found["train"] == full.evaluate()["train"]


def test_one_stale_table_is_found_alone() -> None:
    trainer = begun(num_layers=4)
    rows = trainer.history.tables[1].rows
    rows[:10] += 2.0
    found = trainer.evaluate(error=True)["staleness"]
    assert found[0] < 1e-5 and found[2] < 1e-5
    assert found[1] == pytest.approx(2.0 * rows.shape[1] ** 0.5 * 10 / NODES, rel=1e-4)


def test_stale_scores_are_of_what_histories_predict() -> None:
    trainer = begun(epochs=3, **MODELS["gcn"], max_steps=1, lr=0.1)  # few clusters are written: the rest are old
    found = trainer.evaluate(error=True)
    logits = torch.empty(NODES, trainer.engine.exact().shape[1])
    for batch in trainer.method.clusters.epoch(0):
        logits[batch.rows] = trainer.engine.predict(batch, trainer.step)
    assert {f"stale_{part}": value for part, value in scores(logits, trainer.loaded.graph).items()}.items() <= found.items()
    assert found["error"] == pytest.approx(float((logits - trainer.engine.exact()).norm(dim=1).mean()), rel=1e-4)
    assert found["stale_train"] != found["train"]


def test_measuring_leaves_no_trace(tmp_path: Path) -> None:
    """A measurement changes neither tables, ages and statistics nor files."""
    plain = begun(epochs=2, **MODELS["gcn"])
    looked = Trainer(settings(**MODELS["gcn"], history="disk"), small(), folder=tmp_path / "history")
    looked.begin()
    for number in (1, 2):
        looked.evaluate(error=True)
        looked.epoch(number)
    looked.evaluate(error=True)
    for ours, theirs in zip(looked.history.tables, plain.history.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows) and torch.equal(ours.stamp, theirs.stamp)
    for ours, theirs in zip(looked.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    looked.close()
    assert not list((tmp_path / "history").glob("exact-*"))


def test_evaluation_that_writes_does_so_after_comparing() -> None:
    trainer = begun(epochs=2, **MODELS["gcn"], eval_updates_history=True)
    assert min(trainer.evaluate(error=True)["staleness"]) > 1e-3
    assert max(trainer.evaluate(error=True)["staleness"]) < 1e-5


@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_fresh_tables(model: str) -> None:
    """No row is stale; gradients still do not flow through the halo. With one batch of all nodes they are exact."""
    for _, found in gradients_of(begun(**MODELS[model])):
        assert found.stale < 1e-4 * found.norm and found.output < 1e-3 and max(found.aggregate + found.farthest) < 1e-4
        assert found.error == pytest.approx(found.cut, rel=1e-3) and found.cut > 1e-2 * found.norm
    whole = begun(**MODELS[model], batch_size=8)
    whole.epoch(1)
    ((_, found),) = gradients_of(whole)
    assert found.error < 1e-4 * found.norm and found.relative < 1e-4 and found.mean == [0.0] * len(whole.history.tables)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_stale_tables(model: str) -> None:
    """Errors equal those of gradients by hand: of the batch, of the batch with fresh tables, and of the whole graph."""
    trainer = begun(epochs=2, **MODELS[model])
    filled, full = begun(**MODELS[model]), begun(**MODELS[model], method="full")
    for other in (filled, full):
        other.model.load_state_dict(trainer.model.state_dict())
    filled.begin()
    before = [table.rows.clone() for table in trainer.history.tables]
    whole, added = full.method.batches(1)[0], gradients(trainer.model)
    for batch, found in gradients_of(trainer):
        loss = mean_loss(trainer.loaded.graph, batch, trainer.device)
        stale, fresh = (one.engine.gradients(batch, 1, loss)[0] for one in (trainer, filled))
        exact, logits = full.engine.gradients(whole, 1, lambda h, batch=batch, loss=loss: loss(h[batch.rows]))
        assert found.norm == pytest.approx(float(exact.norm()), rel=1e-3)
        assert found.error == pytest.approx(float((stale - exact).norm()), rel=1e-2)
        assert found.stale == pytest.approx(float((stale - fresh).norm()), rel=1e-2)
        assert found.stale > 0 and found.error <= found.stale + found.cut
        distance = trainer.engine.predict(batch, 1) - logits[batch.rows]
        assert found.output == pytest.approx(float(distance.norm()), rel=1e-2)
        halo = batch.halo(trainer.loaded.adj)
        away = [
            (a.rows - b.rows)[halo].norm(dim=1) for a, b in zip(trainer.history.tables, filled.history.tables, strict=True)
        ]
        assert found.farthest == pytest.approx([float(d.max()) for d in away], rel=1e-2)
        assert found.mean == pytest.approx([float(d.mean()) for d in away], rel=1e-2)
        assert found.aggregate == pytest.approx(aggregates(trainer, filled, batch), rel=1e-2)
    assert all(torch.equal(a, table.rows) for a, table in zip(before, trainer.history.tables, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(added, gradients(trainer.model), strict=True))


def aggregates(trainer: Trainer, filled: Trainer, batch: Batch) -> list[float]:
    """Computed with the dense adjacency, without the columns of the batch's nodes."""
    dense = dense_adjacency(trainer)[batch.rows]
    dense[:, batch.rows] = 0
    pairs = zip(trainer.history.tables, filled.history.tables, strict=True)
    return [float((dense @ (a.rows - b.rows)).norm()) for a, b in pairs]


def dense_adjacency(trainer: Trainer) -> Tensor:
    adj = trainer.loaded.adj
    row = torch.repeat_interleave(torch.arange(NODES), adj.rowptr.diff())
    dense = torch.zeros(NODES, NODES)
    dense[row, adj.col.long()] = adj.row_scale[row] * adj.col_scale[adj.col.long()]
    return dense


def test_tables_on_disk_are_refused_for_gradients(tmp_path: Path) -> None:
    trainer = Trainer(settings(history="disk"), small(), folder=tmp_path / "history")
    trainer.begin()
    with pytest.raises(ValueError, match=r"history is disk, .* give --history device"):
        gradients_of(trainer)
    trainer.close()


def test_exact_tables_are_those_of_a_fill() -> None:
    trainer = begun(epochs=1, **MODELS["gcnii"])
    with exact_engine(trainer.engine) as (fresh, exact):
        rows, _ = table_staleness(fresh.history, fresh.history)
        assert rows == [0.0] * len(fresh.history.tables)
        whole = trainer.engine.exact()
        for batch, again, truth in compared(fresh, exact, trainer.method.cover(), 1):
            torch.testing.assert_close(again, whole[batch.rows], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(truth, whole[batch.rows], rtol=1e-5, atol=1e-6)
