"""The loaders of OGB's data sets on small files in OGB's formats."""

import importlib.util
import sys
import tracemalloc
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data.datasets import files, load, ogb
from rest_triton.data.graph import Graph
from rest_triton.data.prepared import Workspace
from rest_triton.utils.errors import UserError

from . import ogb_files
from .ogb_files import NODES, SPLIT, SYMMETRIC, edges_of, features

BUILD = {d.name: d.build for d in ogb.DATASETS}


def build(name: str, root: Path) -> Graph:
    prepared = root / "prepared"
    prepared.mkdir(exist_ok=True)
    return BUILD[name](root, 0, Workspace(prepared, root))


def check_nodes(graph: Graph, num_classes: int) -> None:
    assert isinstance(graph.x, torch.Tensor) and graph.y is not None
    np.testing.assert_allclose(graph.x.numpy(), features(), rtol=1e-6)
    assert graph.x.dtype == torch.float32 and graph.num_classes == num_classes
    assert graph.y.tolist() == [i % 4 for i in range(NODES)]
    for field, part in ogb.SPLIT_NAMES.items():
        assert torch.nonzero(getattr(graph, field)).flatten().tolist() == SPLIT[part]


@pytest.mark.parametrize("stored", [None, "NumPy 2", "NumPy 1"])
@pytest.mark.parametrize(("name", "folder"), [("arxiv", "ogbn_arxiv"), ("products", "ogbn_products")])
def test_raw_and_processed_csv_files(name: str, folder: str, stored: str | None, tmp_path: Path) -> None:
    """Processed files are pickles with the function names of NumPy 1 or 2. Those of products have both directions."""
    ogb_files.write_csv_graph(tmp_path / folder, "time" if name == "arxiv" else "sales_ranking")
    if stored is not None:
        with ogb_files.numpy_1_names() if stored == "NumPy 1" else nullcontext():
            ogb_files.process(tmp_path / folder)
    graph = build(name, tmp_path)
    both = [*ogb_files.EDGES.T.tolist(), *ogb_files.EDGES[::-1].T.tolist()]
    assert edges_of(graph) == sorted(SYMMETRIC if name == "arxiv" else map(tuple, both))
    assert graph.directed is False
    check_nodes(graph, 40 if name == "arxiv" else 47)


def test_addresses_and_releases_are_those_of_ogb() -> None:
    import pandas

    (package,) = importlib.util.find_spec("ogb").submodule_search_locations  # found, not imported
    table = pandas.read_csv(Path(package) / "nodeproppred" / "master.csv", index_col=0)
    for source in (ogb.ARXIV, ogb.PRODUCTS, ogb.PAPERS100M):
        theirs = table[source.folder_name.replace("_", "-")]
        assert (source.url, source.inside) == (theirs["url"], theirs["download_name"])
        assert f"RELEASE_v{theirs['version']}.txt" == ogb.MARKER


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_split_dict_goes_before_lists(kind: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    other = {"train": kind([11]), "valid": kind([10]), "test": kind([9])}
    torch.save(other, folder / "split" / "time" / "split_dict.pt", pickle_protocol=4)
    graph = build("arxiv", tmp_path)
    assert graph.train_mask is not None and graph.test_mask is not None
    assert torch.nonzero(graph.train_mask).tolist() == [[11]] and torch.nonzero(graph.test_mask).tolist() == [[9]]


@pytest.mark.parametrize(("compressed", "fortran"), [(False, False), (True, True)])
def test_papers100m_in_chunks(fortran: bool, compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 40)  # several chunks, the last one smaller
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M", compressed=compressed, fortran=fortran)
    before = set(tmp_path.rglob("*"))
    graph = build("papers100m", tmp_path)
    assert edges_of(graph) == sorted(SYMMETRIC) and graph.directed is False and graph.num_classes == 172
    stored = np.load(tmp_path / "prepared" / "x.npy", mmap_mode="r")
    assert np.array_equal(stored, features()) and stored.dtype == np.float32
    assert isinstance(graph.x, torch.Tensor) and torch.equal(graph.x, torch.from_numpy(features()))
    assert graph.y is not None and graph.y.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, -1, -1, -1]
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "prepared", tmp_path / "prepared" / "x.npy"}


