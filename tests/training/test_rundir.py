"""The folder of a run."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.training.folder import InUse, RunDirectory, check_free, claimed, new_folder
from rest_triton.training.run import train


def record(epoch: int, **others: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": 1.0 / epoch, "time": {"data": 0.5}} | others


def test_a_line_per_epoch(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b")
    assert directory.records() == [] and directory.summary() is None
    for epoch in (1, 2, 3):
        directory.append(record(epoch))
        assert directory.metrics.read_text().count("\n") == epoch  # at once, and whole
    directory.close()
    assert directory.records() == [record(1), record(2), record(3)]
    (events,) = directory.path.glob("events.out.*")
    content = events.read_bytes()
    assert content.count(b"loss") == content.count(b"time/data") == 3 and b"epoch" not in content


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    directory = RunDirectory(tmp_path)
    directory.append(record(1, loss=math.nan))
    directory.close()
    assert json.loads(directory.metrics.read_text(), parse_constant=refuse)["loss"] is None


def test_later_epochs_are_forgotten(tmp_path: Path) -> None:
    """Also a line that was torn when the process was killed, on which the next one would otherwise be glued."""
    directory = RunDirectory(tmp_path)
    directory.forget_after(7)
    assert list(tmp_path.iterdir()) == []
    directory.metrics.write_text("".join(json.dumps(record(e)) + "\n" for e in (1, 2, 3)) + '{"epoch": 4, "lo')
    assert directory.records() == [record(1), record(2), record(3)]
    directory.forget_after(3)
    directory.append(record(4))
    directory.forget_after(2)
    directory.append(record(3, loss=7.0))
    directory.close()
    assert directory.records() == [record(1), record(2), record(3, loss=7.0)]


def test_a_summary_that_was_torn_is_none(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_summary({"epochs": 3})
    assert directory.summary() == {"epochs": 3}
    (tmp_path / "summary.json").write_text('{"epochs"')
    assert directory.summary() is None


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("products", "products-gcn-gas"),
        ("synthetic:products@0.1", "synthetic-products@0.1-gcn-gas"),
        ("some where/my graph.npz", "my-graph-gcn-gas"),
    ],
)
def test_names(dataset: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(dataset=dataset)
    assert [new_folder(config) for _ in range(3)] == [Path("runs") / f"{name}-{number}" for number in (1, 2, 3)]
    assert all((tmp_path / "runs" / f"{name}-{number}").is_dir() for number in (1, 2, 3))


@pytest.mark.parametrize("check", [check_free, lambda name: new_folder(Config(dataset="x", run_dir=name))])
def test_what_is_there_stays(check: Callable[[str], object], tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "file"
    RunDirectory(run).write_config(Config(dataset="x"))
    file.touch()
    for path, message in ((run, "holds a run already; go on with it by --resume "), (file, "is a file; name a folder with")):
        with pytest.raises(ValueError, match=f"{path} {message}"):
            check(str(path))
    check(str(tmp_path / "new" / "one"))
    check(str(tmp_path))  # a folder without a run


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """As long as it writes, and no longer, whether it ends by itself or is killed."""
    refused = pytest.raises(InUse, match="run is being written by another process")
    with claimed(tmp_path / "run"), refused, claimed(tmp_path / "run"):
        raise AssertionError
    hold = f"import time; from pathlib import Path; from rest_triton.training.folder import claimed\n" \
           f"with claimed(Path({str(tmp_path / 'run')!r})): print('held', flush=True); time.sleep(60)"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(InUse), claimed(tmp_path / "run"):
            raise AssertionError
        other.kill()
    with claimed(tmp_path / "run"):
        pass


def test_two_processes_do_not_resume_one_run(tmp_path: Path) -> None:
    config = Config(
        dataset="synthetic:nodes=300,edges=2000", epochs=1, run_dir=str(tmp_path / "run"), root=str(tmp_path), num_parts=4,
        batch_size=2, hidden_channels=8, device="cpu",
    )  # fmt: skip
    train(config)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with claimed(tmp_path / "run"), pytest.raises(InUse):
        train(config.changed(epochs=2), resume=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert train(config.changed(epochs=2), resume=tmp_path / "run")[0]["epochs"] == 2
