"""Load graphs by name.

    graph = load("products", root="data")

A graph is prepared once and stored below the root. Later loads map the stored files into memory.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...utils.errors import UserError, did_you_mean
from ...utils.progress import notice, progress
from .. import prepared
from ..convert import from_npz
from ..graph import Graph
from . import ogb, pyg, synthetic
from .registry import Dataset

__all__ = ["DATASETS", "Dataset", "load"]

DATASETS = {dataset.name: dataset for dataset in (*ogb.DATASETS, *pyg.DATASETS)}


def load(name: str, root: Path | str = "data", *, split: int = 0) -> Graph:
    """Load the graph called ``name``.

    Args:
        name: one of ``DATASETS``; ``synthetic:<shape>``, such as ``synthetic:products@0.1`` (see :mod:`.synthetic`); or the
            path of an .npz (see :func:`rest_triton.data.convert.from_npz`).
        root: the folder for downloads and prepared graphs. The folder ``root/prepared/<name>`` alone is enough to load a
            graph: it can be copied to a machine without the raw data and without a network.
        split: which split, for data sets with several.

    Example::

        graph = load("synthetic:arxiv@0.1")
    """
    root = Path(root)
    if name.startswith(synthetic.PREFIX):
        shape = synthetic.parse(name)
        _check_split(name, split, 1)
        about = {"synthetic": vars(shape), "revision": synthetic.REVISION}
        return _prepared(name, name, root, about, lambda workspace: synthetic.generate(shape, name))
    if name in DATASETS:
        dataset = DATASETS[name]
        _check_split(name, split, dataset.splits)
        about = {"dataset": name, "split": split, "revision": dataset.revision}
        slug = name if dataset.splits == 1 else f"{name}-split{split}"
        return _prepared(name, slug, root, about, lambda workspace: dataset.build(root, split, workspace))
    if name.endswith(".npz"):
        path = Path(name)
        _check_split(name, split, 1)
        if not path.is_file():
            return from_npz(path)  # raises the error
        digest = _digest(path)
        about = {"npz": digest, "revision": 1}
        return _prepared(name, f"{path.stem}-{digest[:12]}", root, about, lambda workspace: from_npz(path))
    raise unknown_dataset(name)


def prepared_folder(name: str, root: Path | str = "data", split: int = 0) -> Path:
    """The folder of a prepared graph, for the arguments of :func:`load`."""
    slug = name
    if name in DATASETS and DATASETS[name].splits > 1:
        slug = f"{name}-split{split}"
    elif name.endswith(".npz"):
        slug = f"{Path(name).stem}-{_digest(Path(name))[:12]}"
    return Path(root) / "prepared" / folder_name(slug)


def unknown_dataset(name: str) -> UserError:
    known = did_you_mean(name, DATASETS)
    return UserError(f"{name!r} is not a data set: {known}; or synthetic:<shape>, or the path of an .npz")


def folder_name(slug: str) -> str:
    """The name of the folder of a prepared graph."""
    return re.sub(r"[^A-Za-z0-9.@=_-]+", "_", slug)


def _digest(path: Path) -> str:
    """A hash of the content, so that a copy counts as the same file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _check_split(name: str, split: int, splits: int) -> None:
    if not 0 <= split < splits:
        raise UserError(f"split is {split}; {name} has {splits} of them" + (f", 0 to {splits - 1}" if splits > 1 else ""))


def _prepared(
    name: str, slug: str, root: Path, about: dict[str, Any], build: Callable[[prepared.Workspace], Graph]
) -> Graph:
    folder = root / "prepared" / folder_name(slug)
    if folder.exists():
        try:
            return prepared.read(folder, root, about)
        except UserError as reason:
            notice(f"{reason}: it is prepared again")
    with progress(f"preparing {name}"):
        return prepared.write(folder, root, about, build)
