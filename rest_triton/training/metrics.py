"""How good predictions are: accuracy, or micro-averaged F1 where a node can have several labels."""

from torch import Tensor

from ..data.graph import MASKS, Graph

SPLITS = tuple(mask.removesuffix("_mask") for mask in MASKS)  # train, val, test


def score(logits: Tensor, y: Tensor) -> float:
    """The share of rows whose largest logit is the label's, or the micro-F1 of the labels with positive logits.

    Args:
        logits: [R, C]. y: int64[R], or int8 [R, C] of 0 and 1; rows with a label that is not known (-1) do not count.
    """
    if y.dim() == 2:
        known = y.amin(1) >= 0
        predicted, wanted = logits[known] > 0, y[known] > 0
        right = int((predicted & wanted).sum())
        return 2 * right / max(1, int(predicted.sum()) + int(wanted.sum()))
    known = y >= 0
    return float((logits.argmax(1) == y)[known].double().mean()) if bool(known.any()) else 0.0


def scores(logits: Tensor, graph: Graph) -> dict[str, float]:
    """``{"train": …, "val": …, "test": …}`` of those that the graph has. logits: [N, C], in the order of its nodes."""
    assert graph.y is not None
    logits = logits.to(graph.y.device)
    masks = {part: getattr(graph, mask) for part, mask in zip(SPLITS, MASKS, strict=True)}
    return {part: score(logits[mask], graph.y[mask]) for part, mask in masks.items() if mask is not None}
