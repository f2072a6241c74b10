"""The sizes of a data set without loading it: from the registry, its name, a manifest, or the headers of a file."""

import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..utils.errors import UserError
from .convert import SPARSE_ARRAYS
from .datasets import DATASETS, folder_name, synthetic, unknown_dataset
from .prepared import FORMAT, MANIFEST

UNKNOWN_CLASSES = 128  # assumed where counting them means reading the labels
LABELLED = {"papers100m": 0.0139}  # shares of nodes with a label, where they are not all nodes
AS_PUBLISHED = ("mag240m",)  # float16 features, mapped from the downloaded file


@dataclass(frozen=True)
class Sizes:
    """The sizes of a data set.

    Args:
        edges: counts directed edges. feature_nnz: None for dense features. prepared: the prepared graph exists.
        mapped: features are mapped from the downloaded file. note: what was assumed.
        fingerprint: of the prepared graph, "" without one.
        training, labelled: shares of the nodes, 1 if they are not known.
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
    fingerprint: str = ""
    training: float = 1.0
    labelled: float = 1.0


def sizes_of(dataset: str, root: Path | str = "data") -> Sizes:
    """The sizes of a data set by its name, as :func:`rest_triton.data.datasets.load` takes it. Nothing is loaded or written.

    They come from the prepared graph's manifest below ``root`` if there is one. Otherwise they come from the registry, the
    synthetic shape, or the headers of an .npz. ``note`` names what is assumed.
    """
    found = _sizes_of(dataset, root)
    if dataset.startswith(synthetic.PREFIX):
        return replace(found, training=synthetic.parse(dataset).train)
    if dataset in synthetic.SHAPES:
        return replace(found, training=synthetic.SHAPES[dataset].train, labelled=LABELLED.get(dataset, 1.0))
    return found


def _sizes_of(dataset: str, root: Path | str) -> Sizes:
    if dataset.endswith(".npz"):
        known = _sizes_of_npz(Path(dataset))
        # The folder's name has a hash of the content. The file is not read for it; a folder that agrees is accepted.
        for folder in sorted(Path(root, "prepared").glob(f"{Path(dataset).stem}-{'[0-9a-f]' * 12}")):
            found = _sizes_of_manifest(folder, dataset)
            if found and (found.nodes, found.features) == (known.nodes, known.features) and found.edges <= known.edges:
                return found
        return known
    for slug in (dataset, f"{dataset}-split0"):  # all splits have the same sizes
        folder = Path(root, "prepared", folder_name(slug))
        if (found := _sizes_of_manifest(folder, dataset)) is not None:
            return found
    if dataset.startswith(synthetic.PREFIX):
        shape = synthetic.parse(dataset)
        return Sizes(shape.nodes, shape.edges, shape.features, shape.classes, name=dataset)
    if dataset not in DATASETS:
        raise unknown_dataset(dataset)
    d, mapped = DATASETS[dataset], dataset in AS_PUBLISHED
    return Sizes(
        d.nodes, d.edges, d.features, d.classes, False, None, dataset, d.multilabel, 2 if mapped else 4, mapped=mapped
    )


def _sizes_of_manifest(folder: Path, name: str) -> Sizes | None:
    """The sizes in a manifest; None if there is none, or none of this format."""
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
            fingerprint=str(manifest["fingerprint"]),
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
                raise UserError(f"edge_index is {shape.get('edge_index', 'missing')}; it must be [2, E]")
            sparse = all(name in shape for name in SPARSE_ARRAYS)
            if sparse:  # the shape is in the values of x_shape
                nodes, features = (int(size) for size in _values(file, "x_shape"))
            elif "x" in shape:
                nodes, features = shape["x"]
            else:
                nodes, features = shape["y"][0] if "y" in shape else int(_values(file, "num_nodes")), 0
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not an .npz of a graph ({error}); write it again with numpy.savez") from None
    labels = shape.get("y", ())
    multilabel = len(labels) == 2 and labels[1] > 1
    note = "edges assumed to be listed one way only"
    if not multilabel and labels:
        note += f"; {UNKNOWN_CLASSES} classes assumed, as the labels are not read"
    classes = labels[1] if multilabel else UNKNOWN_CLASSES if labels else 0
    nnz = shape["x_indices"][0] if sparse else None
    return Sizes(nodes, 2 * shape["edge_index"][1], features, classes, False, nnz, path.stem, multilabel, note=note)


def _values(file: zipfile.ZipFile, name: str) -> np.ndarray:
    with file.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(file: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """The shape of an array in an .npz. Only its header is unpacked."""
    with file.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(member)[0]
