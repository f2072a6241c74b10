"""Data sets that torch_geometric downloads, with the preparation of the published figures.

| name                            | folder below the root | preparation                                   |
|---------------------------------|-----------------------|-----------------------------------------------|
| reddit                          | Reddit2               | features standardised over all nodes          |
| yelp                            | Yelp                  | features standardised; multi-label            |
| flickr                          | Flickr                | none                                          |
| ppi                             | PPI                   | its 24 graphs as one disjoint one; multi-label |
| cora, citeseer, pubmed          | Planetoid             | public split; each node's features sum to 1   |
| wikics                          | WikiCS                | symmetrised; validation on stopping_mask; 20 splits |
| amazon-computers, amazon-photo  | Amazon                | 20 random splits, see split_by_class          |
| coauthor-cs, coauthor-physics   | Coauthor              | 20 random splits, see split_by_class          |

The folders are those that torch_geometric makes with this root. Files that exist are used. Edges are as its classes give
them, including duplicates where they keep them.
"""

import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...utils.progress import notice, progress
from ..features import SparseRows
from ..graph import MASKS, Graph
from ..prepared import Workspace
from .download import require, scratch_folder
from .files import reading
from .registry import Dataset
from .splits import SPLITS, split_by_class

SPARSE_BELOW = 0.1  # density below which features are stored sparsely
LARGE = {"reddit", "yelp"}  # torch_geometric does not announce the size of its downloads
CHUNK_ROWS = 65536  # rows that are copied to float64 at a time


def standardise(x: Tensor) -> Tensor:
    """``(x - mean) / std`` of every column, float32 [N, D], computed in float64 with the unbiased std.

    A constant column becomes zero. It is recognised by its values, as its computed variance need not be exactly 0.
    """
    n = x.shape[0]
    mean, square = torch.zeros(x.shape[1], dtype=torch.float64), torch.zeros(x.shape[1], dtype=torch.float64)
    for begin in range(0, n, CHUNK_ROWS):
        mean += x[begin : begin + CHUNK_ROWS].double().sum(0) / n
    for begin in range(0, n, CHUNK_ROWS):
        square += (x[begin : begin + CHUNK_ROWS].double() - mean).square().sum(0)
    least, most = torch.aminmax(x, dim=0)
    scale = torch.where(least == most, 0.0, (square / max(n - 1, 1)).rsqrt())
    out = torch.empty_like(x)
    for begin in range(0, n, CHUNK_ROWS):
        out[begin : begin + CHUNK_ROWS] = (x[begin : begin + CHUNK_ROWS].double() - mean) * scale
    return out


def sparse_if_mostly_zero(x: Tensor) -> Tensor | SparseRows:
    mostly_zero = int(torch.count_nonzero(x)) < SPARSE_BELOW * x.numel()
    return SparseRows.from_dense(x) if mostly_zero else x


def _nothing(*_: Any) -> None:
    pass


def _links(published: Any) -> list[str]:
    """The addresses from which a class of torch_geometric downloads its files."""
    files = published.raw_file_names if isinstance(published.raw_file_names, list) else [published.raw_file_names]
    if hasattr(published, "adj_full_id"):
        ids = {file: getattr(published, f"{Path(file).stem}_id") for file in files}
        return [f"https://drive.google.com/uc?export=download&id={key} (as {file})" for file, key in ids.items()]
    if published.url.endswith(".zip"):
        return [f"{published.url} (and unpack it)"]
    return [f"{published.url.rstrip('/')}/{file}" for file in files]


def open_dataset(dataset: str, root: Path, class_name: str, **arguments: Any) -> Any:
    """An object of a class of torch_geometric in its folder below the root, downloaded and processed if necessary.

    Missing files are downloaded to a temporary folder and moved when all are complete.
    """
    cls = getattr(require(dataset, "torch_geometric.datasets"), class_name)
    folder = root / class_name
    # A subclass that neither downloads nor processes: it tells which files are needed.
    idle = type(class_name, (cls,), {"_download": _nothing, "_process": _nothing, "load": _nothing})
    needed = idle(str(folder), **arguments)
    raw, processed = Path(needed.raw_dir), Path(needed.processed_dir)
    missing = [Path(path) for path in needed.raw_paths if not Path(path).exists()]
    if missing:
        if dataset in LARGE:
            notice(f"downloading {dataset}: about a gigabyte or more, to {raw}")
        downloading = type(class_name, (cls,), {"_process": _nothing, "load": _nothing})
        with scratch_folder(dataset, root, _links(needed), f"into {raw}") as scratch, progress(f"downloading {dataset}"):
            downloaded = Path(downloading(str(scratch), **arguments).raw_dir)
            for path in missing:
                (downloaded / path.name).stat()  # all are complete before the first is moved
            raw.mkdir(parents=True, exist_ok=True)
            for path in missing:
                shutil.move(downloaded / path.name, path)
    # torch_geometric writes this file when it has processed all others.
    stored = (processed / "pre_transform.pt").exists()
    source, remedy = (processed, f"it is made again from {raw}") if stored else (raw, "it is downloaded again")
    with reading(dataset, source, remedy), warnings.catch_warnings(), progress(f"reading {dataset}"):
        # Features that were stored after another transform are not those of the published figures.
        warnings.filterwarnings("error", "The `pre_(transform|filter)` argument differs")
        opened = cls(str(folder), **arguments)
        if any(data.edge_index is None for data in opened):
            raise ValueError("it has a graph without edge_index")
    return opened


