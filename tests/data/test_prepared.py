"""Prepared graphs on disk: complete or absent."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data import prepared
from rest_triton.data.features import SparseRows
from rest_triton.data.graph import Graph
from rest_triton.utils.errors import UserError

from .test_convert import same
from .test_graph import X, full_graph

ABOUT = {"dataset": "test", "revision": 1}


def store(root: Path, graph: Graph | None = None) -> Path:
    folder = root / "prepared" / "test"
    prepared.write(folder, root, ABOUT, lambda workspace: graph or full_graph())
    return folder


@pytest.mark.parametrize(
    "change",
    [{}, dict(x=SparseRows.from_dense(X * (X > 0))), dict(x=None), dict(y=None, train_mask=None), dict(x=X.half()),
     dict(x=X.bfloat16()), dict(symmetrise=True), dict(y=torch.ones(40, 3, dtype=torch.int8))],
    ids=["dense", "sparse", "no-x", "no-y", "half", "bfloat16", "undirected", "multilabel"],
)  # fmt: skip
def test_there_and_back(tmp_path: Path, change: dict[str, Any]) -> None:
    graph = full_graph(**change)
    folder = store(tmp_path, graph)
    back = prepared.read(folder, tmp_path, ABOUT)
    assert same(graph, back) and same(back, graph)
    assert back.fingerprint == graph.fingerprint and back.name == graph.name
    assert [p.name for p in folder.parent.iterdir()] == ["test"]
    for file in folder.glob("*.npy"):
        np.load(file, allow_pickle=False)  # readable without this package


def test_mapped_not_read(tmp_path: Path) -> None:
    folder = store(tmp_path)
    back = prepared.read(folder, tmp_path, ABOUT)
    maps = Path("/proc/self/maps").read_text() if sys.platform.startswith("linux") else str(folder / "x.npy")
    assert str(folder / "x.npy") in maps and str(folder / "col.npy") in maps
    assert isinstance(back.x, torch.Tensor)
    back.x[0, 0] = 123  # in memory only
    assert prepared.read(folder, tmp_path, ABOUT).x[0, 0] == X[0, 0]


def test_carried_to_another_machine(tmp_path: Path) -> None:
    folder = store(tmp_path / "here")
    folder.rename(tmp_path / "copied")
    (tmp_path / "there" / "prepared").mkdir(parents=True)
    (tmp_path / "copied").rename(tmp_path / "there" / "prepared" / "test")
    assert same(prepared.read(tmp_path / "there" / "prepared" / "test", tmp_path / "there", ABOUT), full_graph())


def test_arrays_written_in_place_and_referred_to(tmp_path: Path) -> None:
    theirs = tmp_path / "elsewhere" / "features.npy"
    theirs.parent.mkdir()
    np.save(theirs, X.half().numpy())

    def build(workspace: prepared.Workspace) -> Graph:
        y = workspace.new_array("y", (40,), np.dtype(np.int64))
        y[:] = np.arange(40) % 4
        return full_graph(y=torch.from_numpy(y), x=torch.from_numpy(workspace.refer("x", theirs)))

    folder = tmp_path / "prepared" / "test"
    graph = prepared.write(folder, tmp_path, ABOUT, build)
    assert same(graph, full_graph(x=X.half()))
    assert not (folder / "x.npy").exists() and (folder / "y.npy").exists()
    theirs.unlink()
    with pytest.raises(UserError, match=r"features.npy has 0 bytes instead of"):
        prepared.read(folder, tmp_path, ABOUT)


def cut(folder: Path, name: str, keep: float) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: int(len(whole) * keep)])


def edit(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps(manifest | changes))


DAMAGE = {
    "no-manifest": (lambda f: (f / "graph.json").unlink(), "has no graph.json"),
    "cut-manifest": (lambda f: cut(f, "graph.json", 0.5), "graph.json cannot be read"),
    "not-a-manifest": (lambda f: (f / "graph.json").write_text("[1]"), "has format None, this version .* writes 1"),
    "other-version": (lambda f: edit(f, format=99), "has format 99, this version of rest_triton writes 1"),
    "other-source": (lambda f: edit(f, about={"dataset": "cora"}), r"was made from \{'dataset': 'cora'\}; needed is"),
    "empty-list": (lambda f: edit(f, arrays={}), r"graph.json is not complete \(TypeError"),
    "no-classes": (lambda f: edit(f, arrays={"col": {}}), r"graph.json is not complete \(KeyError"),
    "cut-array": (lambda f: cut(f, "col.npy", 0.9), r"col.npy has \d+ bytes instead of 608"),
    "lost-array": (lambda f: (f / "x.npy").unlink(), "x.npy has 0 bytes instead of 928"),
    "foreign-array": (
        lambda f: (f / "x.npy").write_bytes(b"\0" * (f / "x.npy").stat().st_size), "x.npy cannot be read",
    ),
    "other-shape": (
        lambda f: np.save(f / "x.npy", np.zeros((20, 10), np.float32)), r"x.npy is torch.float32 \[20, 10\] instead of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed(kind: str, tmp_path: Path) -> None:
    folder = store(tmp_path)
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(UserError, match=message):
        prepared.read(folder, tmp_path, ABOUT)
    prepared.write(folder, tmp_path, ABOUT, lambda workspace: full_graph())
    assert same(prepared.read(folder, tmp_path, ABOUT), full_graph())


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    def build(workspace: prepared.Workspace) -> Graph:
        workspace.new_array("x", (1000, 10), np.dtype(np.float32))[:] = 1
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        prepared.write(tmp_path / "new" / "prepared" / "test", tmp_path / "new", ABOUT, build)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").mkdir()
    with pytest.raises(RuntimeError, match="no"):
        prepared.write(tmp_path / "new" / "prepared" / "test", tmp_path / "new", ABOUT, build)
    assert list(tmp_path.rglob("*")) == [tmp_path / "new"]  # it was there before


def _write_slowly(root: Path) -> None:
    def build(workspace: prepared.Workspace) -> Graph:
        workspace.new_array("x", (40, 5), np.dtype(np.float32))
        (root / "started").touch()
        time.sleep(60)
        return full_graph()

    prepared.write(root / "prepared" / "test", root, ABOUT, build)


def test_killed_half_way(tmp_path: Path) -> None:
    """The leftovers of a killed process are not taken for a graph. The next process deletes them."""
    process = multiprocessing.get_context("spawn").Process(target=_write_slowly, args=(tmp_path,))
    process.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    folder = tmp_path / "prepared" / "test"
    assert not folder.exists() and len(list(folder.parent.iterdir())) == 1
    store(tmp_path)
    assert [p.name for p in folder.parent.iterdir()] == ["test"]


def test_the_work_of_a_running_process_is_kept_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS there is no /proc."""
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **k: not str(path).startswith("/proc") and exists(path, **k))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        work = tmp_path / "prepared" / f".test.partial-{running.pid}"
        work.mkdir(parents=True)
        store(tmp_path)
        assert work.is_dir()
    store(tmp_path)  # the process has ended
    assert not work.is_dir()


