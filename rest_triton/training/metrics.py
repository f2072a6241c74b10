"""Scores of predictions: accuracy, or micro-averaged F1 for several labels per node."""

from torch import Tensor

from ..data.graph import MASKS, Graph

SPLITS = tuple(mask.removesuffix("_mask") for mask in MASKS)  # train, val, test


def score(logits: Tensor, y: Tensor) -> float:
    """The accuracy of the largest logits, or the micro-F1 of positive logits.

    Args:
        logits: [R, C]. y: int64[R], or int8 [R, C] of 0 and 1. Rows with an unknown label (-1) do not count.
    """
    if y.dim() == 2:
        labelled = y.amin(1) >= 0
        predicted, actual = logits[labelled] > 0, y[labelled] > 0
        right = int((predicted & actual).sum())
        return 2 * right / max(1, int(predicted.sum()) + int(actual.sum()))
    labelled = y >= 0
    return float((logits.argmax(1) == y)[labelled].double().mean()) if bool(labelled.any()) else 0.0


def scores(logits: Tensor, graph: Graph) -> dict[str, float]:
    """Scores by split: train, val and test, as far as the graph has them. logits: [N, C], in the order of its nodes."""
    assert graph.y is not None
    logits = logits.to(graph.y.device)
    masks = {part: getattr(graph, mask) for part, mask in zip(SPLITS, MASKS, strict=True)}
    return {part: score(logits[mask], graph.y[mask]) for part, mask in masks.items() if mask is not None}
