"""Train, validation and test masks: from lists of ids, and random splits for data sets that have none."""

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...utils.errors import UserError
from ...utils.split_text import SplitText, parse_split
from ..graph import MASKS, Graph

SEED = 12345
SPLITS = 20
TRAIN_PER_CLASS, VAL_PER_CLASS = 20, 30


def mask(ids: np.ndarray | Tensor, num_nodes: int, source: str) -> Tensor:
    """bool[num_nodes], true at ``ids``. Errors name the ``source`` of the ids."""
    index = torch.tensor(ids).long().flatten() if isinstance(ids, np.ndarray) else ids.long().flatten()
    if index.numel() > 0 and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        raise UserError(
            f"{source} has node ids from {int(index.min())} to {int(index.max())}, the graph has {num_nodes} nodes; "
            "download both again"
        )
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, index, True)


def split_by_class(y: Tensor, split: int) -> dict[str, Any]:
    """The masks of random split ``split``: 20 nodes per class for training, 30 for validation, the others for testing.

    All 20 splits come from one stream of random numbers with seed 12345. For each class in turn it gives one permutation of
    the class's nodes per split. Published runs drew the same numbers, so the splits are theirs. A class of fewer than 50
    nodes fills the training set first.

    Args:
        y: int64[N], all known. split: 0 .. 19.

    Example::

        graph = Graph(rowptr, col, y=y, **split_by_class(y, 3))
    """
    generator = torch.Generator().manual_seed(SEED)
    train, val = torch.zeros_like(y, dtype=torch.bool), torch.zeros_like(y, dtype=torch.bool)
    for label in range(int(y.max()) + 1):
        members = torch.nonzero(y == label).flatten()
        drawn = [torch.randperm(members.numel(), generator=generator) for _ in range(SPLITS)][split]
        train[members[drawn[:TRAIN_PER_CLASS]]] = True
        val[members[drawn[TRAIN_PER_CLASS : TRAIN_PER_CLASS + VAL_PER_CLASS]]] = True
    return {"train_mask": train, "val_mask": val, "test_mask": ~(train | val)}


def with_split(graph: Graph, text: str) -> Graph:
    """The graph with the masks of a split, as :func:`rest_triton.utils.split_text.parse_split` has it, instead of its own.

    Nodes without a label are in no mask. The masks depend on the labels and on the seed in the text alone.

    Example::

        graph = with_split(load("graph.npz"), "random:0.6/0.2/0.2@1")
    """
    split = parse_split(text)
    if split.kind == "file":
        masks = _of_file(Path(split.path), graph.num_nodes)
    else:
        if graph.y is None:
            raise UserError(f"split is {text!r}, but {graph.name or 'the graph'} has no labels to divide")
        known = torch.nonzero(graph.y >= 0 if graph.y.dim() == 1 else graph.y.amin(1) >= 0).squeeze(1)
        order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(split.seed))]
        parts = _by_share(order, split) if split.kind == "random" else _by_class(order, graph.y, split, text)
        masks = {name: mask(ids, graph.num_nodes, text) for name, ids in zip(MASKS, parts, strict=True)}
    return dataclasses.replace(
        graph, train_mask=masks["train_mask"], val_mask=masks["val_mask"], test_mask=masks.get("test_mask")
    )


def _by_share(order: Tensor, split: SplitText) -> tuple[Tensor, ...]:
    shares = [part for part in split.parts if part is not None]
    bounds = [0, *(round(sum(shares[: i + 1]) * len(order)) for i in range(len(shares))), len(order)]
    return tuple(order[bounds[i] : bounds[i + 1]] for i in range(3))


def _by_class(order: Tensor, y: Tensor, split: SplitText, text: str) -> tuple[Tensor, ...]:
    """The first nodes of each class, and of the others the first for validation and the next for testing."""
    if y.dim() == 2:
        raise UserError(f"split is {text!r}, but nodes have several labels each; give random:0.6/0.2/0.2")
    count, val, test = (None if part is None else int(part) for part in split.parts)
    assert count is not None and val is not None
    labels, taken = y[order], torch.zeros(len(order), dtype=torch.bool)
    for label in labels.unique():
        members = torch.nonzero(labels == label).squeeze(1)
        if len(members) < count:
            raise UserError(
                f"split is {text!r}, but class {int(label)} has {len(members)} labelled nodes; ask for at most as many of "
                "each class, or give random:0.6/0.2/0.2"
            )
        taken[members[:count]] = True
    left = order[~taken]
    if val + (test or 0) > len(left):
        raise UserError(
            f"split is {text!r}, but {len(left)} labelled nodes are left for {val + (test or 0)} of validation and test; "
            f"ask for fewer, or give per-class:{count}/{val}/rest"
        )
    return order[taken], left[:val], left[val:] if test is None else left[val : val + test]


def _of_file(path: Path, num_nodes: int) -> dict[str, Tensor]:
    """The masks of an .npz."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in MASKS if name in file.files}
    except FileNotFoundError:
        raise UserError(f"split is {str(path)!r}, and that file does not exist") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"split is {str(path)!r}, which cannot be read as an .npz: {error}") from None
    for name in MASKS[:2]:
        if name not in found:
            raise UserError(f"{path} has no {name}; a split has train_mask and val_mask, and may have test_mask")
    for name, values in found.items():
        if values.dtype != torch.bool or values.shape != (num_nodes,):
            raise UserError(
                f"{name} of {path} is {str(values.dtype).removeprefix('torch.')} {list(values.shape)}; it must be "
                f"bool [{num_nodes}], one per node of the graph"
            )
    return found
