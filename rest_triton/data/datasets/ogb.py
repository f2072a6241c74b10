"""The node classification graphs of the Open Graph Benchmark, from the files that ogb downloads.

| name       | folder below the root | preparation                                                                        |
|------------|-----------------------|------------------------------------------------------------------------------------|
| arxiv      | ogbn_arxiv            | every edge both ways, each once                                                    |
| products   | ogbn_products         | as ogb gives it: every edge of the file both ways                                  |
| papers100m | ogbn_papers100M       | every edge both ways, each once; most labels unknown; features go straight to disk |
| mag240m    | mag240m_kddcup2021    | papers and their citations, every edge both ways, each once; features stay in place |

ogb's own classes are not used to load: they ask questions on the terminal, end the process when the answer is no, and cannot
read back under torch 2.6 and newer what they wrote. Its readers and its table of addresses and releases are.
"""

import csv
import importlib
import io
import math
import sys
import tempfile
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph import Graph
from ..prepared import Workspace
from ...utils.progress import progress
from .download import download_folder, missing_package, need_room, require
from .files import blaming_files, load_arrays, unzip_array
from .registry import Dataset
from .splits import mask

SPLIT_NAMES = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


def import_ogb(dataset: str, module: str) -> Any:
    """Import a module of ogb, which at its first import starts a thread that asks the network for a newer version.

    It does so with the package ``outdated`` and does without where that cannot be imported: for this moment it cannot.
    """
    before = sys.modules.get("outdated", ...)
    sys.modules["outdated"] = None  # type: ignore[assignment]  # how Python is told that a module cannot be had
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(dataset, error) from error
    finally:
        if before is ...:
            del sys.modules["outdated"]
        else:
            sys.modules["outdated"] = before


def release_of(dataset: str, name: str) -> dict[str, str]:
    """ogb's line about one of its data sets: url, version, download_name, split, num classes ..."""
    package = Path(import_ogb(dataset, "ogb").__file__).parent
    with open(package / "nodeproppred" / "master.csv", newline="") as file:
        return {row[""]: row[name] for row in csv.DictReader(file)}


def find_folder(dataset: str, folder: Path, url: str, inside: str, version: str) -> Path:
    """The folder of a data set, downloaded if it is not there. One of another release is refused, never replaced."""
    if not folder.exists():
        download_folder(dataset, url, folder, inside)
    marker = folder / f"RELEASE_v{version}.txt"
    if not marker.exists():
        found = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
        raise ValueError(
            f"{dataset}: {folder} has no {marker.name}, only {found}: it is not whole, or not the release that the "
            f"installed ogb expects. Move it away to have {url} downloaded in its place, or install its ogb"
        )
    return folder


def _again(folder: Path, url: str) -> str:
    return f"get it from {url}, or move {folder} away to have everything downloaded again"


def read_split(dataset: str, folder: Path, num_nodes: int, remedy: str) -> dict[str, Any]:
    """The masks from ``split_dict.pt``, or from three lists of ids where there is none."""
    whole = folder / "split_dict.pt"
    if whole.exists():
        with blaming_files(dataset, [whole], remedy):
            ids = load_arrays(whole)
            return {field: mask(ids[part], num_nodes, str(whole)) for field, part in SPLIT_NAMES.items()}
    pandas = require(dataset, "pandas")
    masks: dict[str, Any] = {}
    for field, part in SPLIT_NAMES.items():
        path = folder / f"{part}.csv.gz"
        with blaming_files(dataset, [path], remedy):
            masks[field] = mask(pandas.read_csv(path, header=None)[0].to_numpy(np.int64), num_nodes, str(path))
    return masks


def read_labels(labels: np.ndarray) -> Tensor:
    """int64[N]; NaN, which is how ogb writes a label that is not known, becomes -1."""
    labels = labels.reshape(-1)
    if np.issubdtype(labels.dtype, np.floating):
        labels = np.where(np.isnan(labels), -1, labels)
    return torch.from_numpy(labels.astype(np.int64))


def _read_arrays(dataset: str, folder: Path, release: dict[str, str], remedy: str) -> tuple[dict[str, Any], np.ndarray]:
    processed, raw = folder / "processed" / "data_processed", folder / "raw"
    if processed.exists():
        again = f"it is made from {raw}" if (raw / "edge.csv.gz").exists() else remedy
        with blaming_files(dataset, [processed], again):
            stored = load_arrays(processed)
            return stored["graph"], stored["labels"]
    pandas = require(dataset, "pandas")
    reader = import_ogb(dataset, "ogb.io.read_graph_raw")
    names = ("edge", "num-node-list", "num-edge-list", "node-feat", "node-label")
    paths = [raw / f"{name}.csv.gz" for name in names]
    with blaming_files(dataset, paths, remedy):
        for path in paths:
            path.stat()  # ogb takes missing features for none
        # It tells that it is loading, and shows a bar of one step: what is shown here is enough, and a log needs neither.
        with redirect_stdout(io.StringIO()), nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            (graph,) = reader.read_csv_graph_raw(str(raw), add_inverse_edge=release["add_inverse_edge"] == "True")
        return graph, pandas.read_csv(paths[-1], header=None).to_numpy()


def _build_csv(name: str, ogb_name: str, symmetrise: bool, root: Path, split: int, workspace: Workspace) -> Graph:
    release = release_of(name, ogb_name)
    folder = root / ogb_name.replace("-", "_")
    find_folder(name, folder, release["url"], release["download_name"], release["version"])
    remedy = _again(folder, release["url"])
    with progress(f"reading {name}"):
        graph, labels = _read_arrays(name, folder, release, remedy)
        num_nodes = int(graph["num_nodes"])
        return Graph.from_edges(
            torch.from_numpy(np.ascontiguousarray(graph["edge_index"])),
            num_nodes,
            symmetrise=symmetrise,
            x=torch.from_numpy(graph["node_feat"]).float(),
            y=read_labels(labels),
            num_classes=int(release["num classes"]),
            name=name,
            **read_split(name, folder / "split" / release["split"], num_nodes, remedy),
        )


