"""The node classification graphs of the Open Graph Benchmark (OGB), from the files that the ogb package downloads.

| name       | folder below the root | preparation                                                          |
|------------|-----------------------|----------------------------------------------------------------------|
| arxiv      | ogbn_arxiv            | symmetrised                                                          |
| products   | ogbn_products         | as ogb gives it: every edge of the file in both directions           |
| papers100m | ogbn_papers100M       | symmetrised; most labels unknown; features are unpacked to disk      |
| mag240m    | mag240m_kddcup2021    | papers and citations only, symmetrised; features stay where they are |

The ogb package is not used. It asks questions on the terminal and contacts the network at import. Under torch 2.6 and newer
it cannot read the files it wrote.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...utils.errors import UserError
from ...utils.progress import progress
from ..graph import Graph
from ..prepared import Workspace
from .download import download_folder, need_room, require
from .files import load_arrays, reading, unzip_array
from .registry import Dataset
from .splits import mask

MARKER = "RELEASE_v1.txt"  # ogb puts the release into the name of a file
SPLIT_NAMES = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
_SERVER = "http://snap.stanford.edu/ogb/data/nodeproppred"


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, as in ogb 1.3.6, and the error messages' remedy."""

    name: str
    folder_name: str  # below the root
    url: str
    inside: str  # the folder's name in the zip file

    def folder(self, root: Path) -> Path:
        """The data set's folder, downloaded if it is absent. A folder of another release is refused."""
        folder = root / self.folder_name
        if not folder.exists():
            download_folder(self.name, self.url, folder, self.inside)
        if not (folder / MARKER).exists():
            found = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
            raise UserError(
                f"{self.name}: {folder} has no {MARKER}, only {found}: it is incomplete or of another release. "
                f"Move it away to have {self.url} downloaded in its place"
            )
        return folder

    @property
    def remedy(self) -> str:
        return f"get it from {self.url}, or move the folder {self.folder_name} away to have all files downloaded again"


ARXIV = Source("arxiv", "ogbn_arxiv", f"{_SERVER}/arxiv.zip", "arxiv")
PRODUCTS = Source("products", "ogbn_products", f"{_SERVER}/products.zip", "products")
PAPERS100M = Source("papers100m", "ogbn_papers100M", f"{_SERVER}/papers100M-bin.zip", "papers100M-bin")
MAG240M = Source(
    "mag240m", "mag240m_kddcup2021",
    "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/mag240m_kddcup2021.zip", "mag240m_kddcup2021",
)  # fmt: skip


def read_csv(source: Source, path: Path, dtype: type) -> np.ndarray:
    """A .csv.gz without a header, as a two-dimensional array."""
    pandas = require(source.name, "pandas")
    with reading(source.name, path, source.remedy):
        values: np.ndarray = pandas.read_csv(path, header=None).to_numpy(dtype)
    return values


def read_split(source: Source, folder: Path, num_nodes: int) -> dict[str, Any]:
    """The masks from ``split_dict.pt`` if it exists, else from three lists of ids."""
    path = folder / "split_dict.pt"
    if path.exists():
        with reading(source.name, path, source.remedy):
            ids = load_arrays(path)
            return {field: mask(ids[part], num_nodes, str(path)) for field, part in SPLIT_NAMES.items()}
    paths = {field: folder / f"{part}.csv.gz" for field, part in SPLIT_NAMES.items()}
    return {field: mask(read_csv(source, path, np.int64), num_nodes, str(path)) for field, path in paths.items()}


def read_labels(labels: np.ndarray) -> Tensor:
    """Labels as int64[N]. NaN, ogb's unknown label, becomes -1."""
    labels = labels.reshape(-1)
    if np.issubdtype(labels.dtype, np.floating):
        labels = np.where(np.isnan(labels), -1, labels)
    return torch.from_numpy(labels.astype(np.int64))


def _build_csv(
    source: Source, split_name: str, classes: int, symmetrise: bool, root: Path, split: int, workspace: Workspace
) -> Graph:
    folder = source.folder(root)
    raw, processed = folder / "raw", folder / "processed" / "data_processed"
    with progress(f"reading {source.name}"):
        if processed.exists():  # ogb has read the raw files before; it stores both directions where it adds them
            remedy = f"it is not needed if {raw} has its files; else {source.remedy}"
            with reading(source.name, processed, remedy):
                stored = load_arrays(processed)
                edges, x, y = stored["graph"]["edge_index"], stored["graph"]["node_feat"], stored["labels"]
        else:
            edges = read_csv(source, raw / "edge.csv.gz", np.int64).T
            x = read_csv(source, raw / "node-feat.csv.gz", np.float32)
            y = read_csv(source, raw / "node-label.csv.gz", np.int64)
            if not symmetrise:
                edges = np.concatenate([edges, edges[::-1]], 1)
        edge_index = torch.from_numpy(np.ascontiguousarray(edges))
        with reading(source.name, folder, source.remedy):
            return Graph.from_edges(
                edge_index, len(x), symmetrise=symmetrise, x=torch.from_numpy(x).float(), y=read_labels(y),
                num_classes=classes, name=source.name, **read_split(source, folder / "split" / split_name, len(x)),
            )  # fmt: skip


