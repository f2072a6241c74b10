"""The lab's command: plan, runs, what is resumed and what is refused, the files it leaves."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.lab import command, plan, runner
from rest_triton.lab.command import main
from rest_triton.lab.plan import Estimates, timed
from rest_triton.lab.studies import STUDIES
from rest_triton.lab.study import base_for, planned
from rest_triton.training import run as session
from rest_triton.training.logger import claimed

from ..training.commands import refusal

SMALL = "synthetic:nodes=400,edges=3000,features=8,classes=4"
TINY = ["--num-parts", "8", "--batch-size", "2", "--hidden-channels", "8", "--epochs", "2"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of single runs are tested elsewhere, and take longer than the runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "write_report", lambda path: None)
    monkeypatch.setattr(command, "keep_freed_memory", lambda: True)


@pytest.fixture
def lab(data: Path) -> Callable[..., Path]:
    def call(study: str, *more: str, seeds: int = 1, out: str = "out") -> Path:
        main([study, "--dataset", SMALL, "--root", str(data), "--out", out, "--seeds", str(seeds), *TINY, *more])
        return Path(out)

    return call


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also runs that get a process of their own: most of those would be the start of Python."""
    monkeypatch.setattr(command, "execute_apart", runner.execute)


def rows(out: Path, name: str = "results.csv") -> list[dict[str, str]]:
    with open(out / name) as file:
        return list(csv.DictReader(file))


# Of each study a few runs, and what their names are.
EXPECTED: dict[str, tuple[list[str], set[str], set[str]]] = {
    "accuracy": (["--only", "gcn.*(all|batch2-gas)"], {"accuracy.png"}, {"gcn-all-full-batch-s0", "gcn-per_batch2-gas-s0"}),
    "convergence": (
        ["--only", "batch2-(gas|rest-f1)"],
        {"convergence-2.png"},
        {"per_batch2-gas-s0", "per_batch2-rest-f1-s0"},
    ),
    "persistence": (
        ["--only", "batch2-gas|batch4-rest-f2"],
        {"persistence.png"},
        {"per_batch2-gas-s0", "per_batch4-rest-f2-s0"},
    ),
    "error": (["--only", "gas|is-eval"], {"error.png"}, {"gas-s0", "rest-is-eval-mode-s0"}),
    "frequency": (
        ["--only", "gas|f1"],
        {"frequency.png", "curves.png"},
        {"gas-s0", "rest-f1-s0", "rest-f1-oldest-first-s0"},
    ),
    "refresh-batch": (["--only", "gcn-(gas|rest-half)"], {"refresh-batch.png"}, {"gcn-gas-s0", "gcn-rest-half-s0"}),
    "layers": (["--only", "layers1-gas|layers5-rest-is"], {"layers.png"}, {"layers1-gas-s0", "layers5-rest-is-s0"}),
    "learning-rate": (["--only", "gas-lr|f2"], {"learning-rate.png"}, {"gas-lr0.01-s0", "rest-f2-lr0.01-s0"}),
    "accumulation": (["--quick", "--only", "f1|acc"], {"accumulation.png"}, {"rest-f1-s0", "gas-2-batches-accumulated-s0"}),
    "efficiency": (
        ["--only", "all|batch2-gas"],
        {"efficiency.png", "curves.png"},
        {"all-full-batch-s0", "per_batch2-gas-s0"},
    ),
    "bound": (["--only", "gas|rest-is"], {"bound.png"}, {"epochs2-gas-s0", "epochs2-rest-is-s0"}),
    "regimes": (["--only", "base-full|parts-32-gas"], {"regimes.png"}, {"base-full-batch-s0", "parts-32-gas-s0"}),
}


