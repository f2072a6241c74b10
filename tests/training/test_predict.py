"""The predict command, for nodes with one label and nodes with several."""

import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch

from rest_triton import predict as command_line
from rest_triton import train as training
from rest_triton.config import Config

from . import commands
from .commands import CLASSES, LABELS, NODES, Result, flags, folder_in, here, metrics, refusal, run, summary

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predicting")


@pytest.fixture(scope="module")
def graphs(cwd: Path) -> dict[str, dict[str, Any]]:
    return {name: commands.write_graph(cwd / f"{name}.npz", several=name == "several") for name in ("one", "several")}


@pytest.fixture(scope="module")
def trained(graphs: dict[str, dict[str, Any]], cwd: Path) -> dict[str, Result]:
    """A run for each kind of labels, with good scores below 100 %."""
    more = ["--lr", "0.03", "--save-history", "--partition", "random"]
    others = dict(
        one=["--dropout", "0.3"],
        several=["--method", "gas+rest", "--frequency", "auto", "--runs", "2"],
    )
    return {
        name: here(training.main, *flags(*more, *own, "--run-dir", name, dataset=f"{name}.npz", epochs=6), cwd=cwd)
        for name, own in others.items()
    }


@pytest.fixture(scope="module")
def predicted(trained: dict[str, Result], cwd: Path) -> dict[str, Result]:
    """``one`` in a process of its own."""
    several = ["--run", "several/seed-1/checkpoints/epoch-000005.pt", "--out", "no_suffix", "--probabilities"]
    both = ["--probabilities", "--embeddings"]
    return dict(
        one=run("-m", "rest_triton.predict", "--run", "one", "--out", "one_predicted.npz", *both, cwd=cwd),
        several=here(command_line.main, *several, cwd=cwd),
    )


@pytest.fixture
def refused(cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    monkeypatch.chdir(cwd)
    for module in (command_line, training):
        monkeypatch.setattr(module, "keep_freed_memory", lambda: True)
    return lambda *arguments: refusal(command_line.main, arguments, capsys)


def scores_in(result: Result) -> dict[str, str]:
    """The scores by split in the last line."""
    return dict(re.findall(r"(train|val|test) (\d+\.\d\d) %", result.stdout.splitlines()[-1]))


def test_rows_are_in_the_order_of_the_data_set(
    graphs: dict[str, dict[str, Any]], predicted: dict[str, Result], cwd: Path
) -> None:
    assert predicted["one"].returncode == 0 and predicted["one"].stderr == ""
    graph, said = graphs["one"], scores_in(predicted["one"])
    with np.load(cwd / "one_predicted.npz") as found:
        prediction = found["prediction"]
    assert prediction.dtype == np.int32 and prediction.shape == (NODES,)
    assert len(np.unique(prediction)) == CLASSES  # or any order would do
    for part in ("train", "val", "test"):
        chosen = graph[f"{part}_mask"] & (graph["y"] >= 0)
        right = prediction[chosen] == graph["y"][chosen]
        assert f"{100 * right.mean():.2f}" == said[part]
        assert 0.5 < right.mean() < 1
    assert (graph["test_mask"] & (graph["y"] < 0)).sum() == 7  # which are left out


def test_it_is_the_best_epoch_that_predicts(predicted: dict[str, Result], cwd: Path) -> None:
    best = summary(cwd / "one")
    said = scores_in(predicted["one"])
    assert (said["val"], said["test"]) == (f"{100 * best['best_val']:.2f}", f"{100 * best['best_test']:.2f}")
    assert predicted["one"].stdout.splitlines()[0] == (
        f"one_predicted.npz: prediction [{NODES}], probabilities [{NODES}, {CLASSES}], embeddings [{NODES}, 16]"
    )
    assert predicted["one"].stdout.endswith(", by one/checkpoints/best.pt\n")


def test_probabilities_and_embeddings(predicted: dict[str, Result], cwd: Path) -> None:
    with np.load(cwd / "one_predicted.npz") as found:
        probabilities, prediction, embeddings = (found[name] for name in ("probabilities", "prediction", "embeddings"))
        assert len(found.files) == 3 and prediction.dtype == np.int32
    assert probabilities.dtype == np.float32 and probabilities.shape == (NODES, CLASSES)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-6) and probabilities.min() >= 0
    assert (probabilities.argmax(1) == prediction).all()
    assert embeddings.dtype == np.float32 and embeddings.shape == (NODES, 16)
    of_class = np.stack([embeddings[prediction == c].mean(0) for c in range(CLASSES)])
    nearest = np.linalg.norm(embeddings[:, None] - of_class, axis=2).argmin(1)
    assert (nearest == prediction).mean() > 0.8  # rows in the same order, and not in any