def test_a_zipped_array_is_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 18)
    whole = np.arange(1 << 20, dtype=np.float32).reshape(-1, 128)  # 4 MiB
    np.savez_compressed(tmp_path / "a.npz", x=whole)
    tracemalloc.start()
    try:
        out = files.unzip_array(
            tmp_path / "a.npz", "x", lambda shape, dtype: np.memmap(tmp_path / "out", dtype, "w+", shape=shape)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(out, whole) and peak < 2 << 20


@pytest.mark.parametrize(("tests_apart", "protocol"), [(True, 2), (False, 4)])
def test_mag240m(tests_apart: bool, protocol: int, tmp_path: Path) -> None:
    with ogb_files.numpy_1_names():
        ogb_files.write_mag240m(tmp_path / "mag240m_kddcup2021", tests_apart=tests_apart, protocol=protocol)
    (tmp_path / "prepared").mkdir()
    workspace = Workspace(tmp_path / "prepared", tmp_path)
    graph = BUILD["mag240m"](tmp_path, 0, workspace)
    assert edges_of(graph) == sorted(SYMMETRIC) and graph.num_classes == 153
    assert isinstance(graph.x, torch.Tensor) and graph.x.dtype == torch.float16
    assert np.array_equal(graph.x.numpy(), features().astype(np.float16))
    assert workspace.referred == {"x": "mag240m_kddcup2021/processed/paper/node_feat.npy"}
    assert graph.y is not None and graph.y.tolist()[8:] == [0, -1, -1, -1]
    assert graph.test_mask is not None and torch.nonzero(graph.test_mask).flatten().tolist() == [9, 10, 11]


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "owned",)

    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    torch.save({"graph": Bad(), "labels": 0}, folder / "processed" / "data_processed", pickle_protocol=4)
    with pytest.raises(UserError, match=r"data_processed cannot be read .*contains pathlib.*delete it: .*raw"):
        build("arxiv", tmp_path)
    assert not (tmp_path / "owned").exists()


WRITE = {
    "arxiv": lambda folder: ogb_files.write_csv_graph(folder, "time"),
    "papers100m": ogb_files.write_binary_graph,
    "mag240m": ogb_files.write_mag240m,
}
FOLDER = {"arxiv": ogb.ARXIV, "papers100m": ogb.PAPERS100M, "mag240m": ogb.MAG240M}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("arxiv", "raw/node-feat.csv.gz"),
        ("arxiv", "split/time/valid.csv.gz"),
        ("papers100m", "raw/data.npz"),
        ("mag240m", "meta.pt"),
        ("mag240m", "processed/paper/node_label.npy"),
    ],
)
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_file_is_named(damage: str, name: str, file: str, tmp_path: Path) -> None:
    folder = tmp_path / FOLDER[name].folder_name
    WRITE[name](folder)
    whole = (folder / file).read_bytes()
    (folder / file).unlink()
    if damage == "truncated":
        (folder / file).write_bytes(whole[:-9])
    said = "is missing; get it from" if damage == "missing" else r"cannot be read .*; delete it: get it from"
    with pytest.raises(UserError, match=rf"{name}: .*{file} {said} .*{FOLDER[name].url}"):
        build(name, tmp_path)


def test_a_checksum_is_verified(tmp_path: Path) -> None:
    """Every array can be read, but the features are not those that were stored."""
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M")
    path = tmp_path / "ogbn_papers100M" / "raw" / "data.npz"
    with zipfile.ZipFile(path) as file:
        checksum = file.getinfo("node_feat.npy").CRC.to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(checksum, bytes(reversed(checksum))))
    with pytest.raises(UserError, match=r"data.npz cannot be read .*CRC"):
        build("papers100m", tmp_path)


def test_a_full_disk_is_not_the_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4 * 12 * 5 - 1))
    with pytest.raises(UserError, match=r"^papers100m needs .* GB in .*prepared, which has .* free"):
        build("papers100m", tmp_path)


@pytest.mark.parametrize("bad", [-1, NODES, 2**32])
def test_ids_are_checked_before_they_are_narrowed(bad: int, tmp_path: Path) -> None:
    edges = ogb_files.EDGES.copy()
    edges[1, 3] = bad
    ogb_files.write_binary_graph(tmp_path / "ogbn_papers100M", edges=edges)
    with pytest.raises(UserError, match=rf"data.npz .*edge_index has ids from .*{bad}.*there are 12 nodes"):
        build("papers100m", tmp_path)


def test_another_release_is_refused_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_arxiv"
    ogb_files.write_csv_graph(folder, "time")
    (folder / "RELEASE_v1.txt").rename(folder / "RELEASE_v9.txt")
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=r"arxiv: .*ogbn_arxiv has no RELEASE_v1.txt, only \['RELEASE_v9.txt'\]"):
        build("arxiv", tmp_path)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", sorted(BUILD))
def test_without_a_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    root = tmp_path / "not" / "there"
    with pytest.raises(UserError, match=f"^{name} is not on this machine .*Name or service not known") as caught:
        load(name, root)
    assert ".zip" in str(caught.value) and str(root) in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ogb_files.write_csv_graph(tmp_path / "ogbn_arxiv", "time")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r'arxiv needs .*pip install "rest_triton\[datasets\]"'):
        build("arxiv", tmp_path)
