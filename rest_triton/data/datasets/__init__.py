"""Names of data sets, and the graphs behind them.

    graph = load("products", root="data")

A graph is prepared once, stored below the root, and from then on mapped from there.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import prepared
from ..convert import from_npz
from ..graph import Graph
from ...utils.progress import notice, progress
from ...utils.errors import did_you_mean
from . import ogb, pyg, synthetic
from .registry import Dataset

__all__ = ["DATASETS", "Dataset", "load"]

DATASETS = {dataset.name: dataset for dataset in (*ogb.DATASETS, *pyg.DATASETS)}


def load(name: str, root: Path | str = "data", *, split: int = 0) -> Graph:
    """The graph called ``name``.

    Args:
        name: one of ``DATASETS``; ``synthetic:<shape>``, such as ``synthetic:products@0.1`` (see
            :mod:`rest_triton.data.datasets.synthetic`); or the path of an .npz (see :func:`rest_triton.data.convert.from_npz`).
        root: the folder for downloads and for prepared graphs. A prepared graph, ``root/prepared/<name>``, is all that is
            needed: it can be copied to a machine that has neither the data nor a network.
        split: which one, of a data set that offers several.

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
        if path.is_file():
            digest = _digest(path)
            about = {"npz": digest, "revision": 1}
            return _prepared(name, f"{path.stem}-{digest[:12]}", root, about, lambda workspace: from_npz(path))
        return from_npz(path)  # says what is wrong
    raise ValueError(f"{name!r} is not a data set: {did_you_mean(name, DATASETS)}; or synthetic:<shape>, or the path of an .npz")


def _digest(path: Path) -> str:
    """Of the content, not the date: a copy is the same file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _check_split(name: str, split: int, splits: int) -> None:
    if not 0 <= split < splits:
        raise ValueError(f"split is {split}; {name} has {splits} of them" + (f", 0 to {splits - 1}" if splits > 1 else ""))


def _prepared(
    name: str, slug: str, root: Path, about: dict[str, Any], build: Callable[[prepared.Workspace], Graph]
) -> Graph:
    folder = root / "prepared" / re.sub(r"[^A-Za-z0-9.@=_-]+", "_", slug)
    if folder.exists():
        try:
            return prepared.read(folder, root, about)
        except prepared.Unusable as reason:
            notice(f"{reason}: it is made again")
    with progress(f"preparing {name}"):
        return prepared.write(folder, root, about, build)
