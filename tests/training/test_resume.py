"""Runs that the command resumes."""

import shutil
import signal
import time
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton import predict
from rest_triton import train as command_line
from rest_triton.config import MODELS, Config
from rest_triton.training import run as session

from .commands import FEW, SMALL, begun, here, metrics, refusal, run, summary

Capture = pytest.CaptureFixture[str]
COMMON = ["--dataset", SMALL, *FEW, "--epochs", "3"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with two finished runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("resuming"))
        patch.setattr(command_line, "keep_freed_memory", lambda: True)
        patch.setattr(session, "write_report", lambda path: None)  # no test here reads the report of one run
        command_line.main([*COMMON, "--method", "gas+rest", "--run-dir", "rest"])
        command_line.main([*COMMON, "--method", "full", "--run-dir", "full"])
        yield Path.cwd()


def test_more_epochs(finished: Path, capsys: Capture) -> None:
    folder = finished / "longer"
    shutil.copytree(finished / "rest", folder)
    before = (folder / "metrics.jsonl").read_text()
    command_line.main(["--resume", "longer", "--epochs", "5"])
    said = capsys.readouterr().err
    assert said.startswith(
        "going on after epoch 3, step 9, from longer/checkpoints/epoch-000003.pt; histories were not saved"
    )
    assert (folder / "metrics.jsonl").read_text().startswith(before)
    epochs = metrics(folder)
    assert [record["epoch"] for record in epochs] == [1, 2, 3, 4, 5]
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(epochs))
    assert summary(folder)["epochs"] == 5 and Config.of("longer/config.yaml").epochs == 5

    command_line.main(["--resume", "longer"])
    assert capsys.readouterr().err == "longer is finished: it is not repeated\n" and metrics(folder) == epochs


def test_a_checkpoint_by_its_name(finished: Path, capsys: Capture) -> None:
    """Later epochs are computed again, and the seconds before count."""
    folder = finished / "again"
    shutil.copytree(finished / "full", folder)
    before = metrics(folder)
    command_line.main(["--resume", "again/checkpoints/epoch-000002.pt", "--epochs", "4"])
    assert "going on after epoch 2, step 2, from again/checkpoints/epoch-000002.pt\n" in capsys.readouterr().err
    after = metrics(folder)
    assert [record["epoch"] for record in after] == [1, 2, 3, 4] and after[:2] == before[:2]
    assert after[2]["loss"] == before[2]["loss"] and after[2]["seconds"] != before[2]["seconds"] > after[1]["seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rest", "--lr", "0.5"],
            "--lr is 0.5, but rest was begun with 0.01; a resumed run can change only --checkpoint-every",
        ),
        (["rest", "--epochs", "2", "--num-parts", "8"], "--num-parts is 8, but rest was begun with 6"),
        (["rest/checkpoints/best.pt", "--model", "appnp"], "--model is appnp, but rest was begun with gcn"),
        (["rest", "--recipe", "none"], "--recipe is for new runs: a resumed run has its settings and its folder"),
        (["rest", "--run-dir", "new"], "--run-dir is for new runs"),
        (["rest", "--runs", "2"], "--runs is 2, but rest was begun with 1; one run lies in the folder itself, several in"),
        (["rest/checkpoints"], "rest/checkpoints is not the folder of a run: it has no config.yaml; name one, such as"),
        (
            ["nowhere"],
            "nowhere is not the folder of a run: it has no config.yaml; name one, such as runs/products-gcn-gas-1",
        ),
        (["rest/checkpoints/epoch-000009.pt"], "rest/checkpoints/epoch-000009.pt does not exist"),
        (["rest/checkpoints/epoch-000003.pt", "--epochs", "2"], "epochs is 2, but rest/checkpoints/epoch-000003.pt is of"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, finished: Path, capsys: Capture) -> None:
    assert refusal(command_line.main, ["--resume", *arguments], capsys).startswith(message)


def test_a_model_of_the_users_own(finished: Path, capsys: Capture) -> None:
    shutil.copytree(finished / "full", finished / "own")
    settings = finished / "own" / "config.yaml"
    settings.write_text(settings.read_text().replace("model: gcn", "model: sage"))
    assert refusal(command_line.main, ["--resume", "own"], capsys) == (
        f"model is 'sage': known are: {', '.join(MODELS)}; resume a custom model with the program that trained it"
    )


def test_what_is_repeated_is_no_change(finished: Path, capsys: Capture) -> None:
    command_line.main(["--resume", "rest", "--lr", "1e-2", "--method", "gas+rest", "--epochs", "9", "--print-config"])
    said = capsys.readouterr().out
    assert "epochs: 9\n" in said and "lr: 0.01\n" in said


def test_without_a_checkpoint_it_begins_anew(finished: Path, capsys: Capture) -> None:
    """A run stopped in its third epoch, before its first checkpoint: no epoch is recorded twice."""
    folder = finished / "stopped"
    shutil.copytree(finished / "full", folder)
    for path in (folder / "checkpoints").glob("epoch-*.pt"):
        path.unlink()
    (folder / "summary.json").unlink()
    command_line.main(["--resume", "stopped"])
    assert capsys.readouterr().err == "stopped has no checkpoint yet: it begins anew\n"
    assert [record["epoch"] for record in metrics(folder)] == [1, 2, 3] and summary(folder)["finished"]


