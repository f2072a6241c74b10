"""Who learns from whom: masks from lists of ids, and the random splits of data sets that come without any."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

SEED = 12345
SPLITS = 20
TRAIN_PER_CLASS, VAL_PER_CLASS = 20, 30


def mask(ids: np.ndarray | Tensor, num_nodes: int, where: str) -> Tensor:
    """bool[num_nodes], true at ``ids``; ``where`` is what an error says they came from."""
    ids = ids.numpy() if isinstance(ids, Tensor) else ids
    index = torch.from_numpy(np.array(ids, np.int64).reshape(-1))  # a copy: pandas' arrays cannot be written, torch warns
    if index.numel() > 0 and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        raise ValueError(
            f"{where} names nodes from {int(index.min())} to {int(index.max())}, the graph has {num_nodes}; "
            "they are not of the same data set: download both again"
        )
    out = torch.zeros(num_nodes, dtype=torch.bool)
    out[index] = True
    return out


def split_by_class(y: Tensor, split: int) -> dict[str, Any]:
    """20 nodes of each class to train on, 30 to validate on, all others to test on: masks by their names.

    All 20 splits come from one stream of random numbers that starts at seed 12345: class after class, and for each class one
    permutation of its nodes per split. Split s uses the s-th of them. These are the numbers that the published runs drew, so
    split s here is split s there. A class of fewer than 50 nodes gives what it has, first to training.

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
