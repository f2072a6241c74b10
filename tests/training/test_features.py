"""Runs with features in other places, by commands: the same losses, scores and predictions."""

from pathlib import Path

import numpy as np
import pytest

from rest_triton import predict
from rest_triton import train as training

from .commands import FEW, flags, folder_in, here, metrics, refusal, write_graph

SAME = ("loss", "train", "val", "test", "error", "stale_val", "staleness")


def test_the_same_run_in_every_place(tmp_path: Path) -> None:
    write_graph(tmp_path / "one.npz")
    more = ["--partition", "random", "--method", "gas+rest", "--error-every", "2"]
    found, predicted = [], []
    for number, own in enumerate(([], ["--features", "pinned"], ["--features", "disk"], ["--features", "disk"])):
        name = f"run-{number}"
        done = here(training.main, *flags(*more, *own, "--run-dir", name, dataset="one.npz"), cwd=tmp_path)
        found.append([{key: line.get(key) for key in SAME} for line in metrics(folder_in(done, tmp_path))])
        done = here(predict.main, "--run", name, "--out", f"{name}.npz", "--probabilities", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / f"{name}.npz") as file:
            predicted.append({key: file[key] for key in file.files})
    assert found[0] == found[1] == found[2] == found[3] and found[0][-1]["loss"] is not None
    for other in predicted[1:]:
        assert all((other[key] == predicted[0][key]).all() for key in ("prediction", "probabilities"))
    (folder,) = (tmp_path / "data" / "prepared").glob("one-*/features-*")
    assert len(list(folder.glob("*.rows"))) == 2


def test_sparse_features_have_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    part = np.arange(60) % 3
    np.savez(
        "words.npz", edge_index=np.stack([np.arange(59), np.arange(1, 60)]), y=np.arange(60) % 4,
        x_indptr=np.arange(61), x_indices=np.arange(60).astype(np.int32), x_data=np.ones(60, np.float32),
        x_shape=np.array([60, 2000]), train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
    )  # fmt: skip
    monkeypatch.setattr("rest_triton.train.keep_freed_memory", lambda: True)
    said = refusal(training.main, ["--dataset", "words.npz", *FEW, "--partition", "random", "--features", "disk"], capsys)
    assert said.startswith("features is disk in float32, but those of words.npz are sparse, which has one place and format")
