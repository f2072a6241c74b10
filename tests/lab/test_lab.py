"""The lab's command: what it runs, resumes and refuses."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rest_triton.lab import __main__ as command
from rest_triton.lab import runner
from rest_triton.methods.engine import Engine
from rest_triton.training.logger import claimed
from rest_triton.training.trainer import PROCESSOR_TIME

from ..training.commands import refusal

SMALL = "synthetic:nodes=400,edges=3000,features=8,classes=4"
TINY = ["--num-parts", "8", "--batch-size", "2", "--hidden-channels", "8", "--seeds", "1", "--out", "out"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def flags(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line of a study on a small graph, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "keep_freed_memory", lambda: True)
    return ["--dataset", SMALL, "--root", str(data), *TINY]


def rows() -> dict[str, dict[str, str]]:
    with open("out/results.csv") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def lines(run: str) -> list[dict[str, Any]]:
    file = Path("out/runs") / run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_killed_study_goes_on(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the second run: the first is not repeated, the second resumes from its checkpoint."""
    asked = ["error", *flags, "--epochs", "80", "--eval-every", "40", "--only", "^(gas|rest-f1)-s"]
    process = subprocess.Popen([sys.executable, "-m", "rest_triton.lab", *asked], stdout=subprocess.DEVNULL)
    while len(lines("rest-f1-s0")) <= 3 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    before, first = lines("rest-f1-s0"), Path("out/runs/gas-s0/metrics.jsonl").stat().st_mtime_ns
    assert (
        3 < len(before) < 80 and list(rows()) == ["gas-s0"] and "1 of 7 runs have ended" in Path("out/README.md").read_text()
    )
    command.main(asked)
    said = capsys.readouterr()
    assert "2 runs, 1 finished" in said.out and "going on after epoch" in said.err
    after = lines("rest-f1-s0")
    assert [line["epoch"] for line in after] == list(range(1, 81)) and after[:2] == before[:2]
    assert Path("out/runs/gas-s0/metrics.jsonl").stat().st_mtime_ns == first
    row = rows()["rest-f1-s0"]
    best = max((line for line in after if "val" in line), key=lambda line: line["val"])
    assert float(row["test"]) == best["test"] and float(row["error"]) == after[-1]["error"] and "memory" not in row
    assert [float(row[f"staleness_{table}"]) for table in (0, 1)] == after[-1]["staleness"]
    command.main(asked)
    assert "2 runs, 2 finished\n" in capsys.readouterr().out and lines("rest-f1-s0") == after


def test_gradients_are_measured_after_a_run(flags: list[str]) -> None:
    command.main(["bound", *flags, "--epochs", "2", "--only", "gas-s"])
    (row,) = rows().values()
    found = json.loads(Path("out/runs/epochs2-gas-s0/gradients.json").read_text())["batches"]
    assert len(found) == 4 and float(row["gradient_stale"]) == pytest.approx(sum(one["stale"] for one in found) / 4)
    share = sum(one["error"] for one in found) / sum(one["norm"] for one in found)
    assert float(row["relative_error"]) == pytest.approx(share)
    assert float(row["epsilon"]) == max(one["stale"] / one["output"] for one in found)
    assert float(row["gradient_output"]) * float(row["epsilon"]) <= float(row["bound_sharp"]) <= float(row["bound_paper"])
    assert not list(Path("out").rglob("*.tables")), "tables are removed when they are measured"


def test_a_process_of_its_own(flags: list[str]) -> None:
    """Peak memory is that of the run alone."""
    command.main(["accumulation", *flags, "--epochs", "1", "--only", "^gas-s"])
    assert int(rows()["gas-s0"]["memory"]) > 2**20
    assert "seed 0: best validation" in Path("out/runs/gas-s0/log.txt").read_text()


def test_processor_time_does_not_count_waiting(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step sleeps for a tenth of a second."""
    monkeypatch.setenv(PROCESSOR_TIME, "")
    step = Engine.train
    monkeypatch.setattr(Engine, "train", lambda *given, **more: (time.sleep(0.1), step(*given, **more))[1])
    for number, more in enumerate([[], ["--processor-time"]]):
        command.main(["error", *flags, *more, "--epochs", "2", "--only", "^gas-s", "--out", f"out{number}"])
        times = json.loads(Path(f"out{number}/runs/gas-s0/metrics.jsonl").read_text().splitlines()[-1])["time"]
        assert (sum(times.values()) > 0.1) == (number == 0)


@pytest.mark.parametrize(("code", "message"), [(130, "repeat the command"), (3, "ended with exit code 3;")])
def test_a_process_that_fails(
    code: int, message: str, flags: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess("", code))
    with pytest.raises(SystemExit):
        command.main(["accumulation", *flags, "--epochs", "1", "--only", "^gas-s"])
    assert message in capsys.readouterr().err


def test_a_run_of_another_process_is_left_out(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(Path("out/runs/gas-s0")):
        command.main(["error", *flags, "--epochs", "1", "--only", "^gas-s"])
    assert "gas-s0 is skipped: another process does it" in capsys.readouterr().err and rows() == {}


def test_a_run_that_diverges_does_not_end_the_study(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["learning-rate", *flags, "--epochs", "2", "--only", "gas-lr", "--lr", "1e30", "--no-batch-norm"]
    command.main(asked)
    assert "(1 diverged)" in Path("out/README.md").read_text() and rows()["gas-lr1e+30-s0"]["diverged"] == "1"
    command.main(asked)
    assert "1 runs, 1 finished\n" in capsys.readouterr().out


def test_other_settings_in_the_same_folder_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["learning-rate", *flags, "--epochs", "2", "--only", "gas-lr"]
    monkeypatch.setattr(runner, "train", lambda c, **_: (Path(c.run_dir) / "config.yaml").write_text(c.to_yaml()))
    command.main(asked)
    assert refusal(command.main, [*asked, "--dropout", "0.25"], capsys) == (
        "out/runs/gas-lr0.01-s0 was begun with --dropout 0.5 instead of 0.25; name another folder with --out, or remove it"
    )
    monkeypatch.setattr(runner, "train", None)
    command.main([*asked, "--plan"])
    assert "1 runs, 0 finished\n" in capsys.readouterr().out
    Path("out/runs/gas-lr0.01-s0/config.yaml").write_text("parts: 8\n")
    assert "gas-lr0.01-s0 holds a run of another version: " in refusal(command.main, asked, capsys)


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
        (["error", "--dataset", SMALL, "--method", "full"], "--method full is none of those that this study compares"),
    ],
)
def test_refusals(arguments: list[str], message: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(command.main, arguments, capsys)


def test_a_failure_that_is_not_the_users_keeps_its_traceback(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(runner, "_train", broken)
    with pytest.raises(ValueError, match="a defect"):
        command.main(["error", *flags, "--epochs", "1", "--only", "gas"])
