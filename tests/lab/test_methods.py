"""The study of all methods: its cases, what they are compared with, and a run of some of them."""

import csv
from pathlib import Path
from typing import Any

import pytest

from rest_triton.lab import __main__ as command
from rest_triton.lab import runner
from rest_triton.lab.results import read
from rest_triton.lab.studies.baselines import BASELINES
from rest_triton.lab.studies.methods import METHODS, base_of, form_of
from rest_triton.lab.study import FULL, Results, base_for, planned
from rest_triton.methods.options import METHODS as NAMES
from rest_triton.methods.options import OF_NODES, TABLELESS

from .test_lab import SMALL, TINY, data, flags
from .test_results import record

__all__ = ["data", "flags"]

FORMS = {"plain", "+rest", "+rest, both ways", "+rest-is", "rate / 2"}


def runs_of(out: Path = Path(), **given: str) -> list[Any]:
    base = base_for(METHODS, {"dataset": "x.npz"} | given, quick=True, seeds=None, nodes=10**5)
    return planned(METHODS, command.replace(base, training=1001), out)


def test_every_method_in_every_form() -> None:
    runs = runs_of(model="appnp")
    with_tables = {name for name in NAMES if name not in TABLELESS}
    assert {run.config.method for run in runs} == {*with_tables, "full"} and {run.config.model for run in runs} == {"appnp"}
    forms = {base: {form_of(run.method) for run in runs if base_of(run.method) == base} for base in ("gas", "lmc", FULL)}
    assert forms == {"lmc": FORMS, "gas": FORMS - {"+rest, both ways"}, FULL: {FULL}}
    assert len(runs_of()) == 3 * len(runs) and {run.config.num_layers for run in runs_of()} == {3, 5, 4}
    assert {run.method for run in runs_of(method="gas+rest")} == {"gas+rest"}


def test_baselines_beside_methods_with_tables() -> None:
    """sgc is there for gcn alone. Batches have as many nodes as five of 80 clusters of 100,000 nodes on average."""
    base = base_for(BASELINES, {"dataset": "x.npz"}, quick=True, seeds=None, nodes=10**5)
    runs = planned(BASELINES, command.replace(base, training=1001, nodes=10**5), Path())
    found = {model: {run.config.method for run in runs if run.config.model == model} for model in ("gcn", "appnp", "gcnii")}
    with_tables = {f"{name}{form}" for name in ("gas", "lmc", "graphfm") for form in ("", "+rest", "+rest-is")}
    assert found["gcn"] == {*TABLELESS, *with_tables}
    assert found["appnp"] == found["gcnii"] == found["gcn"] - {"sgc"}
    sizes = {run.config.base: (run.config.batch_nodes, run.config.subgraph_nodes, run.config.layer_nodes) for run in runs}
    assert sizes["sage"][0] == sizes["ladies"][0] == sizes["sgc"][0] == 63 and sizes["fastgcn"][2] == 6250
    assert [sizes[f"saint-{kind}"][1] for kind in ("node", "edge", "walk")] == [6250, 3125, 2083]
    results = Results(BASELINES, runs, len(runs))
    against = {group[0].method: [run.method for run in results.reference(group)] for group in results.groups}
    assert set(against["sage"]) == set(against["gas"]) == {FULL} and set(against["lmc+rest"]) == {"lmc"}


def test_settings_are_matched() -> None:
    """As many updates per epoch as batches of clusters: 16, of 63 of the 1001 training nodes or fewer."""
    for run in runs_of(lr="0.02"):
        c, slower = run.config, form_of(run.method) == "rate / 2"
        assert c.lr == (0.01 if slower else 0.02) and (c.batch_size, c.num_parts) == (5, 80)
        assert c.batch_nodes == (63 if c.base in OF_NODES[1] else 1024) and c.save_history
        assert (c.epochs, c.eval_every) == ((48, 8) if c.base == "full" else (12, 2))
        assert c.gradient_frequency == int(form_of(run.method) == "+rest, both ways")
    assert {run.config.batch_nodes for run in runs_of(batch_nodes="7") if run.config.base == "mvs"} == {7}


def test_what_is_compared_with_what() -> None:
    runs = runs_of(model="gcn")
    results = Results(METHODS, runs, len(runs))
    against = {group[0].method: [run.method for run in results.reference(group)] for group in results.groups}
    assert against[FULL] == [] and against["lmc"] == against["vrgcn"] == [FULL]
    assert against["lmc+rest, both ways"] == against["lmc, rate / 2"] == against["lmc+rest-is"] == ["lmc"]


def test_the_target_is_a_share_of_full_batch_of_the_same_model(tmp_path: Path) -> None:
    runs = [run for run in runs_of(tmp_path) if run.method in (FULL, "gas", "lmc")]
    best = {("gcn", FULL): 0.5, ("gcn", "gas"): 0.48, ("gcn", "lmc"): 0.6, ("appnp", "gas"): 0.9}
    kept = [record(run, [best[key]]) for run in runs if (key := (run.config.model, run.method)) in best]
    found = {run.case: run for run in read(METHODS, kept).runs}
    assert [found[name].row.get("reached") for name in ("gcn-gas", "gcn-lmc", "appnp-gas")] == [0.0, 1.0, None]
    assert found["gcn-lmc"].target == pytest.approx(0.49) and "target_seconds" not in found["gcn-gas"].row
    assert found["gcn-lmc"].row["target_seconds"] == 1.0


def test_a_run_of_some_methods(flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The runs share a process here, which saves its start."""
    assert SMALL in flags and TINY[-1] in flags
    monkeypatch.setattr(runner, "_train_apart", lambda run, command, log: runner._train(run.config, command))
    asked = ["methods", *flags, "--quick", "--epochs", "2", "--model", "gcn"]
    asked += ["--only", r"gcn-(full-batch|vrgcn|lmc\+rest-both-ways)-s"]
    command.main([*asked, "--plan"])
    assert "3 runs, 0 finished" in capsys.readouterr().out
    command.main(asked)
    with open("out/results.csv") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == [FULL, "lmc+rest, both ways", "vrgcn"] and rows[FULL]["history_error"] == ""
    assert all(0 < float(rows[name]["history_error"]) < 10 for name in list(rows)[1:])
    assert float(rows[FULL]["bias"]) < 1e-3 and float(rows["vrgcn"]["noise"]) > 0.01
    assert float(rows["vrgcn"]["standard_error_train"]) > 0 and int(rows["vrgcn"]["memory"]) > 0
    page = Path("out/README.md").read_text()
    head = "| model | method | seeds | val | test | late | epoch_seconds | reached | target_seconds | memory | age |"
    assert head in page and "bias_train" in page and "standard_error" not in page
    assert not list(Path("out").rglob("*.tables"))
