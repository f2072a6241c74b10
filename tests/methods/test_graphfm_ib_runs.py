"""Runs of GraphFM-IB: tables anywhere, resumed runs, memory, evaluation, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.methods.sampled.graphfm_ib import AGGREGATE
from rest_triton.sampling.batch import Batch
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import Run, disk, same_results
from ..training.data import settings, small
from .test_graphfm_ib import IB, MODELS, averages


@pytest.mark.parametrize(
    ("model", "method", "dtype"),
    [("gcn", "graphfm-ib", "float32"), ("appnp", "graphfm-ib+rest", "bfloat16"), ("gcnii", "graphfm-ib+rest-is", "float16"),
     ("gcnii", "graphfm-ib+rest", "float32"), ("gcn-norm", "graphfm-ib+rest-is", "float32")],
)  # fmt: skip
def test_tables_anywhere_give_the_same_bits(model: str, method: str, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = IB | dict(method=method, dtype=dtype)
    expected = Run(model, **options)
    losses = expected.losses(6)
    for where in (dict(far=True), disk(tmp_path)):
        other = Run(model, **options, **where)
        assert other.losses(6) == losses and same_results(expected, other)
        other.trainer.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_number_formats_round_averages_alone(dtype: str) -> None:
    expected = Run("gcn", **IB).losses(6)
    found = Run("gcn", **IB, dtype=dtype).losses(6)
    assert found[0] == expected[0] and found != expected
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.0)


def test_the_age_is_that_of_averages() -> None:
    trainer = Trainer(settings(**IB), small())
    trainer.begin()
    assert trainer.epoch(1)["age"] > 0
    stamp = trainer.history.kinds[AGGREGATE][0].stamp
    assert float(trainer._age()) == pytest.approx(float((trainer.step - stamp[stamp >= 0]).double().mean()))


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", [*MODELS, "gin"])
def test_the_plan_counts_the_tables(model: str, given: str) -> None:
    given = given if model in ("appnp", "gcnii") else "cached"
    config = settings(model=model, dtype="bfloat16", first=given, **IB)
    sizes = Sizes(nodes=small().graph.num_nodes, edges=3000, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    history = Trainer(config, small()).history
    assert history.tables == [] and len(history.all_tables) > 1
    assert planned["history tables"] == sum(table.rows.nbytes for table in history.all_tables)
    assert planned["stamps"] == sum(table.stamp.nbytes for table in history.all_tables)


@pytest.mark.parametrize("model", MODELS)
def test_evaluation_is_exact_and_writes_nothing(model: str) -> None:
    run, full = Run(model, **IB), Run(model, method="full")
    run.losses(3)
    full.model.load_state_dict(run.model.state_dict())
    before = averages(run)
    found = run.trainer.evaluate(error=True)
    assert found == full.trainer.evaluate() and torch.equal(run.engine.exact(), full.engine.exact())
    assert all(map(torch.equal, before, averages(run)))


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(model=model), f"method is graphfm-ib, but model {model} does not sum over neighbours"
    yield dict(edge_dropout=0.1), "edge_dropout is 0.1, but method graphfm-ib samples neighbours instead"
    yield dict(history_dropout=True), "rows that method graphfm-ib reads from tables have no dropout"
    yield dict(eval_updates_history=True), "method graphfm-ib writes rows where it trains alone; leave --eval-upd"
    rest = dict(method="graphfm-ib+rest", refresh_batch="full")
    yield rest, "refresh_batch is full, but method graphfm-ib.rest writes rows where it trains alone; give"
    yield dict(ib_momentum=1.5), "ib_momentum is 1.5; it must be 0 to 1"
    yield dict(fanout="0"), "fanout is '0'; it must be a whole number of at least 1"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**(dict(dataset="small", method="graphfm-ib") | given))


def test_settings_of_other_methods_change_nothing() -> None:
    (line,) = Config(dataset="small").idle(["ib_momentum"])
    assert line.endswith("method graphfm-ib, and method is gas")
    assert Config(dataset="small", method="graphfm-ib+rest").idle(["ib_momentum", "fanout", "batch_nodes"]) == []


def test_batches_are_of_training_nodes() -> None:
    run = Run("gcn", **IB)
    batches: list[Batch] = list(run.trainer.method.batches(1))
    assert run.graph.train_mask is not None and all(len(batch) <= 20 for batch in batches)
    training = torch.nonzero(run.graph.train_mask).squeeze(1)
    assert torch.equal(torch.cat([batch.rows for batch in batches]).sort().values, training)
