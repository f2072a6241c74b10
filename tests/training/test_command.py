"""The training command in a process."""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Linear, ModuleList

from rest_triton import train as command_line
from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.data.datasets import load
from rest_triton.data.partition import partition
from rest_triton.data.partitioners import AUTO
from rest_triton.methods.engine import Engine
from rest_triton.nn import Context, HistoryGNN
from rest_triton.sampling.halo_rows import halo_per_row

from .commands import FEW, SMALL, Result, flags, folder_in, here, metrics, refusal, run, side_by_side, summary, write_graph

PNG = b"\x89PNG\r\n\x1a\n"
Refused = Callable[..., str]


class SAGE(HistoryGNN):
    normalise = "mean"

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int) -> None:
        super().__init__([hidden_channels] * (num_layers - 1))
        dims = [in_channels, *self.history_dims, out_channels]
        self.lins = ModuleList(Linear(2 * a, b) for a, b in pairwise(dims))

    def layer(self, layer: int, ctx: Context) -> Tensor:
        u = self.lins[layer](torch.cat([ctx.h, ctx.propagate()], 1))
        return u if layer == self.num_layers - 1 else ctx.output(u)


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared graph, so that concurrent runs do not prepare it twice."""
    folder = tmp_path_factory.mktemp("training")
    partition(load(SMALL, folder / "data"), 6, root=folder / "data")
    return folder


@pytest.fixture(scope="module")
def finished(cwd: Path) -> dict[str, Result]:
    """``gas`` and ``other`` are processes that begin at the same moment; the others are in this one."""
    process = partial(partial, run, "-m", "rest_triton.train", cwd=cwd)
    more = ["--profile", "--eval-every", "5", "--error-every", "2", "--edge-dropout", "0.5"]
    results = side_by_side(gas=process(*flags()), other=process(*flags(*more)))

    def start(name: str, *more: str, **others: Any) -> Result:
        return here(command_line.main, *flags("--run-dir", name, **others), *more, cwd=cwd)

    return results | dict(
        rest=start("rest", "--method", "gas+rest"),
        importance=start("importance", "--method", "gas+rest-is", "--frequency", "2"),
        full=start("full", "--method", "full"),
        seeds=start("seeds", "--runs", "2", "--seed", "1", epochs=1),
        disk=start("disk", "--history", "disk", "--save-history"),
        sage=here(command_line.main, *flags("--method", "gas+rest", epochs=2), cwd=cwd, model=SAGE),
        diverged=start("diverged", "--lr", "1e30"),
    )


@pytest.fixture
def refused(cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: True)
    return lambda *arguments: refusal(command_line.main, arguments, capsys)


def test_what_a_run_leaves_behind(finished: dict[str, Result], cwd: Path) -> None:
    folder = folder_in(finished["gas"], cwd)
    assert folder.parent == cwd / "runs" and folder.name.startswith(
        "synthetic-nodes=600-edges=5000-features=16-classes=4-gcn"
    )
    names = {path.name for path in folder.iterdir()}
    pictures = {"loss.png", "accuracy.png", "age.png", "time.png"}
    events = [name for name in names if name.startswith("events.out.tfevents.")]
    assert len(events) == (find_spec("tensorboard") is not None)
    assert names - set(events) == pictures | {
        "config.yaml", "metrics.jsonl", "summary.json", "report.html", "plan.txt", "checkpoints",
    }  # fmt: skip
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best.pt", "epoch-000002.pt", "epoch-000003.pt"}

    settings = Config(dataset=SMALL, num_parts=6, batch_size=2, hidden_channels=16, epochs=3, device="cpu")
    settings = settings.changed(history="device", features="device")  # chosen, as they fit
    assert Config.of(str(folder / "config.yaml")) == settings
    assert all((folder / name).read_bytes().startswith(PNG) for name in pictures)
    page = (folder / "report.html").read_text()
    assert (
        page.count("data:image/png;base64,") == 4
        and "<h1>synthetic:nodes=600" in page
        and "best validation accuracy" in page
    )
    assert "at the most" in (folder / "plan.txt").read_text()


def test_figures_of_a_run(finished: dict[str, Result], cwd: Path) -> None:
    folder = folder_in(finished["gas"], cwd)
    epochs = metrics(folder)
    assert [(record["epoch"], record["step"], record["steps"]) for record in epochs] == [(1, 3, 3), (2, 6, 3), (3, 9, 3)]
    for record in epochs:
        assert list(record) == [
            "epoch", "step", "steps", "loss", "age", "train", "val", "test", "best_val", "best_test", "seconds", "time",
            "memory",
        ]  # fmt: skip
        assert list(record["time"]) == ["data", "refresh", "train", "evaluation"]
        assert 0 < sum(record["time"].values()) < record["seconds"] and record["memory"] > 1 << 27
        assert 0 < record["age"] < 3 and all(0 <= record[part] <= 1 for part in ("train", "val", "test"))
    assert epochs[0]["loss"] > epochs[1]["loss"] > epochs[2]["loss"]
    best = max(epochs, key=lambda record: record["val"])
    result = summary(folder)
    assert (result["best_val"], result["best_test"]) == (best["val"], best["test"]) == (epochs[-1]["best_val"], best["test"])
    assert result["best_epoch"] == best["epoch"] and result["finished"] is True and result["epochs"] == 3
    assert result["metric"] == "accuracy" and result["seed"] == 0 and result["seconds"] >= epochs[-1]["seconds"]
    assert result["parameters"] == (16 * 16 + 16) * 2 + 16 * 4 + 4
    assert result["command"].startswith(f"python -m rest_triton.train --dataset {SMALL} --recipe none --num-parts 6")
    assert result["versions"]["torch"] == torch.__version__
    partition = result["partition"]
    assert (partition["asked"], partition["method"], partition["fallback"]) == ("auto", AUTO[0], None)
    assert partition["num_parts"] == 6 and 0 < partition["cut"] < 1 <= partition["balance"] < 2
    clusters = load_data(Config.of(str(folder / "config.yaml")).changed(root=str(cwd / "data"), device="cpu"))
    assert partition["halo_per_row"] == halo_per_row(clusters.adj, clusters.ptr, batch_size=2) > 0
    assert "halo_per_row" not in summary(cwd / "full")["partition"]


def test_what_is_printed_without_a_terminal(finished: dict[str, Result], cwd: Path) -> None:
    for name, result in finished.items():
        assert "\x1b" not in result.stdout + result.stderr and "\r" not in result.stdout + result.stderr
        assert name == "diverged" or (result.returncode == 0 and result.stderr == ""), result.stderr
    said = finished["gas"].stdout.splitlines()
    folder = folder_in(finished["gas"], cwd)
    assert re.fullmatch(r"memory, as planned: \d+\.\d MiB of host.*", said[0])
    assert "600 nodes, 4,990 edges (undirected), 16 features, 4 classes" in said[1] and f"6 clusters by {AUTO[0]}" in said[2]
    assert said[3] == f"results in {folder.relative_to(cwd)}"
    assert " ".join(said[4].split()) == (
        "epoch loss train val test best val → test age s/step data/refresh/train eval memory"
    )
    for line, record in zip(said[5:8], metrics(folder), strict=True):
        shown = [
            record["epoch"],
            f"{record['loss']:.4f}",
            *(f"{100 * record[part]:.2f} %" for part in ("train", "val", "test")),
        ]
        assert line.split()[:8] == " ".join(map(str, shown)).split() and len(line) == len(said[4])
        assert re.search(r" \d+\.\d  +\d+\.\d{3}  +\d+/\d+/\d+ %  +\d+\.\d\d s +\d+\.\d MiB$", line), line
    best = summary(folder)
    assert said[8].startswith(
        f"seed 0: best validation {100 * best['best_val']:.2f} % after epoch {best['best_epoch']}, test "
    )
    assert said[9] == f"report: {folder.relative_to(cwd) / 'report.html'}" and len(said) == 10


def test_each_method(finished: dict[str, Result], cwd: Path) -> None:
    gas, rest, importance, full = (metrics(folder_in(finished[name], cwd)) for name in ("gas", "rest", "importance", "full"))
    for epochs in (gas, rest, importance, full):
        assert [record["epoch"] for record in epochs] == [1, 2, 3] and epochs[2]["loss"] < epochs[0]["loss"]
    assert all(record["steps"] == 1 and "age" not in record for record in full)
    for mine, theirs in zip(gas, rest, strict=True):
        assert theirs["age"] < mine["age"] and theirs["time"]["refresh"] > 10 * mine["time"]["refresh"]
        assert theirs["loss"] != mine["loss"]
    assert all(record["time"]["refresh"] > 10 * gas[0]["time"]["refresh"] for record in importance)
    assert not (cwd / "full" / "age.png").exists() and ", gcn, full</h1>" in (cwd / "full" / "report.html").read_text()
    assert len({gas[0]["loss"], rest[0]["loss"], importance[0]["loss"], full[0]["loss"]}) == 4


def test_a_new_run_has_a_new_folder(finished: dict[str, Result], cwd: Path, refused: Refused) -> None:
    """Two runs that start at the same time get different folders, and an existing folder is not taken."""
    folders = {folder_in(finished[name], cwd) for name in ("gas", "other")}
    assert sorted(folder.name[-6:] for folder in folders) == ["-gas-1", "-gas-2"]
    assert refused("--dataset", SMALL, *FEW, "--run-dir", "rest") == (
        "rest holds a run already; resume it with --resume rest, or name another --run-dir"
    )
    (cwd / "a_file").touch()
    assert refused("--dataset", SMALL, *FEW, "--run-dir", "a_file").startswith(
        "a_file is a file; name a folder with --run-dir"
    )


def test_profile_and_evaluations(finished: dict[str, Result], cwd: Path) -> None:
    folder = folder_in(finished["other"], cwd)
    trace = json.loads((folder / "trace.json").read_text())
    assert any("history_spmm" in event.get("name", "") for event in trace["traceEvents"])
    epochs = metrics(folder)  # every fifth epoch is evaluated, the error is measured in every second, and both at the end
    assert [("val" in record, "error" in record) for record in epochs] == [(False, False), (True, True), (True, True)]
    assert all(record["error"] > 0 for record in epochs[1:]) and (folder / "error.png").exists()
    assert re.search(r"^ +1 +\d\.\d{4} +- +- +- +- +- ", finished["other"].stdout, re.MULTILINE)


def test_several_seeds(finished: dict[str, Result], cwd: Path) -> None:
    folders = [cwd / "seeds" / f"seed-{seed}" for seed in (1, 2)]
    results = [summary(folder) for folder in folders]
    assert [result["seed"] for result in results] == [1, 2]
    assert metrics(folders[0])[0]["loss"] != metrics(folders[1])[0]["loss"]
    a, b = (100 * result["best_test"] for result in results)
    assert abs(a - b) > 1  # or any spread would do
    assert f"test: {(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f} % over 2 seeds" in finished["seeds"].stdout.splitlines()
    page = (cwd / "seeds" / "report.html").read_text()
    assert "mean ± std of 2" in page and "<td>seed-1</td>" in page and (cwd / "seeds" / "accuracy.png").exists()
    assert Config.of(str(cwd / "seeds" / "config.yaml")).runs == 2
    assert Config.of(str(folders[1] / "config.yaml")).seed == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "product"], "'product' is not a data set: did you mean 'products'? known are: arxiv"),
        (["--dataset", "nothing.npz"], "nothing.npz does not exist; give the path of an .npz, or the name of a data set"),
        (["--dataset", "synthetic:product"], "is not a known shape; did you mean 'products'?"),
        (["--dataset", SMALL, "--model", "gcnn"], "model is 'gcnn': did you mean 'gcn'? known are: gcn, "),
        (["--dataset", SMALL, "--recipe", "none", "--num-parts", "6", "--batch-size", "7"], "batch_size is 7"),
        (["--dataset", SMALL, "--recipe", "none", "--split", "2"], "split is 2"),
        pytest.param(
            ["--dataset", SMALL, "--recipe", "none", "--device", "cuda"], "device is cuda, but torch finds no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)  # fmt: skip
def test_one_line_without_traceback(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (["y"], "own.npz has no labels; training needs features, labels, train_mask and val_mask"),
        (["x", "y"], "own.npz has no features and no labels; training"),
        (["train_mask", "val_mask", "test_mask"], "own.npz has no train_mask and no val_mask; training"),
        (["val_mask"], "own.npz has no val_mask; training"),
    ],
)
def test_graphs_that_cannot_be_trained_on(without: list[str], message: str, cwd: Path, refused: Refused) -> None:
    arrays = write_graph(cwd / "own.npz")
    known = {name: value for name, value in arrays.items() if name not in without}
    np.savez(cwd / "own.npz", **known, num_nodes=np.array(600))
    assert refused("--dataset", "own.npz", *FEW).startswith(message)


@pytest.mark.parametrize("mask", ["train_mask", "val_mask"])
def test_masks_without_a_node(mask: str, cwd: Path, refused: Refused) -> None:
    arrays = write_graph(cwd / "own.npz")
    np.savez(cwd / "own.npz", **(arrays | {mask: np.zeros(600, bool)}))
    assert refused("--dataset", "own.npz", *FEW).startswith(f"{mask} of own.npz selects no node; ")


def test_few_training_nodes_and_no_test(cwd: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    """Epochs of one cluster, most of them without a training node."""
    arrays = write_graph(cwd / "few.npz")
    arrays["train_mask"] &= np.cumsum(arrays["train_mask"]) == 1
    np.savez(cwd / "few.npz", **{name: value for name, value in arrays.items() if name != "test_mask"})
    command_line.main(
        ["--dataset", "few.npz", *FEW, "--batch-size", "1", "--max-steps", "1", "--epochs", "12", "--run-dir", "few"]
    )
    losses = [record["loss"] for record in metrics(cwd / "few")]
    assert None in losses and any(losses)
    said = capsys.readouterr().out
    assert re.search(r"^ +\d +- +\d+\.\d\d % +\d+\.\d\d % +- ", said, re.MULTILINE) and "at the same epoch" not in said
    assert summary(cwd / "few")["best_test"] is None


def test_a_defect_of_ours_keeps_its_traceback(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError that is not the user's leaves the command as it is. Python then prints its traceback."""

    def wrong(*_: Any, **__: Any) -> None:
        raise ValueError("an argument of an internal function")

    monkeypatch.setattr(Engine, "train", wrong)
    with pytest.raises(ValueError, match="an argument of an internal function"):
        here(command_line.main, *flags("--run-dir", "defect"), cwd=cwd)