def test_a_folder_of_format_1(tmp_path: Path) -> None:
    """Written by hand as version 0.1 does. A change of the layout must raise FORMAT."""
    arrays = {
        "rowptr": np.array([0, 1, 3, 4]), "col": np.array([1, 0, 2, 1], np.int32), "y": np.array([0, 1, -1]),
        "train_mask": np.array([True, False, False]), "x": np.eye(3, 2, dtype=np.float32),
    }  # fmt: skip
    folder = tmp_path / "prepared" / "tiny"
    folder.mkdir(parents=True)
    entries = {}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        entries[name] = {
            "file": f"{name}.npy", "below": "folder", "bytes": (folder / f"{name}.npy").stat().st_size,
            "shape": list(array.shape), "dtype": str(array.dtype),
        }  # fmt: skip
    manifest = {
        "format": 1, "about": ABOUT, "name": "tiny", "directed": False, "num_classes": 2, "fingerprint": "f" * 32,
        "width": 2, "arrays": entries,
    }  # fmt: skip
    (folder / "graph.json").write_text(json.dumps(manifest))
    graph = prepared.read(folder, tmp_path, ABOUT)
    assert all(np.array_equal(getattr(graph, name).numpy(), array) for name, array in arrays.items())
    assert (graph.name, graph.directed, graph.num_classes, graph.fingerprint) == ("tiny", False, 2, "f" * 32)


def test_no_ogb_no_pyg(tmp_path: Path) -> None:
    """Optional packages cost seconds to import. A command that does not need them does not import them."""
    code = """
import sys
import rest_triton.data.datasets as d, rest_triton.sampling.batch, rest_triton.data.partition
d.load("synthetic:nodes=100,edges=400", sys.argv[1]); d.load("synthetic:nodes=100,edges=400", sys.argv[1])
print([m for m in ("ogb", "torch_geometric", "pandas", "sklearn", "outdated") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"