def _with_features(graph: Graph, x: np.ndarray, path: Path) -> Graph:
    """The graph with features that are larger than memory: they are not checked for finite values again."""
    if x.ndim != 2 or x.shape[0] != graph.num_nodes:
        raise UserError(
            f"{path} has features of shape {list(x.shape)}, the graph {graph.num_nodes} nodes; download it again"
        )
    return replace(graph, x=torch.from_numpy(x))


def _build_papers100m(root: Path, split: int, workspace: Workspace) -> Graph:
    """57 GB of features and 26 GB of edges are never in memory: they are copied in chunks from a zip file to the disk.

    Citations are symmetrised, as in arxiv and in OGB's baseline for this graph.
    """
    name = PAPERS100M.name
    folder = PAPERS100M.folder(root)
    data, label = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"
    with progress(f"reading {name}") as shown:
        with reading(name, label, PAPERS100M.remedy), np.load(label) as labels:
            y = read_labels(labels["node_label"])
        with reading(name, data, PAPERS100M.remedy), tempfile.TemporaryFile(dir=root) as scratch:
            with np.load(data) as small:
                num_nodes = int(small["num_nodes_list"][0])
            index = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)

            def features(shape: tuple[int, ...], stored: np.dtype) -> np.ndarray:
                need_room(name, 4 * math.prod(shape), workspace.folder)
                return workspace.new_array("x", shape, np.dtype(np.float32))

            def ids(shape: tuple[int, ...], stored: np.dtype) -> np.ndarray:
                need_room(name, index.itemsize * math.prod(shape), root)
                return np.memmap(scratch, index, "w+", shape=shape)

            def within(chunk: np.ndarray) -> None:
                if int(chunk.min()) < 0 or int(chunk.max()) >= num_nodes:
                    raise ValueError(f"edge_index has ids from {chunk.min()} to {chunk.max()}, there are {num_nodes} nodes")

            def finite(chunk: np.ndarray) -> None:
                if not np.isfinite(chunk).all():
                    raise ValueError("node_feat has values that are not finite")

            x = unzip_array(data, "node_feat", features, check=finite, say=shown.say)
            edges = unzip_array(data, "edge_index", ids, check=within, say=shown.say)
        masks = read_split(PAPERS100M, folder / "split" / "time", num_nodes)
        shown.say("sorting edges")
        # The scratch file has been deleted; the map keeps its contents.
        graph = Graph.from_edges(
            torch.from_numpy(edges), num_nodes, symmetrise=True, y=y, num_classes=172, name=name, **masks
        )
        return _with_features(graph, x, data)


def _build_mag240m(root: Path, split: int, workspace: Workspace) -> Graph:
    """Papers and citations; authors and institutions are left out.

    The labels of test papers are not public and are -1. ``test_mask`` is the union of ogb's test-dev and test-challenge.
    """
    name, remedy = MAG240M.name, MAG240M.remedy
    folder = MAG240M.folder(root)
    papers = folder / "processed" / "paper"

    def read(path: Path, how: Callable[[Path], Any]) -> Any:
        with reading(name, path, remedy):
            return how(path)

    with progress(f"reading {name}") as shown, reading(name, folder, remedy):
        meta, ids = read(folder / "meta.pt", load_arrays), read(folder / "split_dict.pt", load_arrays)
        num_nodes = int(meta["paper"])
        parts = {"train_mask": ids["train"], "val_mask": ids["valid"]}
        parts["test_mask"] = ids["test-whole"] if "test-whole" in ids else ids["test"]  # older files do not split the test
        masks: dict[str, Any] = {field: mask(part, num_nodes, "split_dict.pt") for field, part in parts.items()}
        y = read_labels(read(papers / "node_label.npy", np.load))
        x = read(papers / "node_feat.npy", partial(workspace.refer, "x"))
        edges = read(folder / "processed" / "paper___cites___paper" / "edge_index.npy", partial(np.load, mmap_mode="c"))
        shown.say("sorting edges")
        graph = Graph.from_edges(
            torch.from_numpy(edges),
            num_nodes,
            symmetrise=True,
            y=y,
            num_classes=int(meta["num_classes"]),
            name=name,
            **masks,
        )
        return _with_features(graph, x, papers / "node_feat.npy")


_arxiv, _products = partial(_build_csv, ARXIV, "time", 40, True), partial(_build_csv, PRODUCTS, "sales_ranking", 47, False)
DATASETS = [
    Dataset("arxiv", _arxiv, 169_343, 2_315_598, 128, 40),
    Dataset("products", _products, 2_449_029, 123_718_280, 100, 47),
    Dataset("papers100m", _build_papers100m, 111_059_956, 3_228_124_712, 128, 172),
    Dataset("mag240m", _build_mag240m, 121_751_666, 2_593_241_212, 768, 153),
]
