"""Data sets that torch_geometric downloads, prepared the way published figures were.

| name                            | folder below the root | preparation                                                     |
|---------------------------------|-----------------------|-----------------------------------------------------------------|
| reddit                          | Reddit2               | features standardised over all nodes                            |
| yelp                            | Yelp                  | the same; several labels per node                               |
| flickr                          | Flickr                | as it is                                                        |
| ppi                             | PPI                   | its 24 graphs side by side; several labels per node             |
| cora, citeseer, pubmed          | Planetoid             | public split; each node's features sum to 1                     |
| wikics                          | WikiCS                | every edge both ways; validated on stopping_mask; 20 splits     |
| amazon-computers, amazon-photo  | Amazon                | 20 splits, see split_by_class                                   |
| coauthor-cs, coauthor-physics   | Coauthor              | the same                                                        |

The folders are what torch_geometric makes when it is given a root of this name; files that are there already are used.
Edges are as its classes give them: repeated ones are gone where those remove them.
"""

import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..features import SparseRows
from ..graph import Graph
from ..prepared import Workspace
from ...utils.progress import notice, progress
from .download import by_hand, nothing_new_on_failure, require, scratch_folder
from .files import blaming_files
from .registry import Dataset
from .splits import SPLITS, split_by_class

SPARSE_BELOW = 0.1  # density; an index and a value cost as much as two dense elements, and few nonzeros multiply faster
LARGE = {"reddit", "yelp"}  # torch_geometric does not say how large its downloads are
ROWS = 65536  # at a time, where float64 copies are made


def standardise(x: Tensor) -> Tensor:
    """``(x - mean) / std`` of every column over all rows, in float64, std with N - 1. float32[N, D] to the same.

    A column of equal values becomes zero. (By its values: in floating point its variance need not be 0.)
    """
    n = x.shape[0]
    mean, square = torch.zeros(x.shape[1], dtype=torch.float64), torch.zeros(x.shape[1], dtype=torch.float64)
    for begin in range(0, n, ROWS):
        mean += x[begin : begin + ROWS].double().sum(0) / n
    for begin in range(0, n, ROWS):
        square += (x[begin : begin + ROWS].double() - mean).square().sum(0)
    least, most = torch.aminmax(x, dim=0)
    scale = torch.where(least == most, 0.0, (square / max(n - 1, 1)).rsqrt())
    out = torch.empty_like(x)
    for begin in range(0, n, ROWS):
        out[begin : begin + ROWS] = (x[begin : begin + ROWS].double() - mean) * scale
    return out


def sparse_if_mostly_zero(x: Tensor) -> Tensor | SparseRows:
    mostly_zero = int(torch.count_nonzero(x)) < SPARSE_BELOW * x.numel()
    return SparseRows.from_dense(x) if mostly_zero else x


def _nothing(*_: Any) -> None:
    pass


def _links(published: Any) -> list[str]:
    """Where a class of torch_geometric downloads its files from."""
    files = published.raw_file_names if isinstance(published.raw_file_names, list) else [published.raw_file_names]
    if hasattr(published, "adj_full_id"):
        ids = {file: getattr(published, f"{Path(file).stem}_id") for file in files}
        return [f"https://drive.google.com/uc?export=download&id={key} (as {file})" for file, key in ids.items()]
    if published.url.endswith(".zip"):
        return [f"{published.url} (and unpack it)"]
    return [f"{published.url.rstrip('/')}/{file}" for file in files]


def open_dataset(dataset: str, root: Path, class_name: str, **arguments: Any) -> Any:
    """An object of a class of torch_geometric on its folder below the root, downloaded and processed where it is not yet.

    What is missing is downloaded elsewhere and moved there when it is whole.
    """
    cls = getattr(require(dataset, "torch_geometric.datasets"), class_name)
    folder = root / class_name
    # A dataset that does none of its work: it knows which files it needs, and where.
    idle = type(class_name, (cls,), {"_download": _nothing, "_process": _nothing, "load": _nothing})
    needed = idle(str(folder), **arguments)
    missing = [Path(path) for path in needed.raw_paths if not Path(path).exists()]
    raw, processed = Path(needed.raw_dir), Path(needed.processed_dir)
    with nothing_new_on_failure(folder):
        if missing:
            if dataset in LARGE:
                notice(f"downloading {dataset}: about a gigabyte or more, to {raw}")
            downloading = type(class_name, (cls,), {"_process": _nothing, "load": _nothing})
            with scratch_folder(root) as scratch, progress(f"downloading {dataset}"):
                try:
                    downloaded = downloading(str(scratch), **arguments)
                    found = {Path(path).name: Path(path) for path in downloaded.raw_paths if Path(path).exists()}
                    absent = [path.name for path in missing if path.name not in found]
                    if absent:
                        raise FileNotFoundError(f"{', '.join(absent)} did not come")
                except Exception as error:
                    raise by_hand(dataset, error, _links(needed), f"into {raw}") from error
                raw.mkdir(parents=True, exist_ok=True)
                for path in missing:
                    shutil.move(found[path.name], path)
        # pre_transform.pt outlives the other files, and what it says is looked at even if they are made again.
        if (processed / "pre_transform.pt").exists() or all(Path(path).exists() for path in needed.processed_paths):
            paths, remedy = [processed], f"it is made again from {raw}"
        else:
            paths, remedy = [Path(path) for path in needed.raw_paths], "it is then downloaded again"
        with blaming_files(dataset, paths, remedy), warnings.catch_warnings(), progress(f"reading {dataset}"):
            warnings.filterwarnings("error", "The `pre_(transform|filter)` argument differs")
            return cls(str(folder), **arguments)


