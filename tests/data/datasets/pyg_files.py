"""Small graphs in the raw files that torch_geometric downloads and processes."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

RNG = np.random.default_rng


def write_planetoid(raw: Path, name: str, *, density: float = 0.05, gap: bool = False) -> dict[str, Any]:
    """``ind.cora.x`` and its seven companions. 4 nodes to train on, 500 to validate on, 10 to test on."""
    raw.mkdir(parents=True)
    rng = RNG(1)
    known, classes, width = 520, 4, 40
    test = np.setdiff1d(np.arange(known, known + 11), [known + 5]) if gap else np.arange(known, known + 10)
    nodes = int(test[-1]) + 1
    x = (rng.random((nodes, width)) < density).astype(np.float32)
    x[:, 0] = 1  # no row without features, but for those of nodes that are in no file
    label = rng.integers(classes, size=nodes)
    label[:classes] = np.arange(classes)
    y = np.eye(classes, dtype=np.int32)[label]
    if gap:
        x[known + 5], y[known + 5], label[known + 5] = 0, 0, 0
    order = rng.permutation(test)
    graph = {i: [(i + 1) % nodes, (i - 1) % nodes] for i in range(nodes)}
    graph[3] += [3, 4]  # a loop and an edge that is there already
    graph = {i: [j for j in near if not (gap and known + 5 in (i, j))] for i, near in graph.items()}
    parts = {
        "x": sp.csr_matrix(x[:4]), "tx": sp.csr_matrix(x[order]), "allx": sp.csr_matrix(x[:known]),
        "y": y[:4], "ty": y[order], "ally": y[:known], "graph": graph,
    }  # fmt: skip
    for part, value in parts.items():
        (raw / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, 2))
    (raw / f"ind.{name}.test.index").write_text("".join(f"{i}\n" for i in order))
    edges = {(i, j) for i, near in graph.items() for j in near if i != j}
    return {"x": x, "y": label, "edges": edges, "test": test.tolist()}


def write_saint(raw: Path, *, multilabel: bool = False) -> dict[str, Any]:
    """``adj_full.npz``, ``feats.npy``, ``class_map.json`` and ``role.json`` of Reddit2, Flickr and Yelp."""
    raw.mkdir(parents=True)
    rng = RNG(2)
    nodes = 10
    pairs = {(i, (i + 3) % nodes) for i in range(nodes)} | {(0, 1)}
    edges = sorted(pairs | {(b, a) for a, b in pairs})
    row, col = np.array(edges).T
    adj = sp.csr_matrix((np.ones(len(edges)), (row, col)), (nodes, nodes))
    np.savez(raw / "adj_full.npz", data=adj.data, indices=adj.indices, indptr=adj.indptr, shape=adj.shape)
    x = rng.normal(3.0, 2.0, size=(nodes, 4))
    x[:, 2] = 0.1  # its mean in floating point is not exactly itself
    np.save(raw / "feats.npy", x)
    y = rng.integers(2, size=(nodes, 6)) if multilabel else np.arange(nodes) % 3
    (raw / "class_map.json").write_text(json.dumps({str(i): y[i].tolist() for i in range(nodes)}))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 1, 2, 3], "va": [4, 5], "te": [6, 7, 8, 9]}))
    return {"x": x, "y": y, "edges": set(edges)}


def write_ppi(raw: Path) -> dict[str, Any]:
    """Two graphs to train on, one to validate on, one to test on; those of a split are in one file, numbered."""
    raw.mkdir(parents=True)
    rng = RNG(3)
    features, labels, edges = [], [], set()
    begin = 0
    for split, sizes in {"train": [4, 3], "valid": [5], "test": [3]}.items():
        nodes, links, graph = sum(sizes), [], []
        for number, size in enumerate(sizes):
            first = len(graph)
            links += [{"source": first + i, "target": first + i + 1} for i in range(size - 1)]
            links += [{"source": first, "target": first}]
            graph += [20 + number] * size
        for link in links:
            if link["source"] != link["target"]:
                a, b = begin + link["source"], begin + link["target"]
                edges |= {(a, b), (b, a)}
        about = {"directed": False, "multigraph": False, "graph": {}, "nodes": [{"id": i} for i in range(nodes)]}
        (raw / f"{split}_graph.json").write_text(json.dumps(about | {"links": links}))
        features.append(rng.normal(size=(nodes, 5)))
        labels.append(rng.integers(2, size=(nodes, 7)))
        np.save(raw / f"{split}_feats.npy", features[-1])
        np.save(raw / f"{split}_labels.npy", labels[-1])
        np.save(raw / f"{split}_graph_id.npy", np.array(graph))
        begin += nodes
    return {"x": np.concatenate(features), "y": np.concatenate(labels), "edges": edges}


def write_wikics(raw: Path) -> dict[str, Any]:
    raw.mkdir(parents=True)
    rng = RNG(4)
    nodes = 12
    links = [[(i + 1) % nodes, (i + 5) % nodes] for i in range(nodes)]
    links[2].append(2)
    train, val, stopping = (np.zeros((20, nodes), bool) for _ in range(3))
    for split in range(20):
        order = rng.permutation(9)
        train[split, order[:3]], val[split, order[3:6]], stopping[split, order[6:]] = True, True, True
    test = np.arange(nodes) >= 9
    x = rng.normal(size=(nodes, 6)).round(3)
    about = {
        "features": x.tolist(), "labels": (np.arange(nodes) % 3).tolist(), "links": links, "train_masks": train.tolist(),
        "val_masks": val.tolist(), "stopping_masks": stopping.tolist(), "test_mask": test.tolist(),
    }  # fmt: skip
    (raw / "data.json").write_text(json.dumps(about))
    pairs = {(i, j) for i, near in enumerate(links) for j in near}
    return {"x": x, "train": train, "stopping": stopping, "edges": pairs | {(b, a) for a, b in pairs}}


def write_npz(raw: Path, file: str, *, density: float) -> dict[str, Any]:
    """Amazon's and Coauthor's: two sparse matrices and labels. The last class has too few nodes for a whole split."""
    raw.mkdir(parents=True)
    rng = RNG(5)
    y = np.repeat([0, 1, 2], [70, 60, 23])
    rng.shuffle(y)
    nodes = len(y)
    pairs = {(i, (i * 7 + 1) % nodes) for i in range(nodes)}
    row, col = np.array(sorted(pairs | {(5, 5)})).T
    adj = sp.csr_matrix((np.ones(len(row)), (row, col)), (nodes, nodes))
    attr = sp.csr_matrix(3.0 * (rng.random((nodes, 30)) < density))
    pieces = {
        f"{name}_{piece}": getattr(matrix, piece)
        for name, matrix in (("adj", adj), ("attr", attr))
        for piece in ("data", "indices", "indptr", "shape")
    }
    np.savez(raw / file, labels=y, **pieces)
    edges = {(a, b) for a, b in pairs if a != b}
    return {"x": (attr.toarray() > 0).astype(np.float32), "y": y, "edges": edges | {(b, a) for a, b in edges}}