def test_several_seeds(finished: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second of two runs, then resumed with three: the finished run is not repeated."""
    whole = session.Run.run

    def stopped(self: session.Run) -> dict[str, Any]:
        if self.config.seed == 4:
            self.config = self.config.changed(epochs=2)
            whole(self)
            (self.directory.path / "summary.json").unlink()
            raise KeyboardInterrupt
        return whole(self)

    monkeypatch.setattr(session.Run, "run", stopped)
    with pytest.raises(SystemExit) as end:
        command_line.main([*COMMON, "--runs", "2", "--run-dir", "seeds", "--seed", "3"])
    last = "seeds/seed-4/checkpoints/epoch-000002.pt"
    assert end.value.code == 130
    assert capsys.readouterr().err == f"\ninterrupted; the last checkpoint is {last}: go on from it with --resume seeds\n"
    monkeypatch.undo()

    first = finished / "seeds" / "seed-3"
    before = {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()}
    command_line.main(["--resume", "seeds", "--runs", "3"])
    out, err = capsys.readouterr()
    assert {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()} == before
    said = err.splitlines()
    assert said[0] == "seeds/seed-3 is finished: it is not repeated" and len(said) == 3
    assert said[1].startswith(f"going on after epoch 2, step 6, from {last}")
    assert said[2] == "seeds/seed-5 has no checkpoint yet: it begins anew"
    for seed in (3, 4, 5):
        assert [record["epoch"] for record in metrics(finished / "seeds" / f"seed-{seed}")] == [1, 2, 3]
    assert "% over 3 seeds" in out and "mean ± std of 3" in (finished / "seeds" / "report.html").read_text()
    assert Config.of("seeds/config.yaml").runs == 3

    command_line.main(["--resume", "seeds/seed-4", "--epochs", "4"])  # one of them alone
    assert len(metrics(finished / "seeds" / "seed-4")) == 4 and not (finished / "seeds" / "seed-4" / "seed-4").exists()


def test_a_run_of_version_0_1(tmp_path: Path) -> None:
    """old_run.zip holds a graph, its clusters by a partitioner that is gone, a run that version 0.1 stopped after epoch 3,
    the figures of its fourth epoch, and its predictions."""
    zipfile.ZipFile(Path(__file__).parent / "old_run.zip").extractall(tmp_path)
    assert "\nparts: 4\nper_batch: 2\n" in (tmp_path / "run" / "config.yaml").read_text()
    wanted = metrics(tmp_path / "run")
    (clusters,) = (tmp_path / "data" / "partitions").iterdir()
    content = clusters.read_bytes()
    clusters.unlink()
    for main, arguments in (
        (predict.main, ("--run", "run", "--out", "found.npz")),
        (command_line.main, ("--resume", "run")),
    ):
        lost = here(main, *arguments, cwd=tmp_path)
        assert lost.returncode == 1 and lost.stderr == (
            "partition is 'stream', which is gone; give --partition kaminpar. For a run of version 0.1, copy its clusters "
            f"to data/partitions/{clusters.name}\n"
        )
    clusters.write_bytes(content)
    predicted = here(predict.main, "--run", "run", "--out", "found.npz", "--probabilities", cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    with np.load(tmp_path / "found.npz") as found, np.load(tmp_path / "want.npz") as before:
        np.testing.assert_allclose(found["probabilities"], before["probabilities"], rtol=1e-4)

    done = here(command_line.main, "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == (
        "going on after epoch 3, step 6, from run/checkpoints/epoch-000003.pt; history tables as they were saved\n"
    )
    epochs = metrics(tmp_path / "run")
    assert epochs[:3] == wanted[:3] and len(epochs) == len(wanted) == 4
    assert epochs[3]["loss"] == pytest.approx(wanted[3]["loss"], rel=1e-4) and epochs[3]["val"] == wanted[3]["val"]
    assert "num_parts: 4\nbatch_size: 2\n" in (tmp_path / "run" / "config.yaml").read_text()


def test_ctrl_c(finished: Path) -> None:
    child = begun("-m", "rest_triton.train", *COMMON, "--epochs", "5000", "--run-dir", "long", cwd=finished)
    checkpoints = finished / "long" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("epoch-*.pt"))) < 2:
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    last = max(checkpoints.glob("epoch-*.pt"))
    assert child.returncode == 130
    assert said == f"\ninterrupted; the last checkpoint is {last.relative_to(finished)}: go on from it with --resume long\n"

    done = int(last.stem.removeprefix("epoch-"))
    again = run("-m", "rest_triton.train", "--resume", "long", "--epochs", str(done + 2), cwd=finished)
    assert again.returncode == 0 and again.stderr.startswith(f"going on after epoch {done}, step {3 * done}, ")
    assert [record["epoch"] for record in metrics(finished / "long")] == list(range(1, done + 3))
