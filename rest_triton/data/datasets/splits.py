"""Train, validation and test masks: from lists of ids, and random splits for data sets that have none."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...utils.errors import UserError

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