@pytest.mark.parametrize("study", STUDIES)
def test_each_study(study: str, lab: Callable[..., Path], in_this_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    more, pictures, names = EXPECTED[study]
    out = lab(study, *more, "--checkpoint-every", "2")
    said = capsys.readouterr().out
    assert said.startswith(study) and re.search(r"\d+ runs, 0 finished; the others take about", said)
    found = rows(out)
    assert names <= {row["run"] for row in found} and {row["seed"] for row in found} == {"0"}
    assert {path.name for path in out.glob("*.png")} == pictures
    assert all((out / name).read_bytes().startswith(PNG) for name in pictures)
    assert all((out / "runs" / row["run"] / "summary.json").exists() for row in found)
    text = (out / "results.md").read_text()
    assert "one seed, so no spread is known" in text and "Evaluation did not write the histories" in text
    assert all(f"({name})" in text for name in pictures) and "nan" not in text
    for name in STUDIES[study].measures[:1]:  # what the study is about has been measured
        assert any(row.get(name) for row in found), (name, found)
    assert len(rows(out, "curves.csv")) == sum(int(r["steps"]) > 0 for r in found for _ in epochs_of(out, r["run"]))


def epochs_of(out: Path, run: str) -> list[str]:
    return (out / "runs" / run / "metrics.jsonl").read_text().splitlines()


def test_figures_are_those_of_the_runs(lab: Callable[..., Path], in_this_process: None) -> None:
    """Mean and spread, by hand from what the runs left."""
    out = lab("error", "--only", "^(gas|rest-f1)-s", seeds=2)
    by_hand = []
    for seed in (0, 1):
        lines = [json.loads(line) for line in epochs_of(out, f"gas-s{seed}")]
        (row,) = [row for row in rows(out) if row["run"] == f"gas-s{seed}"]
        best = max(lines, key=lambda line: line["val"])
        assert float(row["test"]) == best["test"] and float(row["error"]) == lines[-1]["error"]
        assert float(row["staleness_1"]) == lines[-1]["staleness"][1] and float(row["age"]) == lines[1]["age"]
        assert float(row["stale_val"]) == max(line["stale_val"] for line in lines)
        trained = sum(seconds for line in lines for phase, seconds in line["time"].items() if phase != "evaluation")
        assert float(row["train_seconds"]) == pytest.approx(trained) and "memory" not in row
        assert float(row["late"]) == lines[1]["test"], "of two epochs, the second"
        by_hand.append(100 * best["test"])
    mean, half = sum(by_hand) / 2, abs(by_hand[0] - by_hand[1]) / 2**0.5
    text = (out / "results.md").read_text()
    assert "| GAS | 2 |" in text and f"| {mean:.2f} ± {half:.2f} |" in text and "with 2 seeds of each setting" in text


def test_a_finished_run_is_not_repeated_and_a_killed_study_goes_on(
    lab: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def counting(study: Any, config: Config, folder: Path, said: str) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        runner.execute(study, config, folder, said)
        done.append(folder.name)

    monkeypatch.setattr(command, "execute", counting)
    with pytest.raises(SystemExit) as end:
        lab("learning-rate", "--only", "gas")
    assert end.value.code == 130 and "the same command goes on" in capsys.readouterr().err
    first = rows(Path("out"))
    assert len(first) == 2 and "2 of 5 runs have ended" in Path("out/results.md").read_text()
    dates = {path: path.stat().st_mtime_ns for path in Path("out/runs").glob("*/metrics.jsonl")}
    monkeypatch.setattr(command, "execute", runner.execute)
    monkeypatch.setattr(plan, "timed", refuse)  # nor is anything timed again
    lab("learning-rate", "--only", "gas")
    assert "3 runs, 2 finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in dates} == dates
    assert len(rows(Path("out"))) == 3 and rows(Path("out"))[:2] == first
    monkeypatch.setattr(plan, "timed", timed)
    lab("learning-rate", "--only", "rest-f2")
    names = [row["run"] for row in rows(Path("out"))]
    assert len(names) == 4 and names.count("rest-f2-lr0.01-s0") == 1, "results are of what was chosen before, too"
    lab("learning-rate", "--only", "gas")
    assert "3 runs, 3 finished\n" in capsys.readouterr().out and len(rows(Path("out"))) == 4


def refuse(*_: Any) -> Any:
    raise AssertionError


def test_an_unfinished_run_is_resumed(lab: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = lab("learning-rate", "--only", "rest-f2")
    folder = out / "runs" / "rest-f2-lr0.01-s0"
    before = [json.loads(line) for line in epochs_of(out, folder.name)]
    (folder / "summary.json").unlink()
    (folder / "checkpoints" / "epoch-000002.pt").unlink()
    (folder / "metrics.jsonl").write_text(json.dumps(before[0]) + "\n")
    lab("learning-rate", "--only", "rest-f2")
    assert "going on after epoch 1" in capsys.readouterr().err
    after = [json.loads(line) for line in epochs_of(out, folder.name)]
    assert after[0] == before[0] and len(after) == 2


def test_other_settings_in_the_same_folder_are_refused(
    lab: Callable[..., Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab("learning-rate", "--only", "rest-f2")
    capsys.readouterr()
    flags = ["learning-rate", "--dataset", SMALL, "--root", str(data), "--out", "out", "--seeds", "1", *TINY]
    said = refusal(main, [*flags, "--dropout", "0.25", "--epochs", "3", "--only", "rest-f2"], capsys)
    assert said == (
        "out/runs/rest-f2-lr0.01-s0 was begun with --dropout 0.5 instead of 0.25, --epochs 2 instead of 3; name another "
        "folder with --out, or remove this one"
    )


def test_the_plan_alone(lab: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = lab("frequency", "--quick", "--plan", seeds=3)
    said = capsys.readouterr().out
    assert re.search(r"rest-f3 +2 +3 +3 +\d", said) and "runs, 0 finished; the others take about" in said
    assert not (out / "runs").exists() and (out / "estimates.json").exists()


def test_the_estimate_counts_steps_and_evaluations(tmp_path: Path) -> None:
    config = Config(dataset="graph", epochs=10, eval_every=3, error_every=5, num_parts=40, batch_size=5)
    estimates = Estimates(tmp_path / "estimates.json")
    assert estimates.seconds(config, apart=False) is None
    from rest_triton.lab.plan import START, key

    estimates.known[key(config)] = {"step": 2.0, "steps": 8, "evaluation": 10.0, "error": 100.0}
    assert estimates.seconds(config, apart=False) == START[False] + 10 * 8 * 2 + (4 - 2) * 10 + 2 * 100
    assert estimates.seconds(config.changed(seed=3, lr=1.0), apart=False) is not None
    assert estimates.seconds(config.changed(frequency=2, method="gas+rest"), apart=False) is None


def test_timing_leaves_no_trace() -> None:
    from ..training.data import settings, small

    found = timed(settings(accumulate=2, error_every=1), small())
    assert found["steps"] == 2 and 0 < found["step"] < 10 and 0 < found["evaluation"] <= found["error"] + 1
    assert list(Path().iterdir()) == []


def test_a_run_that_diverges_does_not_end_the_study(lab: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    lab("learning-rate", "--only", "gas-lr|f2", "--lr", "1e30", "--no-batch-norm")
    text = Path("out/results.md").read_text()
    assert "was not finite" in text and "diverged)" in text
    assert {row["diverged"] for row in rows(Path("out"))} == {"1"}
    capsys.readouterr()
    lab("learning-rate", "--only", "gas-lr|f2", "--lr", "1e30", "--no-batch-norm")
    assert "2 runs, 2 finished\n" in capsys.readouterr().out


def test_two_processes_do_not_do_the_same_run(lab: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(Path("out/runs/rest-f2-lr0.01-s0")):
        lab("learning-rate", "--only", "rest-f2")
    assert "is being done by another process" in capsys.readouterr().err and rows(Path("out")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acuracy", "--dataset", SMALL], "'acuracy' is not a study: did you mean 'accuracy'?"),
        (["error"], "dataset is missing; name one with --dataset"),
        (["error", "--dataset", SMALL, "--only", "nothing"], "--only 'nothing' matches none of the"),
        (["error", "--dataset", SMALL, "--only", "("], "--only '(' is not a regular expression"),
        (["error", "--dataset", SMALL, "--runs", "3"], "--runs is for single runs; a study takes --seeds"),
        (["error", "--dataset", SMALL, "--run-dir", "x"], "--run-dir is for single runs; a study takes --out"),
        (["error", "--dataset", SMALL, "--seeds", "0"], "seeds is 0; it must be at least 1"),
        (["error", "--dataset", SMALL, "--dropout", "2"], "dropout is 2.0; it must be 0 to 1"),
        (["error", "--dataset", SMALL, "--method", "full"], "--method full is none of those that this study compares"),
        (["error", "--dataset", "nothing.npz"], "nothing.npz does not exist"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(main, arguments, capsys)


def test_bases() -> None:
    """Settings by the size of the graph, then of the study, a recipe, flags; and what flags fix."""
    study = STUDIES["accuracy"]
    large = base_for(study, {"dataset": "x.npz"}, quick=False, seeds=None, nodes=10**5)
    c = large.config
    assert (c.num_parts, c.batch_size, c.hidden_channels, c.batch_norm, c.dropout, c.lr) == (80, 5, 256, True, 0.5, 0.01)
    assert large.seeds == 5 and large.batch_sizes() == [5, 10, 20, 40] and len(large.models()) == 3
    small = base_for(study, {"dataset": "x.npz"}, quick=True, seeds=None, nodes=10**4)
    assert small.config.hidden_channels < 256 and small.config.epochs < c.epochs and len(small.batch_sizes()) == 2
    fixed = base_for(study, {"dataset": "x.npz", "model": "appnp", "method": "gas"}, quick=False, seeds=2, nodes=10**5)
    assert {case.config.model for case in study.cases(fixed)} == {"appnp"} == {m["model"] for m in fixed.models()}
    assert {case.config.method for case in study.cases(fixed)} == {"gas"} and fixed.seeds == 2
    recipe = base_for(study, {"dataset": "x.npz", "recipe": "arxiv_gcn", "lr": "0.5"}, quick=False, seeds=None, nodes=10**5)
    assert recipe.config.lr == 0.5 and recipe.config.hidden_channels == Config.of("arxiv_gcn", dataset="x").hidden_channels


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("study", STUDIES)
def test_names_of_runs_are_distinct_and_quick_is_less(study: str, quick: bool) -> None:
    flags = {"dataset": "x.npz"}
    made, less = (
        planned(STUDIES[study], base_for(STUDIES[study], flags, quick=q, seeds=None, nodes=10**5), Path("out"))
        for q in (False, True)
    )
    runs = less if quick else made
    names = [run.name for run in runs]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9.+_-]+", name) for name in names)
    assert sum(run.config.epochs for run in less) < sum(run.config.epochs for run in made)


def test_a_process_of_its_own(data: Path) -> None:
    """As a person runs it: peak memory is the run's own."""
    flags = ["--dataset", SMALL, "--root", str(data), *TINY, "--seeds", "1", "--only", "gas-s", "--quick"]
    result = subprocess.run(
        [sys.executable, "-m", "rest_triton.lab", "accumulation", *flags], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    out = next(Path("lab").iterdir())
    found = rows(out)
    assert len(found) == 1 and all(int(row["memory"]) > 2**20 for row in found)
    assert "seed 0: best validation" in (out / "runs" / "gas-s0" / "log.txt").read_text()
    shutil.rmtree(out)