def _with_features(graph: Graph, x: np.ndarray, path: Path) -> Graph:
    """Features larger than memory: they are not read once more to see whether all are finite."""
    if x.ndim != 2 or x.shape[0] != graph.num_nodes:
        raise ValueError(
            f"{path} has features of shape {list(x.shape)}, the graph {graph.num_nodes} nodes; download it again"
        )
    return replace(graph, x=torch.from_numpy(x))


def _build_papers100m(root: Path, split: int, workspace: Workspace) -> Graph:
    """57 GB of features and 26 GB of edges are never in memory: they pass through it in pieces, from a zip file to the disk.

    A citation is used both ways, as in arxiv. OGB's own baseline for this graph does so: along the citations only, a paper
    would not see who cites it.
    """
    name, ogb_name = "papers100m", "ogbn-papers100M"
    release = release_of(name, ogb_name)
    folder = root / "ogbn_papers100M"
    find_folder(name, folder, release["url"], release["download_name"], release["version"])
    remedy = _again(folder, release["url"])
    data, label = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"
    with progress(f"reading {name}") as shown:
        with blaming_files(name, [label], remedy), np.load(label) as labels:
            y = read_labels(labels["node_label"])
        with blaming_files(name, [data], remedy), tempfile.TemporaryFile(dir=root) as scratch:
            with np.load(data) as small:
                num_nodes = int(small["num_nodes_list"][0])
            index = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)

            def features(shape: tuple[int, ...], stored: np.dtype) -> np.ndarray:
                need_room(name, 4 * math.prod(shape), workspace.folder)
                return workspace.new_array("x", shape, np.dtype(np.float32))

            def ids(shape: tuple[int, ...], stored: np.dtype) -> np.ndarray:
                need_room(name, index.itemsize * math.prod(shape), root)
                return np.memmap(scratch, index, "w+", shape=shape)

            def within(piece: np.ndarray) -> None:
                if int(piece.min()) < 0 or int(piece.max()) >= num_nodes:
                    raise ValueError(f"edge_index has ids from {piece.min()} to {piece.max()}, there are {num_nodes} nodes")

            def finite(piece: np.ndarray) -> None:
                if not np.isfinite(piece).all():
                    raise ValueError("node_feat has values that are not finite")

            x = unzip_array(data, "node_feat", features, check=finite, say=shown.say)
            edges = unzip_array(data, "edge_index", ids, check=within, say=shown.say)
        masks = read_split(name, folder / "split" / release["split"], num_nodes, remedy)
        shown.say("sorting edges")
        # The scratch file has no name any more; the map keeps its contents until the edges are sorted.
        graph = Graph.from_edges(
            torch.from_numpy(edges),
            num_nodes,
            symmetrise=True,
            y=y,
            num_classes=int(release["num classes"]),
            name=name,
            **masks,
        )
        return _with_features(graph, x, data)


def _build_mag240m(root: Path, split: int, workspace: Workspace) -> Graph:
    """The papers and who cites whom; authors and institutions are left out.

    The labels of test papers are secret, -1 here. test_mask has all of them, ogb's test-dev and test-challenge.
    """
    name = "mag240m"
    published = import_ogb(name, "ogb.lsc.mag240m").MAG240MDataset
    folder = root / "mag240m_kddcup2021"
    find_folder(name, folder, published.url, folder.name, str(published.version))
    remedy = _again(folder, published.url)
    meta_path, split_path = folder / "meta.pt", folder / "split_dict.pt"
    papers = folder / "processed" / "paper"
    cites = folder / "processed" / "paper___cites___paper" / "edge_index.npy"
    with progress(f"reading {name}") as shown:
        with blaming_files(name, [meta_path], remedy):
            meta = load_arrays(meta_path)
            num_nodes, num_classes = int(meta["paper"]), int(meta["num_classes"])
        with blaming_files(name, [split_path], remedy):
            ids = load_arrays(split_path)
            import_ogb(name, "ogb.lsc.utils").split_test(ids)  # older files have one list for the two tests
            parts = {"train_mask": "train", "val_mask": "valid", "test_mask": "test-whole"}
            masks: dict[str, Any] = {field: mask(ids[part], num_nodes, str(split_path)) for field, part in parts.items()}
        with blaming_files(name, [papers / "node_label.npy"], remedy):
            y = read_labels(np.load(papers / "node_label.npy"))
        with blaming_files(name, [papers / "node_feat.npy"], remedy):
            x = workspace.refer("x", papers / "node_feat.npy")
        with blaming_files(name, [cites], remedy):
            edges = np.load(cites, mmap_mode="c")  # torch warns of maps that cannot be written; this one is not written to
        shown.say("sorting edges")
        graph = Graph.from_edges(
            torch.from_numpy(edges), num_nodes, symmetrise=True, y=y, num_classes=num_classes, name=name, **masks
        )
        return _with_features(graph, x, papers / "node_feat.npy")


DATASETS = [
    Dataset("arxiv", partial(_build_csv, "arxiv", "ogbn-arxiv", True), 169_343, 2_315_598, 128, 40, "ogb"),
    Dataset("products", partial(_build_csv, "products", "ogbn-products", False), 2_449_029, 123_718_280, 100, 47, "ogb"),
    Dataset("papers100m", _build_papers100m, 111_059_956, 3_228_124_712, 128, 172, "ogb"),
    Dataset("mag240m", _build_mag240m, 121_751_666, 2_593_241_212, 768, 153, "ogb"),
]
