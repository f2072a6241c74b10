"""Exact inference: the same result in any pieces and places, scratch tables that are few, and nothing left behind."""

from pathlib import Path

import pytest
import torch

from rest_triton.nn import GCN, inference
from rest_triton.nn.context import View

from ..history.runs import CLASSES, FEATURES, MODELS, NODES, Run, disk


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_any_pieces_give_the_same(model: str, far: bool, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if exact and model in ("gcn", "gcn-norm"):
        exact = False  # they read features first
    run = Run(model, far=far, exact=exact)
    run.losses(3)
    whole = run.engine.exact()
    stamps = [table.stamp.clone() for table in run.store.tables]
    for size in (1, 37, NODES):
        monkeypatch.setitem(inference.PIECE, "cpu", size)
        torch.testing.assert_close(run.engine.exact(), whole, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(a, b.stamp) for a, b in zip(stamps, run.store.tables, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_as_a_batch_of_everyone(model: str) -> None:
    """One forward of the model in eval mode over the whole graph, without tables."""
    run = Run(model)
    run.losses(3)
    everyone = run.batches.batch(range(6))
    with run.engine._entered(everyone, None) as position, torch.no_grad():
        view = View(
            run.engine.scene, everyone, position, run.engine.maps["compute"], step=0, training=False, recording=False
        )
        expected = run.model(view)
    torch.testing.assert_close(run.engine.exact(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.engine.predict(everyone, 3), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_filled_tables_are_what_a_forward_records(model: str) -> None:
    run = Run(model)
    run.model.dropout = 0.0
    run.engine.fill(4)
    tables = [table.rows.clone() for table in run.store.tables]
    assert all(run.store.ages(t, 4).percentiles[3] == 0 for t in range(len(tables)))
    with torch.no_grad():
        run.engine.refresh(run.batches.batch([0, 3, 5]), 5, training=False)
    for before, after in zip(tables, run.store.tables, strict=True):
        torch.testing.assert_close(after.rows, before, rtol=1e-4, atol=1e-5)


def test_two_scratch_tables_take_turns() -> None:
    deep = Run(GCN(FEATURES, 16, CLASSES, 6))
    with deep.engine.inference() as passing:
        assert sorted({number for _, number in passing.places}) == [0, 1] and len(passing.places) == 5
        scratch = passing.places[0][0]
        assert scratch is not deep.store and scratch.widths == (16, 16) and scratch.dtype == torch.float32
    starting = Run("gcnii")
    with starting.engine.inference() as passing:
        numbers = [number for _, number in passing.places]
        assert numbers[0] not in numbers[1:] and len(set(numbers)) == 3  # the first is read by all layers


def test_embeddings_are_what_the_last_layer_reads() -> None:
    run = Run("gcn")
    with run.engine.inference() as passing:
        logits = passing.run()
        hidden = passing.embeddings()
    assert hidden is not None and hidden.shape == (NODES, 16)
    run.engine.fill(1)
    torch.testing.assert_close(hidden, run.store.tables[-1].rows)
    torch.testing.assert_close(logits, run.engine.exact())
    one = Run(GCN(FEATURES, 16, CLASSES, 1))
    with one.engine.inference() as passing:
        assert passing.run().shape == (NODES, CLASSES) and passing.embeddings() is None


def test_scratch_files_are_removed(tmp_path: Path) -> None:
    run = Run("gcnii", **disk(tmp_path / "tables"))
    before = sorted(path.name for path in (tmp_path / "tables").iterdir())
    near = Run("gcnii")
    torch.testing.assert_close(run.engine.exact(), near.engine.exact())
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == before
    run.store.close()


def test_a_model_that_returns_nothing_is_told_so() -> None:
    class Silent(GCN):
        def forward(self, view: View) -> None:
            super().forward(view)

    run = Run("gcn")
    run.engine.model.__class__ = Silent
    with pytest.raises(ValueError, match="Silent returned nothing for its last layer, 2"):
        run.engine.exact()
