"""The loaders of OGB's data sets on small files in its own formats."""

import gzip
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data.datasets import files, ogb
from rest_triton.data.graph import Graph
from rest_triton.data.prepared import Workspace

from . import ogb_files
from .ogb_files import NODES, SPLIT, SYMMETRIC, edges_of, features

BUILD = {d.name: d.build for d in ogb.DATASETS}


def build(name: str, root: Path) -> Graph:
    prepared = root / "prepared"
    prepared.mkdir(exist_ok=True)
    return BUILD[name](root, 0, Workspace(prepared, root))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))


def store_as_ogb(folder: Path) -> None:
    """Have ogb itself write its processed file, then take the files away from which it was made."""
    from ogb.nodeproppred import NodePropPredDataset

    NodePropPredDataset("-".join(folder.name.split("_")), str(folder.parent))
    for path in (folder / "raw").iterdir():
        path.unlink()


def check_nodes(graph: Graph, num_classes: int) -> None:
    assert isinstance(graph.x, torch.Tensor) and graph.y is not None
    np.testing.assert_allclose(graph.x.numpy(), features(), rtol=1e-6)
    assert graph.x.dtype == torch.float32 and graph.num_classes == num_classes
    assert graph.y.tolist() == [i % 4 for i in range(NODES)]
    for field, part in ogb.SPLIT_NAMES.items():
        assert torch.nonzero(getattr(graph, field)).flatten().tolist() == SPLIT[part]


@pytest.mark.parametrize("names", ["today's", "NumPy 1's"])
@pytest.mark.parametrize("stored", [False, True])
def test_arxiv_is_symmetric(stored: bool, names: str, tmp_path: Path) -> None:
    ogb_files.write_csv_graph(tmp_path / "ogbn_arxiv", "time")
    if stored and names == "today's":
        store_as_ogb(tmp_path / "ogbn_arxiv")
    elif stored:
        with ogb_files.numpy_1_names():
            store_as_ogb(tmp_path / "ogbn_arxiv")
        raw = (tmp_path / "ogbn_arxiv" / "processed" / "data_processed").read_bytes()
        assert b"numpy.core.multiarray" in raw and b"numpy._core" not in raw
    graph = build("arxiv", tmp_path)
    assert edges_of(graph) == sorted(SYMMETRIC) and graph.directed is False
    check_nodes(graph, 40)


@pytest.mark.parametrize("stored", [False, True])
def test_products_is_as_ogb_gives_it(stored: bool, tmp_path: Path) -> None:
    ogb_files.write_csv_graph(tmp_path / "ogbn_products", "sales_ranking")
    if stored:
        store_as_ogb(tmp_path / "ogbn_products")
    graph = build("products", tmp_path)
    both = [(s, t) for s, t in ogb_files.EDGES.T.tolist()] + [(t, s) for s, t in ogb_files.EDGES.T.tolist()]
    assert edges_of(graph) == sorted(both) and graph.directed is False
    check_nodes(graph, 47)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_split_in_one_file_goes_before_lists(kind: Any, protocol: int, tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    other = {"train": kind([11]), "valid": kind([10]), "test": kind([9])}
    torch.save(other, folder / "split" / "time" / "split_dict.pt", pickle_protocol=protocol)
    graph = build("arxiv", tmp_path)
    assert graph.train_mask is not None and graph.test_mask is not None
    assert torch.nonzero(graph.train_mask).tolist() == [[11]] and torch.nonzero(graph.test_mask).tolist() == [[9]]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("fortran", [False, True])
def test_papers100m_in_pieces(fortran: bool, compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 5)  # several pieces, the last one smaller
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M", compressed=compressed, fortran=fortran)
    before = set(tmp_path.rglob("*"))
    graph = build("papers100m", tmp_path)
    assert edges_of(graph) == sorted(SYMMETRIC) and graph.directed is False and graph.num_classes == 172
    stored = np.load(tmp_path / "prepared" / "x.npy", mmap_mode="r")
    assert np.array_equal(stored, features()) and stored.dtype == np.float32
    assert isinstance(graph.x, torch.Tensor) and torch.equal(graph.x, torch.from_numpy(features()))
    assert graph.y is not None and graph.y.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, -1, -1, -1]
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "prepared", tmp_path / "prepared" / "x.npy"}


