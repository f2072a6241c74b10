"""Gradients at fixed weights: LMC reaches that of the full batch, LMC as published and GAS do not."""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.lab import __main__ as command
from rest_triton.lab.studies import STUDIES
from rest_triton.lab.studies import sweeps as study
from rest_triton.lab.studies.sweeps import METHODS, Sweeps, distance, full_gradients, needed, sweep, sweeps
from rest_triton.lab.study import base_for
from rest_triton.training.checkpoint import read
from rest_triton.training.trainer import Trainer

from ..training.commands import refusal
from ..training.data import gradients, settings, small

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn", batch_norm=True, dropout=0.5),
    "appnp": dict(model="appnp", dropout=0.5),
    "gcnii": dict(model="gcnii", batch_norm=True, num_layers=2, dropout=0.5),
}


def trained(model: str, **changes: Any) -> Trainer:
    """A trainer with empty tables, and weights that GAS has trained for two epochs."""
    gas, trainer = Trainer(settings(**MODELS[model]), small()), Trainer(settings(**MODELS[model], **changes), small())
    gas.begin()
    for number in (1, 2):
        gas.epoch(number)
    trainer.model.load_state_dict(gas.model.state_dict())
    return trainer


@cache
def found(model: str, name: str) -> Sweeps:
    trainer = trained(model, **METHODS[name])
    return sweeps(trainer, needed(trainer.model) + 1)


@pytest.mark.parametrize("model", MODELS)
def test_distances_of_each_method(model: str) -> None:
    for name in ("LMC", "LMC coded, 0"):
        exact = found(model, name)
        assert max(exact.errors[-2:]) < 1e-6 and exact.errors[-3] > 1e-7 and min(exact.errors[:2]) > 0.01
        assert exact.cosines[-1] == pytest.approx(1) and 0 < exact.rounding < 1e-6
    published, gas = found(model, "LMC coded, 1 const"), found(model, "GAS")
    assert 0.01 < published.errors[-1] < gas.errors[-1] and gas.cosines[-1] < published.cosines[-1] < 0.9999
    assert min(gas.errors) > 0.1


@pytest.mark.parametrize("model", MODELS)
def test_the_full_gradient_is_that_of_full_batch(model: str) -> None:
    trainer, full = trained(model), trained(model, method="full")
    batch = full.method.batches(1)[0]
    loss = full.method.loss(full.loaded.graph, batch, full.device)
    expected = full.engine.gradients(batch, 1, loss)
    assert expected is not None
    torch.testing.assert_close(expected[1], full.engine.exact(), rtol=1e-4, atol=1e-5)
    for gradient in full_gradients(trainer):
        assert distance(gradient, expected[0].double()) < 1e-6


@pytest.mark.parametrize("name", ["GAS", "LMC", "LMC coded, 0.9 linear"])
def test_a_sweep_writes_tables_and_moves_nothing_else(name: str) -> None:
    trainer = trained("gcn", **METHODS[name])
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    assert not any(bool(table.rows.any()) for table in trainer.history.all_tables)
    sweep(trainer, 3)
    trainer.history.streams.finish()
    for table in trainer.history.all_tables:
        assert bool((table.stamp == 3).all()) and bool(table.rows.any())
    assert all(torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    assert not any(bool(g.any()) for g in gradients(trainer.model))


FLAGS = ["--dataset", "synthetic:nodes=400,edges=3000,features=8,classes=4", "--num-parts", "8", "--batch-size", "2"]
FLAGS += ["--hidden-channels", "8", "--epochs", "1", "--out", "out"]


def test_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are of each method's own measurement, with the same weights for all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "keep_freed_memory", lambda: True)
    weights: list[dict[str, Any]] = []

    def watched(trainer: Trainer, count: int) -> Sweeps:
        weights.append(trainer.model.state_dict())
        return sweeps(trainer, count)

    monkeypatch.setattr(study, "sweeps", watched)
    command.main(["sweeps", *FLAGS, "--seeds", "1", "--model", "gcn", "--only", "gcn-(gas|lmc)-s"])
    (last,) = Path("out/runs/gcn-gas-s0/checkpoints").glob("epoch-*.pt")
    trained = read(last)[0]["trainer"]["model"]
    assert len(weights) == 2 and all(torch.equal(found[key], trained[key]) for found in weights for key in trained)
    with open("out/results.csv") as file:
        gas, lmc = csv.DictReader(file)
    assert (gas["method"], lmc["method"]) == ("GAS", "LMC") and gas["loss"] == lmc["loss"]
    assert gas["rounding"] == lmc["rounding"] and float(gas["last"]) > 0.1 > 1e-6 > float(lmc["last"])
    kept = json.loads(Path("out/runs/gcn-lmc-s0/sweeps.json").read_text())
    assert [float(lmc[f"sweep_{number}"]) for number in range(1, 8)] == kept["errors"] and lmc["last"] == lmc["sweep_7"]
    assert Path("out/sweeps.png").exists() and "| gcn | LMC | 1 |" in Path("out/README.md").read_text()


def test_what_a_method_refuses_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "model gat does not sum over neighbours" in refusal(command.main, ["sweeps", *FLAGS, "--model", "gat"], capsys)
    said = refusal(command.main, ["sweeps", *FLAGS, "--method", "full"], capsys)
    assert "--method full is none of those" in said and not Path("out").exists()


def test_a_flag_selects_a_method() -> None:
    flags = {"dataset": "x", "method": "lmc", "model": "gcn"}
    base = base_for(STUDIES["sweeps"], flags, quick=False, seeds=None, nodes=100)
    assert list(STUDIES["sweeps"].cases(base)) == [("gcn", "LMC")]
