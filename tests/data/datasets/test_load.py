"""Loading by name: built once, stored below the root, mapped later."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rest_triton.data import datasets
from rest_triton.data.datasets import DATASETS, Dataset, load, synthetic
from rest_triton.data.graph import Graph
from rest_triton.data.prepared import Workspace
from rest_triton.utils.errors import UserError

from ..test_convert import fields, same
from ..test_graph import full_graph

SMALL = "synthetic:nodes=200,edges=1000"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A data set ``mine`` with three splits. The list has the split of every build."""
    built: list[int] = []

    def build(root: Path, split: int, workspace: Workspace) -> Graph:
        built.append(split)
        return full_graph(name="mine")

    monkeypatch.setitem(DATASETS, "mine", Dataset("mine", build, 40, 120, 5, 4, splits=3))
    return built


def test_built_once(counted: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = load("mine", tmp_path)
    second = load("mine", str(tmp_path))
    assert counted == [0]
    assert same(first, full_graph()) and same(second, full_graph()) and second.name == "mine"
    load("mine", tmp_path, split=2)
    load("mine", tmp_path, split=2)
    assert counted == [0, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", [lambda f: (f / "col.npy").write_bytes(b""), lambda f: (f / "graph.json").unlink()])
def test_built_again_if_damaged(
    damage: Callable[[Path], object], counted: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("mine", tmp_path)
    damage(tmp_path / "prepared" / "mine-split0")
    assert same(load("mine", tmp_path), full_graph())
    assert counted == [0, 0]
    assert "mine-split0" in capsys.readouterr().err
    load("mine", tmp_path)
    assert counted == [0, 0] and capsys.readouterr().err == ""


def test_built_again_for_a_new_revision(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load("mine", tmp_path)
    monkeypatch.setitem(DATASETS, "mine", replace(DATASETS["mine"], revision=2))
    load("mine", tmp_path)
    assert counted == [0, 0]
    assert "'revision': 1}; needed is" in capsys.readouterr().err


def test_carried_over(counted: list[int], tmp_path: Path) -> None:
    """A copy of the prepared folder is enough."""
    load("mine", tmp_path / "here")
    shutil.copytree(tmp_path / "here" / "prepared", tmp_path / "there" / "prepared")
    assert same(load("mine", tmp_path / "there"), full_graph())
    assert counted == [0]


def test_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **fields())
    graph = load(str(path), tmp_path / "root")
    assert same(graph, full_graph().symmetrise()) and graph.name == "mine"
    moved = tmp_path / "moved" / "mine.npz"
    moved.parent.mkdir()
    path.rename(moved)
    original = datasets.from_npz
    monkeypatch.setattr(datasets, "from_npz", lambda path: pytest.fail("parsed again"))
    assert same(load(str(moved), tmp_path / "root"), graph)
    monkeypatch.setattr(datasets, "from_npz", original)
    np.savez(moved, **fields(y=torch.zeros(40, dtype=torch.int64)))  # another file of the same name
    y = load(str(moved), tmp_path / "root").y
    assert y is not None and int(y.sum()) == 0
    with pytest.raises(UserError, match=r"none\.npz does not exist; give the path of an \.npz, or the name of a data set"):
        load(str(tmp_path / "none.npz"), tmp_path / "root")


def test_synthetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(SMALL, tmp_path)
    monkeypatch.setattr(synthetic, "generate", lambda *_: pytest.fail("made again"))
    assert same(load(SMALL, tmp_path), graph) and graph.name == SMALL
    (folder,) = (tmp_path / "prepared").iterdir()
    assert folder.name == "synthetic_nodes=200_edges=1000"


def test_bad_names(tmp_path: Path, counted: list[int]) -> None:
    with pytest.raises(
        UserError, match=r"'product' is not a data set: did you mean 'products'\? known are: arxiv, products, papers100m"
    ):
        load("product", tmp_path)
    with pytest.raises(UserError, match="'ogbn-arxiv' is not a data set: did you mean 'arxiv'"):
        load("ogbn-arxiv", tmp_path)
    with pytest.raises(UserError, match="split is 3; mine has 3 of them, 0 to 2"):
        load("mine", tmp_path, split=3)
    with pytest.raises(UserError, match="split is 1; arxiv has 1 of them"):
        load("arxiv", tmp_path, split=1)
    with pytest.raises(UserError, match="split is -1"):
        load(SMALL, tmp_path, split=-1)
    assert list(tmp_path.iterdir()) == []


def test_the_names() -> None:
    expected = "arxiv products papers100m mag240m reddit flickr yelp ppi cora citeseer pubmed wikics"
    more = "amazon-computers amazon-photo coauthor-cs coauthor-physics"
    assert list(DATASETS) == [*expected.split(), *more.split()]
    for name, dataset in DATASETS.items():
        assert dataset.name == name and min(dataset.nodes, dataset.edges, dataset.features, dataset.classes) > 0
