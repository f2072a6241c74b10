"""The age of a history's rows: steps since they were written."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

NEVER = -1  # the stamp of a row that was never written
OLDEST = 1 << 16  # steps; ages beyond it are counted as this


@dataclass(frozen=True)
class Ages:
    """Ages of the rows that were written, in steps.

    Args:
        mean: the mean age, 0 if there are no such rows. percentiles: of 50, 90, 99 and 100 %.
        histogram: int64; element 0 counts age 0, element i > 0 the ages from 2^(i-1) up to 2^i.
        never: the number of rows that were never written.
    """

    mean: float
    percentiles: tuple[int, int, int, int]
    histogram: Tensor
    never: int


def ages(stamp: Tensor, step: int) -> Ages:
    """The ages at ``step`` of rows with these stamps, int32[K].

    Example::

        ages(store.stamp(0), step).mean  # "memory persistence": mean age over all nodes
    """
    written = stamp[stamp != NEVER]
    count, never = written.numel(), stamp.numel() - written.numel()
    if count == 0:
        return Ages(0.0, (0, 0, 0, 0), torch.zeros(1, dtype=torch.int64), never)
    age = step - written
    if int(age.min()) < 0:
        raise ValueError(f"rows were written at step {int(written.max())}, later than step {step}; give the current step")
    of_age = torch.bincount(age.clamp(max=OLDEST)).cpu()
    up_to = of_age.cumsum(0)
    wanted = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64).mul(count).ceil().long()
    median, p90, p99, most = torch.searchsorted(up_to, wanted).tolist()
    edges = [0, 1, *(1 << i for i in range(1, 18))]
    ends = [e for e in edges if e < of_age.numel()] + [of_age.numel()]
    histogram = torch.stack([of_age[a:b].sum() for a, b in pairwise(ends)])
    return Ages(float(age.double().mean()), (median, p90, p99, most), histogram, never)


def mean_age(stamp: Tensor, step: int) -> float:
    """The mean age over all rows, in one pass. A row that was never written counts as written at step -1."""
    return step - float(stamp.sum(dtype=torch.int64)) / max(1, stamp.numel())
