"""Tables, CSV files and pictures of runs with made-up records."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rest_triton.lab.results import cell, gain_cell, read, write
from rest_triton.lab.studies import STUDIES
from rest_triton.lab.study import FULL, GAS, Results, Run, Spread, Study, base_for, gain, planned

NAMES = ("norm", "error", "stale", "cut", "output", "sharp", "paper")


def plan(study: Study, out: Path, *, quick: bool = True, **flags: str) -> list[Run]:
    return planned(study, base_for(study, {"dataset": "x.npz"} | flags, quick=quick, seeds=2, nodes=10**5), out)


def record(run: Run, tests: Sequence[float | None]) -> Run:
    """Write the files of a run. tests: the score of each epoch, None without evaluation."""
    lines = []
    for number, test in enumerate(tests, 1):
        line = dict(epoch=number, step=4 * number, steps=4, loss=None, age=float(number), memory=2**20 * number)
        line |= dict(time=dict(data=0.5, refresh=0.0, train=0.5 * number, evaluation=9.0))
        if test is not None:
            line |= dict(val=test, test=test - 0.1, stale_val=1 - test, stale_test=test, error=test)
            line |= dict(staleness=[test, 2.0], staleness_relative=[0.5, test])
        lines.append(json.dumps(line))
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("\n".join(lines))
    (run.folder / "summary.json").write_text(json.dumps(dict(finished=True, machine="a machine")))
    batch = dict.fromkeys(NAMES, 0.5) | dict(mean=[0.1, 0.2])
    leaves = dict(columns=dict(relative_stale=0.25, epsilon=2.0), batches=[batch])
    (run.folder / "gradients.json").write_text(json.dumps(leaves))
    (run.folder / "errors.json").write_text(json.dumps(dict(history_error=0.5, bias=0.25, noise=None)))
    found = dict(errors=[0.5, 0.1, 0.01], cosines=[0.5, 0.9, 1.0], rounding=1e-7)
    (run.folder / "sweeps.json").write_text(json.dumps(found))
    return run


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_study_has_its_table_and_picture(study: Study, tmp_path: Path) -> None:
    runs = plan(study, tmp_path)
    for number, run in enumerate(runs[:-1]):
        record(run, [0.5, 0.6 + number / 1000])
    text = write(read(study, runs), tmp_path, "the command --with flags")
    page = (tmp_path / "README.md").read_text()
    assert text in page and "\n    the command --with flags\n" in page and f"{len(runs) - 1} of {len(runs)} runs" in page
    assert (tmp_path / f"{study.name}.png").read_bytes().startswith(b"\x89PNG") and f"({study.name}.png)" in page
    with open(tmp_path / "results.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == [run.name for run in runs[:-1]] and {*study.axes, "seed", "test"} <= rows[
        0
    ].keys()
    assert any(name in rows[0] for name in study.columns) and text.count("\n") == 1 + len({run.case for run in runs})


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_runs_have_names_of_their_own_and_quick_is_less(study: Study) -> None:
    runs, less = (plan(study, Path("out"), quick=quick) for quick in (False, True))
    assert all(len({run.folder for run in some}) == len(some) for some in (runs, less))
    assert sum(run.config.epochs for run in less) < sum(run.config.epochs for run in runs)
    assert [run.config.seed for run in runs] == sorted(run.config.seed for run in runs)


def test_columns_by_hand(tmp_path: Path) -> None:
    """The target is the lowest of the best validation scores of all runs: 0.7."""
    study = STUDIES["efficiency"]
    runs = plan(study, tmp_path)[:2]
    record(runs[0], [0.7, None, 0.7])
    record(runs[1], [0.1, 0.8, None, 0.5, 0.9, None])
    row = read(study, runs).runs[1].row
    expected = dict(best_epoch=5, val=0.9, test=0.8, late=0.6, stale_val=0.9, stale_test=0.1, error=0.9, age=5.0, steps=24)
    expected |= dict(staleness_0=0.9, staleness_1=2.0, staleness_relative_0=0.5, staleness_relative_1=0.9)
    expected |= dict(target_epoch=2, target_seconds=2.5)
    expected |= dict(
        train_seconds=13.5, epoch_seconds=2.25, step_seconds=13.5 / 24, evaluation_seconds=54.0, memory=6 * 2**20
    )
    assert row == pytest.approx(expected)
    runs[1].apart = False
    assert "memory" not in read(study, runs).runs[1].row, "in a shared process the peak may be another run's"


def test_gains_are_of_pairs_of_one_seed() -> None:
    """Seeds differ by ten points, methods by one point per seed: unpaired spreads would hide the gain."""

    def group(case: str, scores: dict[int, float]) -> list[Run]:
        config = plan(STUDIES["learning-rate"], Path())[0].config
        return [Run(case, {"method": case}, config.changed(seed=s), row=dict(late=score)) for s, score in scores.items()]

    gas, rest = group(GAS, {0: 0.5, 1: 0.6, 7: 0.1}), group("REST", {1: 0.614, 0: 0.51, 8: 0.99})
    found = gain(rest, gas, "late")
    assert found is not None and found.mean == pytest.approx(0.012) and found.std == pytest.approx(0.004 / 2**0.5)
    assert gain_cell(found) == "**+1.20 ± 0.28**" and gain(rest[2:], gas, "late") is None
    single = gain(rest[:1], gas, "late")
    assert single is not None and single.std is None and gain_cell(single) == "+1.40", "nothing is known of its spread"
    assert [gain_cell(Spread(-0.01, std)) for std in (0.0101, 0.0099)] == ["-1.00 ± 1.01", "**-1.00 ± 0.99**"]


@pytest.mark.parametrize(
    ("study", "case", "reference"),
    [
        ("accuracy", "gcn-batch_size5-rest-f1", "gcn-batch_size5-gas"), ("accuracy", "gcn-all-full-batch", None),
        ("accuracy", "gcn-batch_size5-gas", "gcn-all-full-batch"), ("layers", "layers1-gas", "layers1-full-batch"),
        ("regimes", "batch_size-1-gas", "base-full-batch"), ("regimes", "dropout-0-gas", "dropout-0-full-batch"),
        ("regimes", "batch_size-1-rest-f2", "batch_size-1-gas"), ("error", "rest-f1-eval-mode", "gas"),
        ("learning-rate", "rest-f2-lr0.01", "gas-rate-2-lr0.005"), ("learning-rate", "gas-rate-2-lr0.005", "gas-lr0.01"),
    ],
)  # fmt: skip
def test_what_a_case_is_compared_with(study: str, case: str, reference: str | None) -> None:
    runs = plan(STUDIES[study], Path())
    results = Results(STUDIES[study], runs, len(runs))
    (group,) = [group for group in results.groups if group[0].case == case]
    assert [run.case for run in results.reference(group)] == ([] if reference is None else [reference] * 2)


@pytest.mark.parametrize(
    ("name", "mean", "std", "shown"),
    [("test", 0.81234, 0.0056, "81.23 ± 0.56"), ("age", 11.2301, 0.00849, "11.2 ± 0.0"), ("test", 0.5, None, "50.00"),
     ("error", 123.4, 5.6, "123 ± 6"), ("error", 1.2e-9, 3e-10, "1.2e-09 ± 3e-10"), ("memory", 2**20, 1.0, "1.0 MiB")],
)  # fmt: skip
def test_a_spread_has_the_decimals_of_its_mean(name: str, mean: float, std: float | None, shown: str) -> None:
    assert cell(name, Spread(mean, std)) == shown


def test_bases() -> None:
    """Settings by the size of the graph, then of the study, of a recipe, of flags; and what flags fix."""
    study = STUDIES["accuracy"]
    large = base_for(study, {"dataset": "x.npz"}, quick=False, seeds=None, nodes=10**5)
    c = large.config
    assert (c.num_parts, c.batch_size, c.hidden_channels, c.batch_norm, c.eval_every) == (80, 5, 256, True, 2)
    assert large.seeds == 5 and large.batch_sizes() == [5, 10, 20, 40] and len(large.models()) == 3
    assert {run.config.epochs for run in plan(study, Path()) if run.method == FULL} == {4 * 12}
    small = base_for(study, {"dataset": "x.npz", "num_parts": "80"}, quick=True, seeds=None, nodes=10**4)
    assert small.config.batch_size == 4 and small.batch_sizes() == [4, 32], "a batch has the same share of the graph"
    fixed = {(run.config.model, run.config.method) for run in plan(study, Path(), model="appnp", method="gas")}
    assert fixed == {("appnp", "gas")}
    recipe = base_for(study, {"dataset": "x", "recipe": "arxiv_gcn", "lr": "0.5"}, quick=False, seeds=None, nodes=10**5)
    assert recipe.config.lr == 0.5 and recipe.config.changed(lr=0.01).edge_dropout == c.edge_dropout
