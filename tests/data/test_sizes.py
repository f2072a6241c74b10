"""The sizes of data sets, from names, manifests and headers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton.data.datasets import load
from rest_triton.data.sizes import UNKNOWN_CLASSES, Sizes, sizes_of
from rest_triton.training.plan import plan
from rest_triton.utils.errors import UserError

from ..settings import Settings


def test_sizes_as_published_and_synthetic(tmp_path: Path) -> None:
    papers = sizes_of("papers100m", tmp_path)
    assert (papers.nodes, papers.edges, papers.features, papers.classes) == (111_059_956, 3_228_124_712, 128, 172)
    assert not papers.directed and not papers.prepared and papers.feature_bytes == 4
    assert sizes_of("mag240m", tmp_path).feature_bytes == 2 and sizes_of("yelp", tmp_path).multilabel
    made_up = sizes_of("synthetic:products@0.1,classes=5", tmp_path)
    assert (made_up.nodes, made_up.edges, made_up.features, made_up.classes) == (244_903, 12_371_828, 100, 5)
    with pytest.raises(ValueError, match="did you mean 'products'"):
        sizes_of("product", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_sizes_of_a_prepared_graph(tmp_path: Path) -> None:
    name = "synthetic:nodes=500,edges=3000,features=16,classes=4"
    graph = load(name, tmp_path)
    found = sizes_of(name, tmp_path)
    assert found == Sizes(
        500, graph.num_edges, 16, 4, False, None, name, prepared=True, fingerprint=graph.fingerprint, training=0.5
    )
    (manifest,) = tmp_path.glob("prepared/*/graph.json")
    changed = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(changed | {"format": -1}))
    assert sizes_of(name, tmp_path).edges == 3000
    manifest.write_text("{")
    assert not sizes_of(name, tmp_path).prepared


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, edge_index=np.array([[0, 1, 2], [1, 2, 3]]), **arrays)
    return path


def test_sizes_of_an_npz_by_its_headers(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz", x=np.full((400, 50), 7.0, np.float32), y=np.arange(400) % 3)
    raw = bytearray(path.read_bytes())
    middle = raw.index(np.float32(7.0).tobytes() * 1000) + 2000
    raw[middle : middle + 4] = b"\0\0\0\0"
    path.write_bytes(bytes(raw))
    with pytest.raises(ValueError, match="CRC"):
        load(str(path), tmp_path)
    found = sizes_of(str(path), tmp_path)
    assert (found.nodes, found.edges, found.features, found.feature_nnz, found.directed) == (400, 6, 50, None, False)
    assert found.classes == UNKNOWN_CLASSES and "classes assumed" in found.note


def test_sizes_of_other_npz(tmp_path: Path) -> None:
    pieces = dict(x_indptr=np.zeros(5, np.int64), x_indices=np.zeros(9, np.int32), x_data=np.zeros(9), x_shape=[4, 30])
    sparse = sizes_of(str(write_npz(tmp_path / "a.npz", y=np.zeros((4, 6), np.int8), **pieces)), tmp_path)
    assert (sparse.nodes, sparse.features, sparse.feature_nnz) == (4, 30, 9)
    assert (sparse.classes, sparse.multilabel) == (6, True) and "classes" not in sparse.note
    assert sizes_of(str(write_npz(tmp_path / "b.npz", num_nodes=4)), tmp_path).nodes == 4
    with pytest.raises(ValueError, match="b has 0 features; a model needs at least one"):
        plan(sizes_of(str(tmp_path / "b.npz"), tmp_path), Settings())
    with pytest.raises(ValueError, match=r"c\.npz is not an \.npz of a graph .*edge_index is missing"):
        np.savez(tmp_path / "c.npz", x=np.zeros((4, 2)))
        sizes_of(str(tmp_path / "c.npz"), tmp_path)
    with pytest.raises(ValueError, match=r"d\.npz is not an \.npz"):
        (tmp_path / "d.npz").write_bytes(b"nothing")
        sizes_of(str(tmp_path / "d.npz"), tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        sizes_of(str(tmp_path / "e.npz"), tmp_path)


def test_sizes_of_a_prepared_npz(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz", x=np.ones((4, 5), np.float32), y=np.array([0, 1, 2, 0]))
    load(str(path), tmp_path)
    found = sizes_of(str(path), tmp_path)
    assert found.prepared and (found.nodes, found.edges, found.classes) == (4, 6, 3)
    write_npz(path, x=np.ones((7, 5), np.float32))  # another graph by the same name
    assert not sizes_of(str(path), tmp_path).prepared
