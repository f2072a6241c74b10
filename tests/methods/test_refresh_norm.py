"""Refreshes with dropout as in training and BatchNorm by running statistics."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.utils.errors import UserError

from ..history.runs import Run, same_results
from .pygas import PyGAS

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn-norm"),
    "gcn-linear": dict(model="gcn-linear", batch_norm=True),
    "appnp": dict(model="appnp", batch_norm=True),
    "appnp, exact": dict(model="appnp", batch_norm=True, first="exact"),
}


def written(run: Run, **options: Any) -> list[Tensor]:
    """The rows that a refresh writes."""
    batch = run.batch(1, 4)
    run.engine.refresh(batch, 9, draw=2, **options)
    return [table.rows[batch.rows].clone() for table in run.history.tables]


@pytest.mark.parametrize("name", MODELS)
def test_what_a_refresh_writes(name: str) -> None:
    run = Run(**MODELS[name])
    run.losses(3)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    with torch.no_grad():
        expected = PyGAS(run, run.batch(1, 4), 9, draw=2, drops=False, running=True)
        expected()
    rows = [table.rows.clone() for table in run.history.tables]
    found = written(run, running=True)
    for ours, theirs in zip(found, expected.recorded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in run.model.state_dict().items())
    for options in ({}, dict(training=False)):
        for table, old in zip(run.history.tables, rows, strict=True):
            table.rows.copy_(old)
        assert not torch.allclose(written(run, **options)[-1], found[-1])


@pytest.mark.parametrize("method", ["gas+rest", "gas+rest-is", "lmc+rest", "mvs+rest-is"])
def test_the_setting_reaches_refreshes(method: str) -> None:
    """auto is batch where refreshes have dropout, and running where they have none."""

    def run(mode: str, norm: str, model: str = "gcn-norm") -> Run:
        options = dict(gradient_frequency=1) if method == "lmc+rest" else {}
        made = Run(model, method=method, refresh_mode=mode, refresh_norm=norm, **options)
        made.losses(4)
        return made

    auto, running = run("train", "auto"), run("train", "running")
    assert same_results(auto, run("train", "batch")) and not same_results(auto, running)
    off = run("eval", "auto")
    assert same_results(off, run("eval", "running")) and not same_results(off, running)
    assert same_results(run("train", "auto", "gcn"), run("train", "running", "gcn"))  # without a BatchNorm


def test_same_results_wherever_the_tables_are() -> None:
    for method in ("gas+rest", "gas+rest-is"):
        near, far = (Run("gcn-norm", method=method, refresh_norm="running", frequency=2, far=far) for far in (False, True))
        assert near.losses(4) == far.losses(4) and same_results(near, far)


def test_batch_statistics_in_eval_mode_are_refused() -> None:
    said = "refresh_norm is batch, but refresh_mode eval normalises by running statistics; give --refresh-norm running, or"
    options: dict[str, Any] = dict(dataset="small", refresh_mode="eval", refresh_norm="batch")
    with pytest.raises(UserError, match=said):
        Config(method="gas+rest", **options)
    assert Config(method="gas", **options).idle(["refresh_norm"]) != []  # without refreshes there is nothing to refuse
