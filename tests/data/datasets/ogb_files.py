"""Small graphs in the files that ogb downloads: raw CSVs or zipped arrays, splits, release markers, processed folders."""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

NODES = 12
SPLIT = {"train": [0, 3, 4], "valid": [1, 5], "test": [2, 6, 7, 8]}
# One edge there both ways, one twice, one loop.
EDGES = np.array([[0, 1, 3, 3, 5, 9, 7], [1, 0, 4, 4, 6, 2, 7]])
SYMMETRIC = {(0, 1), (1, 0), (3, 4), (4, 3), (5, 6), (6, 5), (9, 2), (2, 9), (7, 7)}


def features(width: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NODES, width)).astype(np.float32)


def labels(unknown: bool = False) -> np.ndarray:
    y = np.arange(NODES).reshape(-1, 1) % 4
    if not unknown:
        return y
    y = y.astype(np.float32)
    y[9:] = np.nan
    return y


def edges_of(graph: Any) -> list[tuple[int, int]]:
    """(source, target) of every edge, sorted."""
    target = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    return sorted(zip(graph.col.tolist(), target.tolist(), strict=True))


def _csv(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(np.asarray(values)).to_csv(path, header=False, index=False, compression="gzip")


def write_split(folder: Path) -> None:
    for part, ids in SPLIT.items():
        _csv(folder / f"{part}.csv.gz", ids)


def write_csv_graph(folder: Path, split: str) -> None:
    """What is in arxiv.zip and products.zip."""
    raw = folder / "raw"
    _csv(raw / "edge.csv.gz", EDGES.T)
    _csv(raw / "num-node-list.csv.gz", [NODES])
    _csv(raw / "num-edge-list.csv.gz", [EDGES.shape[1]])
    _csv(raw / "node-feat.csv.gz", features())
    _csv(raw / "node-label.csv.gz", labels())
    _csv(raw / "node_year.csv.gz", np.full((NODES, 1), 2017))
    write_split(folder / "split" / split)
    (folder / "processed").mkdir()
    (folder / "RELEASE_v1.txt").write_text("")


def process(folder: Path) -> None:
    """Let ogb itself write its processed file, and empty the raw ones, from which it was made."""
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]  # else ogb contacts the network at its import
    from ogb.nodeproppred import NodePropPredDataset

    NodePropPredDataset(folder.name.replace("_", "-"), str(folder.parent))
    for path in (folder / "raw").iterdir():
        path.write_bytes(b"")


def write_binary_graph(folder: Path, *, compressed: bool = True, fortran: bool = False, edges: np.ndarray = EDGES) -> None:
    """What is in papers100M-bin.zip."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    save = np.savez_compressed if compressed else np.savez
    order: Any = np.asfortranarray if fortran else np.ascontiguousarray
    save(
        raw / "data.npz",
        edge_index=order(edges),
        node_feat=order(features()),
        node_year=np.full((NODES, 1), 2017),
        num_nodes_list=np.array([NODES]),
        num_edges_list=np.array([edges.shape[1]]),
    )
    save(raw / "node-label.npz", node_label=labels(unknown=True))
    write_split(folder / "split" / "time")
    (folder / "RELEASE_v1.txt").write_text("")


def write_mag240m(folder: Path, *, tests_apart: bool = True, protocol: int = 2) -> None:
    """What is in mag240m_kddcup2021.zip."""
    papers, cites = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    papers.mkdir(parents=True)
    cites.mkdir()
    np.save(papers / "node_feat.npy", features().astype(np.float16))
    np.save(papers / "node_label.npy", labels(unknown=True)[:, 0])
    np.save(papers / "node_year.npy", np.full(NODES, 2017))
    np.save(cites / "edge_index.npy", EDGES)
    split = {"train": np.array([0, 3, 4]), "valid": np.array([1, 5])}
    hidden = np.array([9, 10, 11])
    split |= (
        {"test-whole": hidden, "test-dev": hidden[:2], "test-challenge": hidden[2:]} if tests_apart else {"test": hidden}
    )
    meta = {"paper": NODES, "author": 3, "institution": 2, "num_classes": 153}
    torch.save(meta, folder / "meta.pt", pickle_protocol=protocol)
    torch.save(split, folder / "split_dict.pt", pickle_protocol=protocol)
    (folder / "RELEASE_v1.txt").write_text("")


@contextmanager
def numpy_1_names() -> Iterator[None]:
    """Arrays pickled in this block name the functions that rebuild them as NumPy 1 did."""
    functions = [np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]]
    names = [f.__module__ for f in functions]
    for f in functions:
        f.__module__ = "numpy.core.multiarray"
    try:
        assert b"numpy.core.multiarray" in pickle.dumps(np.zeros(1), 4)
        yield
    finally:
        for f, name in zip(functions, names, strict=True):
            f.__module__ = name
