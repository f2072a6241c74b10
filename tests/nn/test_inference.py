"""Exact inference: the same result in any pieces and places, scratch tables that are few, and nothing left behind."""

from pathlib import Path

import pytest
import torch

from rest_triton.nn import inference

from ..history.runs import CLASSES, MODELS, NODES, Run, disk


@pytest.mark.parametrize(("far", "given"), [(False, "cached"), (True, "cached"), (True, "exact")])
@pytest.mark.parametrize("model", MODELS)
def test_any_pieces_give_the_same(model: str, far: bool, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if model in ("gat", "pna", "gcn-norm"):
        given = "cached"  # an exact first layer is refused
    run = Run(model, far=far, first=given)
    run.losses(3)
    whole = run.engine.exact()
    stamps = [table.stamp.clone() for table in run.history.tables]
    for size in (1, 37):
        monkeypatch.setitem(inference.CHUNK_ROWS, "cpu", size)
        torch.testing.assert_close(run.engine.exact(), whole, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(a, b.stamp) for a, b in zip(stamps, run.history.tables, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_as_a_batch_of_all_nodes(model: str) -> None:
    """One forward of the model in eval mode over the whole graph, without tables."""
    run = Run(model)
    run.losses(3)
    torch.testing.assert_close(run.engine.exact(), run.engine.predict(run.batch(), 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_filled_tables_are_what_a_forward_records(model: str) -> None:
    run = Run(model, dropout=0.0)
    run.engine.fill(4)
    tables = [table.rows.clone() for table in run.history.tables]
    assert all(run.history.ages(t, 4).percentiles[3] == 0 for t in range(len(tables)))
    batch = run.batch(0, 3, 5)
    run.engine.refresh(batch, 5, training=False)
    for before, after in zip(tables, run.history.tables, strict=True):
        torch.testing.assert_close(after.rows, before, rtol=1e-4, atol=1e-5)
        assert bool((after.stamp[batch.rows] == 5).all()) and int((after.stamp == 5).sum()) == len(batch)


def test_two_scratch_tables_take_turns() -> None:
    deep = Run("gcn", num_layers=6)
    with deep.engine.inference() as made:
        assert made.places[0] is None and [place.number for place in made.places[1:]] == [0, 1, 0, 1, 0]
        scratch = made.places[1].history
        assert scratch is not deep.history and scratch.widths == (16, 16) and scratch.dtype == torch.float32
    encoding = Run("gcnii")
    with encoding.engine.inference() as made:
        numbers = [place.number for place in made.places]
        assert numbers[0] not in numbers[1:] and len(set(numbers)) == 3  # all layers read the first


def test_embeddings_are_what_the_last_layer_reads() -> None:
    run = Run("gcn")
    with run.engine.inference() as made:
        logits = made.collect()
        batches = [run.batch(0, 3), run.batch()]
        hidden = [made.embeddings(batch) for batch in batches]
        again = [made.result(batch) for batch in batches]
    run.engine.fill(1)
    for batch, rows, result in zip(batches, hidden, again, strict=True):
        torch.testing.assert_close(rows, run.history.tables[-1].rows[batch.rows])
        torch.testing.assert_close(result, logits[batch.rows], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits, run.engine.exact())
    one = Run("gcn", num_layers=1)
    with one.engine.inference() as made:
        assert made.collect().shape == (NODES, CLASSES) and made.embeddings(one.batch()) is None


def test_scratch_files_are_removed(tmp_path: Path) -> None:
    run = Run("gcnii", **disk(tmp_path / "tables"))
    before = sorted(path.name for path in (tmp_path / "tables").iterdir())
    torch.testing.assert_close(run.engine.exact(), Run("gcnii").engine.exact())
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == before
    run.trainer.close()
