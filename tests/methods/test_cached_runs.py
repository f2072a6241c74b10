"""Runs of refresh: tables anywhere, resumed runs, memory, evaluation, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import Run, disk, same_results
from ..training.data import settings, small
from .caches import CACHE, MODELS, stamps


@pytest.mark.parametrize(
    ("model", "method", "dtype"),
    [("gcn", "refresh", "float32"), ("appnp", "refresh+rest", "bfloat16"), ("gcnii", "refresh+rest-is", "float16"),
     ("gcnii", "refresh+rest", "float32"), ("gcn-norm", "refresh+rest-is", "float32")],
)  # fmt: skip
def test_tables_anywhere_give_the_same_bits(model: str, method: str, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = CACHE | dict(method=method, dtype=dtype)
    expected = Run(model, **options)
    losses = expected.losses(12)
    for where in (dict(far=True), disk(tmp_path)):
        other = Run(model, **options, **where)
        assert other.losses(12) == losses and same_results(expected, other)
        other.trainer.close()


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("model", [*MODELS, "gin"])
@pytest.mark.parametrize("rows", [0, 30])
def test_the_plan_counts_the_table(model: str, layers: int, given: str, rows: int) -> None:
    given = given if model in ("appnp", "gcnii") else "cached"
    config = settings(model=model, dtype="bfloat16", first=given, num_layers=layers, cache_rows=rows, **CACHE)
    sizes = Sizes(nodes=small().graph.num_nodes, edges=3000, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    trainer = Trainer(config, small())
    assert len(trainer.history.all_tables) == int(layers > 1 or (model in ("appnp", "gcnii") and given == "cached"))
    assert planned.get("history tables", 0) == sum(table.rows.nbytes for table in trainer.history.tables)
    assert planned.get("stamps", 0) == sum(table.stamp.nbytes for table in trainer.history.tables)
    slots = getattr(trainer.method, "slots", None)
    assert planned.get("slots", 0) == (0 if slots is None else slots.slot_of.nbytes + slots.node_of.nbytes)
    trainer.begin()
    assert trainer.epoch(1)["loss"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_evaluation_is_exact_and_writes_nothing(model: str) -> None:
    run, full = Run(model, **CACHE), Run(model, method="full")
    run.losses(3)
    full.model.load_state_dict(run.model.state_dict())
    rows, before = run.history.tables[0].rows.clone(), stamps(run)
    assert run.trainer.evaluate(error=True) == full.trainer.evaluate()
    assert torch.equal(run.engine.exact(), full.engine.exact())
    assert torch.equal(run.history.tables[0].rows, rows) and torch.equal(stamps(run), before)


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(model=model), f"method is refresh, but model {model} does not sum over neighbours"
    yield dict(edge_dropout=0.1), "edge_dropout is 0.1, but method refresh samples neighbours instead"
    yield dict(history_dropout=True), "rows that method refresh reads from tables have no dropout"
    yield (
        dict(eval_updates_history=True),
        "method refresh writes rows where it trains alone; leave --eval-updates-history out",
    )
    rest = dict(method="refresh+rest")
    yield (
        rest | dict(refresh_batch="full"),
        "refresh_batch is full, but method refresh.rest writes rows where it trains alone",
    )
    yield rest | dict(frequency="auto"), "frequency is auto, but method refresh.rest refreshes the oldest rows of a cache"
    yield dict(gradient_quantile=1.5), "gradient_quantile is 1.5; it must be 0 to 1"
    yield dict(stale_steps=-1), "stale_steps is -1; it must be at least 0"
    yield dict(fanout="3,x,3"), "fanout is '3,x,3'; it must be a whole number of at least 1, or one for each of the 3 layers"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**(dict(dataset="small", method="refresh") | given))


def test_settings_of_other_methods_change_nothing() -> None:
    lines = Config(dataset="small").idle(["gradient_quantile", "stale_steps", "cache_rows"])
    assert len(lines) == 3 and lines[0].endswith("method refresh, and method is gas")
    assert Config(dataset="small", method="refresh+rest").idle(["gradient_quantile", "stale_steps", "fanout"]) == []