def test_nodes_with_several_labels(
    graphs: dict[str, dict[str, Any]], trained: dict[str, Result], predicted: dict[str, Result], cwd: Path
) -> None:
    assert trained["several"].returncode == 0 and trained["several"].stderr == "", trained["several"].stderr
    folder = folder_in(trained["several"], cwd) / "seed-1"
    assert summary(folder)["metric"] == "micro-F1" and "best validation micro-F1" in (folder / "report.html").read_text()
    assert metrics(folder)[-1]["loss"] < metrics(folder)[0]["loss"]
    config = Config.of(str(folder / "config.yaml"))
    assert (config.method, config.frequency) == ("gas+rest", "auto")  # options that no other method takes

    assert predicted["several"].returncode == 0
    with np.load(cwd / "no_suffix") as found:
        prediction, probabilities = found["prediction"], found["probabilities"]
        assert len(found.files) == 2
    assert prediction.dtype == np.bool_ and prediction.shape == probabilities.shape == (NODES, LABELS)
    assert ((probabilities > 0.5) == prediction).all() and probabilities.max() < 1 and probabilities.min() > 0
    graph, said = graphs["several"], scores_in(predicted["several"])
    for part in ("train", "val", "test"):
        chosen = graph[f"{part}_mask"] & (graph["y"] >= 0).all(1)
        mine, wanted = prediction[chosen], graph["y"][chosen] == 1
        f1 = 2 * (mine & wanted).sum() / (mine.sum() + wanted.sum())
        assert f"{100 * f1:.2f}" == said[part] and 0.3 < f1 < 1
    epoch = metrics(folder)[4]  # a checkpoint that was named predicts, not the best one
    assert said == {part: f"{100 * epoch[part]:.2f}" for part in ("train", "val", "test")}


def test_what_is_refused(predicted: dict[str, Result], cwd: Path, refused: Refused) -> None:
    out = ["--out", "x.npz"]
    assert refused("--run", "nowhere", *out).startswith(
        "nowhere is not the folder of a run: it has no config.yaml; name one"
    )
    assert refused("--run", "several", *out) == "several has runs of several seeds; name one, such as --run several/seed-0"
    assert refused("--run", "one", "--out", "no/x.npz") == (
        f"{cwd / 'no'} is not a folder; make it, or name a file in another one with --out"
    )
    assert refused("--run", "one", "--out", "one").startswith("one is a folder; name a file in it with --out, such as one/")
    assert refused("--run", "one/checkpoints/epoch-000001.pt", *out).startswith(
        "one/checkpoints/epoch-000001.pt does not exist; train until"
    )
    shutil.copytree(cwd / "one", cwd / "own")
    config = cwd / "own" / "config.yaml"
    config.write_text(config.read_text().replace("model: gcn", "model: sage"))
    assert refused("--run", "own", *out).startswith("model is 'sage', a custom model; predict with its class: ")


def test_a_model_of_one_layer_has_no_embeddings(graphs: dict[str, dict[str, Any]], cwd: Path, refused: Refused) -> None:
    common = ["--dataset", "one.npz", *commands.FEW, "--partition", "random", "--epochs", "1"]
    training.main([*common, "--num-layers", "1", "--run-dir", "single"])
    assert refused("--run", "single", "--out", "x.npz", "--embeddings").startswith("a model of one layer has no embeddings")
    command_line.main(["--run", "single", "--out", "x.npz"])
    with np.load("x.npz") as found:
        assert sorted(found.files) == ["prediction"]


def test_a_run_with_old_names_predicts(predicted: dict[str, Result], cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's folder with old names of settings is read."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: True)
    shutil.copytree("one", "old")
    config = Path("old", "config.yaml")
    text = config.read_text()
    config.write_text(text.replace("num_parts: ", "parts: ").replace("batch_size: ", "per_batch: "))
    assert config.read_text().count("parts: 6\nper_batch: 2\n") == 1
    command_line.main(["--run", "old", "--out", "old.npz", "--probabilities"])
    with np.load("old.npz") as found, np.load("one_predicted.npz") as wanted:
        assert (found["probabilities"] == wanted["probabilities"]).all()


def test_all_of_the_file_or_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    command_line.write_npz(path, {"a": torch.arange(3)})

    def half(file: IO[bytes], **arrays: Any) -> None:
        file.write(b"PK")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="no space left"):
        command_line.write_npz(path, {"b": torch.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"] and np.load(path)["a"].tolist() == [0, 1, 2]