def test_tables_on_disk_are_removed(finished: dict[str, Result], cwd: Path) -> None:
    """The checkpoints keep their copies of them."""
    folder = folder_in(finished["disk"], cwd)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {name for name in files if name.endswith((".tables", ".pt"))} == {
        "checkpoints/best.pt", *(f"checkpoints/epoch-{epoch:06}.{kind}" for epoch in (2, 3) for kind in ("pt", "tables"))
    }  # fmt: skip
    assert not [name for name in files if name.endswith((".rows", ".stamps"))] and not (folder / "history").exists()
    losses = [[record["loss"] for record in metrics(folder_in(finished[name], cwd))] for name in ("disk", "gas")]
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite(finished: dict[str, Result]) -> None:
    result = finished["diverged"]
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert re.match(
        r"the loss of step 2 is not finite: .*; a smaller --lr or --clip 1 may help; no checkpoint", result.stderr
    )


def test_a_model_of_ones_own(finished: dict[str, Result], cwd: Path) -> None:
    folder = folder_in(finished["sage"], cwd)
    assert folder.name == re.sub("[:,]", "-", SMALL) + "-sage-gas+rest-1"
    epochs = metrics(folder)
    assert [record["epoch"] for record in epochs] == [1, 2] and epochs[1]["loss"] < epochs[0]["loss"] and "age" in epochs[0]
    assert summary(folder)["command"].startswith(f"python {sys.argv[0]} --dataset {SMALL} ")
    assert ", sage, gas+rest</h1>" in (folder / "report.html").read_text()
