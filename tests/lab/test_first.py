"""The study of exact first layers: its cases, and a run of two of them."""

import csv
from pathlib import Path
from typing import Any

import pytest

from rest_triton.lab import __main__ as command
from rest_triton.lab import runner
from rest_triton.lab.studies.first import FIRST
from rest_triton.lab.study import FULL, GAS, REST_IS, Results, base_for, planned

from .test_lab import data, flags

__all__ = ["data", "flags"]


def test_cases_and_what_they_are_compared_with() -> None:
    base = base_for(FIRST, {"dataset": "x.npz"}, quick=True, seeds=1, nodes=10**5)
    runs = planned(FIRST, base, Path())
    found = [(run.config.num_layers, run.method, run.config.first) for run in runs]
    assert [of[1:] for of in found if of[0] == 2] == [
        (FULL, "cached"), (GAS, "cached"), (GAS, "exact"), ("REST F=1", "cached"), (REST_IS, "cached"),
    ]  # fmt: skip
    assert [method for layers, method, first in found if (layers, first) == (3, "exact")] == [GAS, "REST F=1", REST_IS]
    results = Results(FIRST, runs, len(runs))
    against = {tuple(g[0].labels.values()): [tuple(r.labels.values()) for r in results.reference(g)] for g in results.groups}
    assert against[3, REST_IS, "exact"] == [(3, REST_IS, "cached")] and against[3, REST_IS, "cached"] == [(3, GAS, "cached")]
    assert against[2, GAS, "exact"] == [(2, GAS, "cached")] and against[2, GAS, "cached"] == [(2, FULL, "cached")]


def test_two_layers_have_exact_gradients(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout and BatchNorm. A bias is left, as batches differ in the number of their training nodes."""
    monkeypatch.setattr(runner, "_train_apart", lambda run, command, log: runner._train(run.config, command))
    plain: list[Any] = ["--dropout", "0", "--no-batch-norm", "--epochs", "2", "--num-layers", "2", "--only", "2-gas-"]
    command.main(["first", *flags, "--quick", *plain])
    with open("out/results.csv") as file:
        rows = {row["first"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["cached", "exact"] and rows["exact"]["history_error"] == ""
    exact, cached = (float(rows[first]["bias"]) for first in ("exact", "cached"))
    assert 2 * exact < cached and float(rows["exact"]["noise"]) > 0, (exact, cached)
