"""How large a data set is, without reading it: from the registry, the name, a manifest, or the headers of a file."""

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..utils.errors import UserError, did_you_mean
from .convert import SPARSE_PIECES
from .datasets import DATASETS, synthetic
from .prepared import FORMAT, MANIFEST

UNKNOWN_CLASSES = 128  # where labels would have to be read to count them
AS_PUBLISHED = ("mag240m",)  # features in float16, mapped where the download has them


@dataclass(frozen=True)
class Sizes:
    """What is known of a data set without reading it.

    Args:
        edges: directed ones. feature_nnz: None = dense. prepared: the graph is below the root already.
        mapped: features are read where the download has them. note: what was assumed.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    directed: bool = False
    feature_nnz: int | None = None
    name: str = "graph"
    multilabel: bool = False
    feature_bytes: int = 4
    prepared: bool = False
    mapped: bool = False
    note: str = ""


def sizes_of(dataset: str, root: Path | str = "data") -> Sizes:
    """The sizes of a data set by its name, as :func:`rest_triton.data.datasets.load` takes it. Nothing is loaded or made.

    From the manifest of the prepared graph below ``root``, if it is there; else as published, by the synthetic shape, or by
    the headers of an .npz: what those do not say is assumed, and the ``note`` says so.
    """
    if dataset.endswith(".npz"):
        known = _sizes_of_npz(Path(dataset))
        # The folder has the digest of the content in its name: to know it is to read the file. One that agrees will do.
        for folder in sorted(Path(root, "prepared").glob(f"{Path(dataset).stem}-{'[0-9a-f]' * 12}")):
            found = _sizes_of_manifest(folder, dataset)
            if found and (found.nodes, found.features) == (known.nodes, known.features) and found.edges <= known.edges:
                return found
        return known
    for slug in (dataset, f"{dataset}-split0"):  # all splits have the same sizes
        folder = Path(root, "prepared", re.sub(r"[^A-Za-z0-9.@=_-]+", "_", slug))
        if (found := _sizes_of_manifest(folder, dataset)) is not None:
            return found
    if dataset.startswith(synthetic.PREFIX):
        shape = synthetic.parse(dataset)
        return Sizes(shape.nodes, shape.edges, shape.features, shape.classes, name=dataset)
    if dataset not in DATASETS:
        raise UserError(
            f"{dataset!r} is not a data set: {did_you_mean(dataset, DATASETS)}; or synthetic:<shape>, or the path of an .npz"
        )
    d, mapped = DATASETS[dataset], dataset in AS_PUBLISHED
    return Sizes(
        d.nodes, d.edges, d.features, d.classes, d.directed, None, dataset, d.multilabel, 2 if mapped else 4, mapped=mapped
    )


def _sizes_of_manifest(folder: Path, name: str) -> Sizes | None:
    """None where there is none, or one that would be made again."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return None
        arrays = manifest["arrays"]
        shape = {key: entry["shape"] for key, entry in arrays.items()}
        return Sizes(
            shape["rowptr"][0] - 1, shape["col"][0], manifest["width"], manifest["num_classes"], manifest["directed"],
            shape["x_index"][0] if "x_index" in shape else None, name, len(shape.get("y", ())) == 2,
            getattr(torch, arrays["x"]["dtype"]).itemsize if "x" in arrays else 4, prepared=True,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _sizes_of_npz(path: Path) -> Sizes:
    if not path.exists():
        raise UserError(f"{path} does not exist; give the path of an .npz, or the name of a data set")
    try:
        with zipfile.ZipFile(path) as file:
            shape = {name.removesuffix(".npy"): _header(file, name) for name in file.namelist()}
            if "edge_index" not in shape or len(shape["edge_index"]) != 2:
                raise UserError(f"edge_index is {shape.get('edge_index', 'not there')}; it must be [2, E]")
            sparse = all(piece in shape for piece in SPARSE_PIECES)
            if sparse:  # its values are a shape, too
                nodes, features = (int(size) for size in _values(file, "x_shape"))
            elif "x" in shape:
                nodes, features = shape["x"]
            else:
                nodes, features = shape["y"][0] if "y" in shape else int(_values(file, "num_nodes")), 0
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not an .npz of a graph ({error}); write it again with numpy.savez") from None
    labels = shape.get("y", ())
    multilabel = len(labels) == 2 and labels[1] > 1
    note = "edges counted as if each were listed one way"
    if not multilabel and labels:
        note += f"; {UNKNOWN_CLASSES} classes assumed, counting them would mean reading the labels"
    classes = labels[1] if multilabel else UNKNOWN_CLASSES if labels else 0
    nnz = shape["x_indices"][0] if sparse else None
    return Sizes(nodes, 2 * shape["edge_index"][1], features, classes, False, nnz, path.stem, multilabel, note=note)


def _values(file: zipfile.ZipFile, name: str) -> np.ndarray:
    with file.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(file: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """The shape of an array in an .npz. Only its first bytes are unpacked."""
    with file.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(member)[0]
