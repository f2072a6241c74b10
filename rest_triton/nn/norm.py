"""BatchNorm as a scale and a shift, which the op ``activate`` applies."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Module

from ..history.streams import Resource, Streams
from ..ops import column_moments

Moments = tuple[Tensor, Tensor]
Statistics = Mapping[BatchNorm1d, Moments]


def batch_moments(h: Tensor) -> Moments:
    """(mean, variance) of the columns of a batch, float32 [D] each."""
    return column_moments(h.detach())


def scale_and_shift(
    norm: BatchNorm1d, moments: Moments, bias: Tensor | None, *, of_batch: bool
) -> tuple[Tensor, Tensor, Moments | None]:
    """(scale, shift, moments for the gradient) of ``norm(h + bias)``.

    Args:
        moments: (mean, variance) to normalise by. of_batch: they are the moments of h; the bias then cancels out.
    """
    mean, var = moments
    if not of_batch and bias is not None:
        mean = mean - bias
    scale = torch.rsqrt(var + norm.eps)
    scale = scale if norm.weight is None else norm.weight * scale
    shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
    return scale, shift, (mean, var + norm.eps) if of_batch else None


def running(norm: BatchNorm1d) -> Moments:
    """The running statistics of a BatchNorm."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


@torch.no_grad()
def track(norm: BatchNorm1d, moments: Moments, rows: int, bias: Tensor | None) -> None:
    """Update the running statistics with the moments of a batch of ``rows`` rows, as torch's BatchNorm does."""
    mean, var = moments
    running_mean, running_var = running(norm)
    factor = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if factor is None:  # the mean over all batches
            factor = 1.0 / float(norm.num_batches_tracked)
    if factor is not None:
        running_mean.lerp_(mean if bias is None else mean + bias, factor)
        running_var.lerp_(var * (rows / (rows - 1)), factor)


def snapshot(model: Module, streams: Streams, statistics: Resource) -> Statistics:
    """Copies of all running statistics, for a forward that runs while training may update them."""
    norms = [module for module in model.modules() if isinstance(module, BatchNorm1d)]

    def copies() -> Statistics:
        return {norm: (running(norm)[0].clone(), running(norm)[1].clone()) for norm in norms}

    return streams.submit(streams.current, copies, reads=[statistics]) if norms else {}
