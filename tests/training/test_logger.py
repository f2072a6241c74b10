"""The folder of a run."""

import ast
import inspect
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rest_triton.config import Config
from rest_triton.training.logger import InUse, RunDirectory, check_free, claimed, new_folder
from rest_triton.training.run import train
from rest_triton.utils.errors import UserError


def record(epoch: int, **others: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": 1.0 / epoch, "time": {"data": 0.5}} | others


class SummaryWriter:
    """Of torch.utils.tensorboard, as far as it is used."""

    made: ClassVar[list["SummaryWriter"]] = []

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.curves, self.flushed, self.closed = Path(log_dir), dict[str, dict[int, float]](), 0, False
        self.made.append(self)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert not self.closed and math.isfinite(scalar_value)
        self.curves.setdefault(tag, {})[global_step] = scalar_value

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> list[SummaryWriter]:
    """Installed, as a stand-in that keeps what it is given."""
    monkeypatch.setattr(SummaryWriter, "made", [])
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return SummaryWriter.made


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


@pytest.mark.usefixtures("no_tensorboard")
def test_a_line_per_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path / "a" / "b")
    assert directory.records() == [] and directory.summary() is None
    for epoch in (1, 2, 3):
        directory.append(record(epoch))
        assert directory.metrics.read_text().count("\n") == epoch  # at once, and whole
    directory.close()
    assert directory.records() == [record(1), record(2), record(3)]
    assert list(directory.path.iterdir()) == [directory.metrics]  # no curves, and no notice of that
    assert capfd.readouterr() == ("", "")


def test_curves(tmp_path: Path, tensorboard: list[SummaryWriter]) -> None:
    directory = RunDirectory(tmp_path)
    for epoch in (1, 2):
        directory.append(record(epoch, staleness=[0.5, 0.25], note="text"))
        assert tensorboard[0].flushed == epoch  # a run that is killed keeps its curves
    directory.close()
    directory.close()
    (writer,) = tensorboard
    assert writer.log_dir == tmp_path and writer.closed
    assert writer.curves == {
        "loss": {1: 1.0, 2: 0.5}, "time/data": {1: 0.5, 2: 0.5}, "staleness/0": {1: 0.5, 2: 0.5},
        "staleness/1": {1: 0.25, 2: 0.25},
    }  # fmt: skip
    resumed = RunDirectory(tmp_path)
    resumed.append(record(3))
    assert tensorboard[1].curves["loss"] == {3: 1 / 3}  # its events are in a second file


def test_the_real_writer_has_these_arguments() -> None:
    """Read from torch's source: its module cannot be imported without tensorboard."""
    source = (Path(torch.__file__).parent / "utils" / "tensorboard" / "writer.py").read_text()
    (real,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "SummaryWriter")
    functions = {node.name: [a.arg for a in node.args.args] for node in real.body if isinstance(node, ast.FunctionDef)}
    for name in ("__init__", "add_scalar", "flush", "close"):
        mine = list(inspect.signature(getattr(SummaryWriter, name)).parameters)
        assert functions[name][: len(mine)] == mine, name


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    directory = RunDirectory(tmp_path)
    directory.append(record(1, loss=math.nan))
    directory.close()
    assert json.loads(directory.metrics.read_text(), parse_constant=refuse)["loss"] is None


def test_later_epochs_are_forgotten(tmp_path: Path) -> None:
    """So is a last line that was cut off when the process was killed: the next line would be appended to it."""
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
    directory.metrics.write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is not JSON: .*; delete that line"):
        directory.forget_after(1)
    assert directory.metrics.read_text().count("\n") == 3


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
    for path, message in ((run, "holds a run already; resume it with --resume "), (file, "is a file; name a folder with")):
        with pytest.raises(UserError, match=f"{path} {message}"):
            check(str(path))
    check(str(tmp_path / "new" / "one"))
    check(str(tmp_path))  # a folder without a run


@pytest.mark.usefixtures("without_pictures")
def test_two_processes_do_not_resume_one_run(tmp_path: Path) -> None:
    config = Config(
        dataset="synthetic:nodes=300,edges=2000", epochs=1, run_dir=str(tmp_path / "run"), root=str(tmp_path), num_parts=4,
        batch_size=2, hidden_channels=8, device="cpu",
    )  # fmt: skip
    train(config)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with claimed(tmp_path / "run"), pytest.raises(InUse, match="run is being written by another process; wait for it, or"):
        train(config.changed(epochs=2), resume=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert train(config.changed(epochs=2), resume=tmp_path / "run")[0]["epochs"] == 2