@pytest.mark.parametrize("compressed", [False, True])
def test_zipped_array_never_is_in_memory(compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 1 << 16)
    whole = np.arange(1 << 20, dtype=np.float32).reshape(-1, 128)  # 4 MiB
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", x=whole)
    tracemalloc.start()
    try:
        out = files.unzip_array(
            tmp_path / "a.npz", "x", lambda shape, dtype: np.memmap(tmp_path / "out", dtype, "w+", shape=shape)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(out, whole) and peak < 2 << 20


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("tests_apart", [True, False])
def test_mag240m(tests_apart: bool, protocol: int, tmp_path: Path) -> None:
    with ogb_files.numpy_1_names():
        ogb_files.write_mag240m(tmp_path / "mag240m_kddcup2021", tests_apart=tests_apart, protocol=protocol)
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    workspace = Workspace(prepared, tmp_path)
    graph = BUILD["mag240m"](tmp_path, 0, workspace)
    assert edges_of(graph) == sorted(SYMMETRIC) and graph.num_classes == 153
    assert isinstance(graph.x, torch.Tensor) and graph.x.dtype == torch.float16
    assert np.array_equal(graph.x.numpy(), features().astype(np.float16))
    assert workspace.referred == {"x": "mag240m_kddcup2021/processed/paper/node_feat.npy"} and not list(prepared.iterdir())
    assert graph.y is not None and graph.y.tolist()[8:] == [0, -1, -1, -1]
    assert graph.test_mask is not None and torch.nonzero(graph.test_mask).flatten().tolist() == [9, 10, 11]


def test_what_a_pickle_wants_to_run_is_refused(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "owned",)

    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    torch.save({"graph": Bad(), "labels": 0}, folder / "processed" / "data_processed", pickle_protocol=4)
    with pytest.raises(ValueError, match=r"data_processed .*asks for pathlib.*delete it: it is made from .*raw"):
        build("arxiv", tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("file", ["edge", "num-node-list", "node-feat", "node-label"])
@pytest.mark.parametrize("damage", ["truncated", "foreign", "missing"])
def test_broken_raw_files_are_named(damage: str, file: str, tmp_path: Path) -> None:
    ogb_files.write_csv_graph(tmp_path / "ogbn_arxiv", "time")
    path = tmp_path / "ogbn_arxiv" / "raw" / f"{file}.csv.gz"
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(whole[:-9] if damage == "truncated" else b"<html>Not Found</html>")
    with pytest.raises((ValueError, FileNotFoundError), match=rf"arxiv: .*raw/{file}.csv.gz .*arxiv.zip") as caught:
        build("arxiv", tmp_path)
    assert isinstance(caught.value, FileNotFoundError) == (damage == "missing")
    assert not (tmp_path / "ogbn_arxiv" / "processed" / "data_processed").exists()


def test_wrong_contents_of_a_whole_file(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    with gzip.open(folder / "split" / "time" / "valid.csv.gz", "wt") as file:
        file.write("1\n12\n")
    with pytest.raises(ValueError, match=r"valid.csv.gz .*names nodes from 1 to 12, the graph has 12"):
        build("arxiv", tmp_path)
    with gzip.open(folder / "raw" / "edge.csv.gz", "wt") as file:
        file.write("0,1\n<html>,2\n")
    with pytest.raises(ValueError, match=r"arxiv: a file in .*raw does not hold what it should .*html.*arxiv.zip"):
        build("arxiv", tmp_path)


def test_truncated_processed_and_split(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    split = folder / "split" / "time" / "split_dict.pt"
    split.write_bytes(b"PK\3\4 cut off")
    with pytest.raises(ValueError, match=r"split_dict.pt does not hold .*delete it"):
        build("arxiv", tmp_path)
    (folder / "processed" / "data_processed").write_bytes(b"PK\3\4 cut off")
    with pytest.raises(ValueError, match=r"data_processed does not hold .*delete it: it is made from .*raw"):
        build("arxiv", tmp_path)


@pytest.mark.parametrize("what", ["data", "node-label"])
def test_broken_papers100m(what: str, tmp_path: Path) -> None:
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M")
    path = tmp_path / "ogbn_papers100M" / "raw" / f"{what}.npz"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=rf"papers100m: .*{what}.npz cannot be read .*get it from .*papers100M-bin"):
        build("papers100m", tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_inside_a_zipped_array(compressed: bool, tmp_path: Path) -> None:
    """Every array can be read, and the features are not those that were stored: only the checksum knows."""
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M", compressed=compressed)
    path = tmp_path / "ogbn_papers100M" / "raw" / "data.npz"
    with zipfile.ZipFile(path) as file:
        checksum = file.getinfo("node_feat.npy").CRC.to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(checksum, bytes(reversed(checksum))))
    with pytest.raises(ValueError, match=r"data.npz cannot be read .*node_feat.npy is damaged"):
        build("papers100m", tmp_path)


def test_a_full_disk_is_not_the_files_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4 * 12 * 5 - 1))
    with pytest.raises(OSError, match=r"papers100m needs .* GB in .*prepared, which has .* free") as caught:
        build("papers100m", tmp_path)
    assert "delete" not in str(caught.value) and not list((tmp_path / "prepared").iterdir())


@pytest.mark.parametrize("bad", [-1, NODES, 2**32])
def test_ids_are_checked_before_they_are_narrowed(bad: int, tmp_path: Path) -> None:
    edges = ogb_files.EDGES.copy()
    edges[1, 3] = bad
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M", edges=edges)
    with pytest.raises(ValueError, match=rf"data.npz .*edge_index has ids from .*{bad}.*there are 12 nodes"):
        build("papers100m", tmp_path)


@pytest.mark.parametrize("name, folder", [("products", "ogbn_products"), ("mag240m", "mag240m_kddcup2021")])
def test_another_release_is_refused_and_kept(name: str, folder: str, tmp_path: Path) -> None:
    if name == "mag240m":
        ogb_files.write_mag240m(tmp_path / folder)
    else:
        ogb_files.write_csv_graph(tmp_path / folder, "sales_ranking")
    (tmp_path / folder / "RELEASE_v1.txt").rename(tmp_path / folder / "RELEASE_v9.txt")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=rf"{name}: .*{folder} has no RELEASE_v1.txt, only \['RELEASE_v9.txt'\]"):
        BUILD[name](tmp_path, 0, Workspace(tmp_path, tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", sorted(BUILD))
def test_without_a_network(name: str, tmp_path: Path, offline: None) -> None:
    root = tmp_path / "not" / "there"
    with pytest.raises(ConnectionError) as caught:
        BUILD[name](root, 0, Workspace(tmp_path, root))
    link = {"arxiv": "arxiv.zip", "products": "products.zip", "papers100m": "papers100M-bin.zip"}.get(name, "mag240m_kddcup")
    assert str(caught.value).startswith(f"{name} is not on this machine") and link in str(caught.value)
    assert str(root) in str(caught.value) and "Name or service not known" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_import_of_ogb_asks_no_network(tmp_path: Path) -> None:
    """In a new process: no thread, no package that looks for updates, and that package is importable afterwards."""
    script = """
import sys, threading
from rest_triton.data.datasets import ogb
assert not {"ogb", "pandas", "torch_geometric"} & set(sys.modules)
started = []
start = threading.Thread.start
threading.Thread.start = lambda self: (started.append(self._target.__module__ if self._target else None), start(self))
ogb.release_of("arxiv", "ogbn-arxiv")
assert "ogb" in sys.modules and "outdated" not in sys.modules
assert "ogb.version" not in started, started
import outdated
assert outdated.check_outdated
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr


def test_outdated_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = type(threading)("outdated")
    monkeypatch.setitem(sys.modules, "outdated", mine)
    ogb.import_ogb("arxiv", "ogb")
    assert sys.modules["outdated"] is mine


def test_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(ImportError, match=r'arxiv needs .*pip install "rest_triton\[datasets\]"'):
        build("arxiv", tmp_path)


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ogb_files.write_csv_graph(tmp_path / "ogbn_arxiv", "time")
    build("arxiv", tmp_path)
    assert capsys.readouterr() == ("", "")