def _edges(dataset: str, data: Any, opened: Any) -> Tensor:
    if data.edge_index is None:
        raise ValueError(f"{dataset}: {opened.processed_dir} holds a graph without edge_index; delete it: it is made again")
    return data.edge_index


def _build_saint(dataset: str, cls: str, standard: bool, root: Path, split: int, workspace: Workspace) -> Graph:
    opened = open_dataset(dataset, root, cls)
    data = opened[0]
    return Graph.from_edges(
        _edges(dataset, data, opened),
        data.num_nodes,
        x=standardise(data.x) if standard else data.x,
        y=data.y.to(torch.int8) if data.y.dim() == 2 else data.y,
        name=dataset,
        **{name: data[name] for name in ("train_mask", "val_mask", "test_mask")},
    )


def _build_ppi(root: Path, split: int, workspace: Workspace) -> Graph:
    """Graphs that are trained on, validated on and tested on have no edge between them: learning stays inductive."""
    edges, x, y, part = [], [], [], []
    begin = 0
    for number, name in enumerate(("train", "val", "test")):
        opened = open_dataset("ppi", root, "PPI", split=name)
        for data in opened:
            edges.append(_edges("ppi", data, opened) + begin)
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
    opened = open_dataset(dataset, root, "Planetoid", name=name, transform=normalise)
    data = opened[0]
    return Graph.from_edges(
        _edges(dataset, data, opened), data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name=dataset,
        train_mask=data.train_mask, val_mask=data.val_mask, test_mask=data.test_mask,
    )  # fmt: skip


def _build_wikics(root: Path, split: int, workspace: Workspace) -> Graph:
    opened = open_dataset("wikics", root, "WikiCS", is_undirected=True)
    data = opened[0]
    return Graph.from_edges(
        _edges("wikics", data, opened), data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name="wikics",
        train_mask=data.train_mask[:, split].contiguous(),
        val_mask=data.stopping_mask[:, split].contiguous(),  # its val_mask is for choosing hyperparameters
        test_mask=data.test_mask,
    )  # fmt: skip


def _build_random_split(dataset: str, cls: str, name: str, root: Path, split: int, workspace: Workspace) -> Graph:
    opened = open_dataset(dataset, root, cls, name=name)
    data = opened[0]
    return Graph.from_edges(
        _edges(dataset, data, opened), data.num_nodes, x=sparse_if_mostly_zero(data.x), y=data.y, name=dataset,
        **split_by_class(data.y, split),
    )  # fmt: skip


def _dataset(
    name: str, build: Callable[..., Graph], nodes: int, edges: int, features: int, classes: int, **more: Any
) -> Dataset:
    return Dataset(name, build, nodes, edges, features, classes, "torch_geometric", **more)


def _random(name: str, cls: str, part: str, *sizes: int) -> Dataset:
    nodes, edges, features, classes = sizes
    return _dataset(name, partial(_build_random_split, name, cls, part), nodes, edges, features, classes, splits=SPLITS)


DATASETS = [
    _dataset("reddit", partial(_build_saint, "reddit", "Reddit2", True), 232_965, 23_213_838, 602, 41),
    _dataset("flickr", partial(_build_saint, "flickr", "Flickr", False), 89_250, 899_756, 500, 7),
    _dataset("yelp", partial(_build_saint, "yelp", "Yelp", True), 716_847, 13_954_819, 300, 100, multilabel=True),
    _dataset("ppi", _build_ppi, 56_944, 1_587_264, 50, 121, multilabel=True),
    _dataset("cora", partial(_build_planetoid, "cora", "Cora"), 2_708, 10_556, 1_433, 7),
    _dataset("citeseer", partial(_build_planetoid, "citeseer", "CiteSeer"), 3_327, 9_104, 3_703, 6),
    _dataset("pubmed", partial(_build_planetoid, "pubmed", "PubMed"), 19_717, 88_648, 500, 3),
    _dataset("wikics", _build_wikics, 11_701, 431_726, 300, 10, splits=SPLITS),
    _random("amazon-computers", "Amazon", "Computers", 13_752, 491_722, 767, 10),
    _random("amazon-photo", "Amazon", "Photo", 7_650, 238_162, 745, 8),
    _random("coauthor-cs", "Coauthor", "CS", 18_333, 163_788, 6_805, 15),
    _random("coauthor-physics", "Coauthor", "Physics", 34_493, 495_924, 8_415, 5),
]