def _build_saint(dataset: str, cls: str, standard: bool, root: Path, split: int, workspace: Workspace) -> Graph:
    data = open_dataset(dataset, root, cls)[0]
    return Graph.from_edges(
        data.edge_index, data.num_nodes, x=standardise(data.x) if standard else data.x,
        y=data.y.to(torch.int8) if data.y.dim() == 2 else data.y, name=dataset, **{name: data[name] for name in MASKS},
    )  # fmt: skip


def _build_ppi(root: Path, split: int, workspace: Workspace) -> Graph:
    """One graph of PPI's 24. Training, validation and test graphs have no edges between them: learning stays inductive."""
    edges, x, y, part = [], [], [], []
    begin = 0
    for number, name in enumerate(("train", "val", "test")):
        for data in open_dataset("ppi", root, "PPI", split=name):
            edges.append(data.edge_index + begin)
            x.append(data.x)
            y.append(data.y.to(torch.int8))
            part.append(torch.full((data.num_nodes,), number))
            begin += data.num_nodes
    of = torch.cat(part)
    return Graph.from_edges(
        torch.cat(edges, 1), begin, x=torch.cat(x), y=torch.cat(y), name="ppi",
        train_mask=of == 0, val_mask=of == 1, test_mask=of == 2,
    )  # fmt: skip


def _build_planetoid(dataset: str, name: str, root: Path, split: int, workspace: Workspace) -> Graph:
    normalise = require(dataset, "torch_geometric.transforms").NormalizeFeatures()
    data = open_dataset(dataset, root, "Planetoid", name=name, transform=normalise)[0]
    return Graph.from_edges(
        data.edge_index, data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name=dataset,
        train_mask=data.train_mask, val_mask=data.val_mask, test_mask=data.test_mask,
    )  # fmt: skip


def _build_wikics(root: Path, split: int, workspace: Workspace) -> Graph:
    data = open_dataset("wikics", root, "WikiCS", is_undirected=True)[0]
    return Graph.from_edges(
        data.edge_index, data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name="wikics",
        train_mask=data.train_mask[:, split].contiguous(),
        val_mask=data.stopping_mask[:, split].contiguous(),  # val_mask is meant for choosing hyperparameters
        test_mask=data.test_mask,
    )  # fmt: skip


def _build_random_split(dataset: str, cls: str, name: str, root: Path, split: int, workspace: Workspace) -> Graph:
    data = open_dataset(dataset, root, cls, name=name)[0]
    return Graph.from_edges(
        data.edge_index, data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name=dataset,
        **split_by_class(data.y, split),
    )  # fmt: skip


def _random(name: str, cls: str, part: str, nodes: int, edges: int, features: int, classes: int) -> Dataset:
    build = partial(_build_random_split, name, cls, part)
    return Dataset(name, build, nodes, edges, features, classes, splits=SPLITS)


DATASETS = [
    Dataset("reddit", partial(_build_saint, "reddit", "Reddit2", True), 232_965, 23_213_838, 602, 41),
    Dataset("flickr", partial(_build_saint, "flickr", "Flickr", False), 89_250, 899_756, 500, 7),
    Dataset("yelp", partial(_build_saint, "yelp", "Yelp", True), 716_847, 13_954_819, 300, 100, multilabel=True),
    Dataset("ppi", _build_ppi, 56_944, 1_587_264, 50, 121, multilabel=True),
    Dataset("cora", partial(_build_planetoid, "cora", "Cora"), 2_708, 10_556, 1_433, 7),
    Dataset("citeseer", partial(_build_planetoid, "citeseer", "CiteSeer"), 3_327, 9_104, 3_703, 6),
    Dataset("pubmed", partial(_build_planetoid, "pubmed", "PubMed"), 19_717, 88_648, 500, 3),
    Dataset("wikics", _build_wikics, 11_701, 431_726, 300, 10, splits=SPLITS),
    _random("amazon-computers", "Amazon", "Computers", 13_752, 491_722, 767, 10),
    _random("amazon-photo", "Amazon", "Photo", 7_650, 238_162, 745, 8),
    _random("coauthor-cs", "Coauthor", "CS", 18_333, 163_788, 6_805, 15),
    _random("coauthor-physics", "Coauthor", "Physics", 34_493, 495_924, 8_415, 5),
]
