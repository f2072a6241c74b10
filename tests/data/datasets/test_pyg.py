"""The loaders of torch_geometric's data sets on small files in their own formats."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data.datasets import load, pyg
from rest_triton.data.datasets.splits import split_by_class
from rest_triton.data.features import SparseRows
from rest_triton.data.graph import Graph
from rest_triton.data.prepared import Workspace
from rest_triton.utils.errors import UserError

from . import pyg_files
from .ogb_files import edges_of

DATASETS = {d.name: d for d in pyg.DATASETS}
# name: its raw folder, a file in it, and the function that writes the folder
RAW: dict[str, tuple[str, str, Callable[[Path], dict[str, Any]]]] = {
    "reddit": ("Reddit2/raw", "feats.npy", pyg_files.write_saint),
    "flickr": ("Flickr/raw", "role.json", pyg_files.write_saint),
    "yelp": ("Yelp/raw", "adj_full.npz", lambda raw: pyg_files.write_saint(raw, multilabel=True)),
    "ppi": ("PPI/raw", "valid_labels.npy", pyg_files.write_ppi),
    "cora": ("Planetoid/Cora/raw", "ind.cora.graph", lambda raw: pyg_files.write_planetoid(raw, "cora")),
    "citeseer": (
        "Planetoid/CiteSeer/raw", "ind.citeseer.tx", lambda raw: pyg_files.write_planetoid(raw, "citeseer", gap=True),
    ),
    "pubmed": ("Planetoid/PubMed/raw", "ind.pubmed.x", lambda raw: pyg_files.write_planetoid(raw, "pubmed", density=0.4)),
    "wikics": ("WikiCS/raw", "data.json", pyg_files.write_wikics),
} | {
    name: (f"{folder}/raw", file, lambda raw, file=file, density=density: pyg_files.write_npz(raw, file, density=density))
    for name, folder, file, density in (
        ("amazon-computers", "Amazon/Computers", "amazon_electronics_computers.npz", 0.3),
        ("amazon-photo", "Amazon/Photo", "amazon_electronics_photo.npz", 0.3),
        ("coauthor-cs", "Coauthor/CS", "ms_academic_cs.npz", 0.02),
        ("coauthor-physics", "Coauthor/Physics", "ms_academic_phy.npz", 0.02),
    )
}  # fmt: skip


def write(name: str, root: Path) -> dict[str, Any]:
    return RAW[name][2](root / RAW[name][0])


def build(name: str, root: Path, split: int = 0) -> Graph:
    return DATASETS[name].build(root, split, Workspace(root, root))


def dense(graph: Graph) -> np.ndarray:
    assert graph.x is not None
    return (graph.x.dense() if isinstance(graph.x, SparseRows) else graph.x).numpy()


def ids(mask: torch.Tensor | None) -> list[int]:
    assert mask is not None
    return torch.nonzero(mask).flatten().tolist()


def check(graph: Graph, truth: dict[str, Any]) -> None:
    assert edges_of(graph) == sorted(truth["edges"]) and graph.directed is False
    assert graph.y is not None and np.array_equal(graph.y.numpy(), truth["y"])


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("torch_geometric.io.fs.cp", refuse)


@pytest.mark.parametrize("name", sorted(RAW))
def test_every_dataset_from_raw_and_from_processed_files(name: str, tmp_path: Path) -> None:
    truth = write(name, tmp_path)
    first = build(name, tmp_path)
    if "y" in truth:
        check(first, truth)
    assert first.name == name and first.multilabel == DATASETS[name].multilabel
    for path in (tmp_path / RAW[name][0]).iterdir():
        path.write_bytes(b"not read any more")
    again = build(name, tmp_path)
    assert edges_of(again) == edges_of(first) and np.array_equal(dense(again), dense(first))
    assert again.y is not None and first.y is not None and torch.equal(again.y, first.y)
    assert ids(again.val_mask) == ids(first.val_mask)


@pytest.mark.parametrize("name", ["reddit", "yelp", "flickr"])
def test_standardised_or_not(name: str, tmp_path: Path) -> None:
    truth = write(name, tmp_path)
    graph = build(name, tmp_path)
    expected = truth["x"].astype(np.float32)
    if name != "flickr":
        wide = expected.astype(np.float64)
        expected = (wide - wide.mean(0)) / np.maximum(wide.std(0, ddof=1), 1e-3)
        expected[:, 2] = 0
    np.testing.assert_allclose(dense(graph), expected, rtol=1e-6, atol=1e-7)
    assert [ids(m) for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert graph.y is not None and graph.y.dtype == (torch.int8 if name == "yelp" else torch.int64)


def test_standardise_accumulates_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large mean over a small deviation, which float32 sums would lose; a constant column; more than one chunk."""
    monkeypatch.setattr(pyg, "CHUNK_ROWS", 999)
    x = (torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0)) * 0.01 + 1000).contiguous()
    x[:, 1] = 0.1
    expected = (x.double() - x.double().mean(0)) / x.double().std(0)
    expected[:, 1] = 0
    torch.testing.assert_close(pyg.standardise(x).double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(pyg.standardise(torch.ones(1, 2)), torch.zeros(1, 2))


def test_ppi_is_inductive(tmp_path: Path) -> None:
    truth = write("ppi", tmp_path)
    graph = build("ppi", tmp_path)
    check(graph, truth)
    np.testing.assert_allclose(dense(graph), truth["x"], rtol=1e-6)
    assert graph.y is not None and graph.y.dtype == torch.int8 and graph.num_classes == 7
    parts = [ids(m) for m in (graph.train_mask, graph.val_mask, graph.test_mask)]
    assert parts == [list(range(7)), list(range(7, 12)), list(range(12, 15))]
    part = np.repeat([0, 1, 2], [7, 5, 3])
    assert all(part[a] == part[b] for a, b in edges_of(graph))


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_planetoid(name: str, tmp_path: Path) -> None:
    truth = write(name, tmp_path)
    graph = build(name, tmp_path)
    assert isinstance(graph.x, SparseRows) == (name != "pubmed")
    np.testing.assert_allclose(dense(graph), truth["x"] / np.maximum(truth["x"].sum(1, keepdims=True), 1), rtol=1e-6)
    assert ids(graph.train_mask) == list(range(4)) and ids(graph.val_mask) == list(range(4, 504))
    assert ids(graph.test_mask) == truth["test"]


@pytest.mark.parametrize("split", [0, 7, 19])
def test_wikics(split: int, tmp_path: Path) -> None:
    truth = write("wikics", tmp_path)
    graph = build("wikics", tmp_path, split)
    assert edges_of(graph) == sorted(truth["edges"]) and graph.directed is False
    assert ids(graph.train_mask) == np.flatnonzero(truth["train"][split]).tolist()
    assert ids(graph.val_mask) == np.flatnonzero(truth["stopping"][split]).tolist()
    assert ids(graph.test_mask) == [9, 10, 11] and isinstance(graph.x, torch.Tensor)


@pytest.mark.parametrize("name", ["amazon-photo", "coauthor-cs"])
def test_random_splits(name: str, tmp_path: Path) -> None:
    truth = write(name, tmp_path)
    y = torch.from_numpy(truth["y"])
    graphs = {split: build(name, tmp_path, split) for split in (0, 1, 19)}
    assert isinstance(graphs[0].x, SparseRows) == (name == "coauthor-cs")
    assert np.array_equal(dense(graphs[0]), truth["x"])
    for split, graph in graphs.items():
        check(graph, truth)
        assert graph.train_mask is not None and graph.val_mask is not None and graph.test_mask is not None
        assert torch.bincount(y[graph.train_mask]).tolist() == [20, 20, 20]
        assert torch.bincount(y[graph.val_mask]).tolist() == [30, 30, 3]  # of 23 nodes
        assert torch.equal(graph.test_mask, ~(graph.train_mask | graph.val_mask))
        assert torch.equal(graph.train_mask, split_by_class(y, split)["train_mask"])
    assert len({tuple(ids(graph.train_mask)) for graph in graphs.values()}) == 3


def test_splits_are_those_of_the_published_runs() -> None:
    """Published code seeds torch once and draws 20 permutations for each class in turn."""
    y = torch.arange(200) % 3
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        drawn = [[torch.randperm(int((y == c).sum())) for _ in range(20)] for c in range(3)]
    for split in (0, 11):
        masks = split_by_class(y, split)
        for c in range(3):
            order = torch.nonzero(y == c).flatten()[drawn[c][split]]
            assert masks["train_mask"][order].tolist() == [i < 20 for i in range(len(order))]
            assert masks["val_mask"][order].tolist() == [20 <= i < 50 for i in range(len(order))]
    assert ids(split_by_class(y, 0)["train_mask"])[:5] == [0, 12, 13, 15, 23]


@pytest.mark.parametrize("name", ["cora", "flickr", "yelp", "ppi", "amazon-photo"])
def test_without_a_network(name: str, tmp_path: Path, offline: None, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "not" / "there"
    with pytest.raises(UserError, match=f"^{name} is not on this machine .*Name or service not known") as caught:
        load(name, root)
    text = str(caught.value)
    assert str(root / RAW[name][0]) in text and "https://" in text
    assert (RAW[name][1] in text) or (name == "ppi" and "ppi.zip" in text)
    assert not any(tmp_path.iterdir())
    announced = f"downloading {name}: about a gigabyte or more, to {root / RAW[name][0]}\n"
    assert capsys.readouterr().err == (announced if name == "yelp" else "")


def test_only_missing_files_are_taken_from_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = write("cora", tmp_path)
    raw, elsewhere = tmp_path / RAW["cora"][0], tmp_path / "elsewhere"
    shutil.copytree(raw, elsewhere)
    (raw / "ind.cora.graph").unlink()
    (elsewhere / "ind.cora.x").write_bytes(b"another one")
    monkeypatch.setattr("torch_geometric.io.fs.cp", lambda url, to: shutil.copy(elsewhere / Path(url).name, to))
    check(build("cora", tmp_path), truth)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Planetoid", "elsewhere"]


@pytest.mark.parametrize("stop", [OSError("reset by peer"), KeyboardInterrupt()])
def test_an_interrupted_download_changes_nothing(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("flickr", tmp_path)
    raw = tmp_path / RAW["flickr"][0]
    whole = (raw / "adj_full.npz").read_bytes()
    for name in ("adj_full.npz", "role.json"):
        (raw / name).unlink()
    before = sorted(tmp_path.rglob("*"))
    calls = []

    def serve(url: str, context: Any) -> Any:
        calls.append(url)
        if len(calls) == 3:
            raise stop
        return io.BytesIO(whole)

    monkeypatch.setattr("urllib.request.urlopen", serve)
    with pytest.raises((UserError, KeyboardInterrupt)):
        build("flickr", tmp_path)
    assert len(calls) == 3 and sorted(tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # np.load leaves a damaged file open
@pytest.mark.parametrize("name", ["flickr", "yelp", "ppi", "cora", "wikics", "amazon-photo"])  # one per file format
def test_damaged_raw_files(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    path = tmp_path / RAW[name][0] / RAW[name][1]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=rf"^{name}: {path.parent} cannot be read .*delete it: it is downloaded again"):
        build(name, tmp_path)


def test_damaged_and_foreign_processed_files(tmp_path: Path) -> None:
    """A damaged file, a graph without edges, and features after another transform."""
    from torch_geometric.data import Data
    from torch_geometric.datasets import Flickr
    from torch_geometric.transforms import NormalizeFeatures

    write("flickr", tmp_path)
    processed = tmp_path / "Flickr" / "processed"

    def damage() -> None:
        build("flickr", tmp_path)
        (processed / "data.pt").write_bytes((processed / "data.pt").read_bytes()[:-100])

    def without_edges() -> None:
        build("flickr", tmp_path)
        Flickr.save([Data(x=torch.zeros(3, 2))], str(processed / "data.pt"))

    def transform() -> None:
        Flickr(str(tmp_path / "Flickr"), pre_transform=NormalizeFeatures())

    for spoil, said in ((damage, ""), (without_edges, "without edge_index"), (transform, "pre_transform")):
        spoil()
        remedy = r"delete it: it is made again from .*Flickr/raw"
        with pytest.raises(UserError, match=rf"Flickr/processed cannot be read .*{said}.*{remedy}"):
            build("flickr", tmp_path)
        shutil.rmtree(processed)
    build("flickr", tmp_path)


@pytest.mark.parametrize("module", ["torch_geometric.datasets", "scipy.sparse"])
def test_a_missing_package(module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write("flickr", tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r'flickr needs .*pip install "rest_triton\[datasets\]"'):
        build("flickr", tmp_path)
