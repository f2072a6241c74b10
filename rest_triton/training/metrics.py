"""Scores of predictions: accuracy, or micro-averaged F1 for several labels per node."""

import torch
from torch import Tensor

from ..data.graph import MASKS, Graph
from ..sampling.batch import Batch

SPLITS = tuple(mask.removesuffix("_mask") for mask in MASKS)  # train, val, test


def counts(logits: Tensor, y: Tensor) -> Tensor:
    """int64[2]: two counts. Their sums over rows have the score as their quotient.

    One label: right predictions, and rows. Several: twice the right positives; predicted and actual positives.

    Args:
        logits: [R, C]. y: int64[R], or int8 [R, C] of 0 and 1. Rows with an unknown label (-1) do not count.
    """
    if y.dim() == 2:
        labelled = y.amin(1, keepdim=True) >= 0
        predicted, actual = (logits > 0) & labelled, (y > 0) & labelled
        return torch.stack([2 * (predicted & actual).sum(), predicted.sum() + actual.sum()])
    return torch.stack([(logits.argmax(1) == y).sum(), (y >= 0).sum()])


class Scores:
    """Scores by split, from results that come in pieces: only counts are kept, on the device of the results.

    Args:
        graph: with labels and masks.

    Example::

        found = Scores(graph)
        exact_pass.run(found.add)
        found.by_split()  # {"train": 0.93, "val": 0.91, "test": 0.91}
    """

    def __init__(self, graph: Graph) -> None:
        assert graph.y is not None
        self.y = graph.y
        masks = {split: getattr(graph, mask) for split, mask in zip(SPLITS, MASKS, strict=True)}
        self.masks: dict[str, Tensor] = {split: mask for split, mask in masks.items() if mask is not None}
        self.counts: dict[str, Tensor] = {}

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Count the rows of a batch that are in a split. logits: [R, C], in the batch's order."""
        y = batch.take(self.y)
        for split, mask in self.masks.items():
            rows = torch.nonzero(batch.take(mask)).squeeze(1)
            if rows.numel() > 0:
                found = counts(logits[rows.to(logits.device)], y[rows].to(logits.device))
                self.counts[split] = found + self.counts.get(split, 0)

    def by_split(self) -> dict[str, float]:
        """Scores of train, val and test, as far as the graph has them. 0 for a split without labels."""
        sums = {split: self.counts[split].tolist() if split in self.counts else (0, 0) for split in self.masks}
        return {split: right / max(1, of) for split, (right, of) in sums.items()}
