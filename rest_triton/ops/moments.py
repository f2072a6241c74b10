"""column_moments: mean and variance over the rows, for BatchNorm in training."""

import torch
from torch import Tensor

from . import backend, check
from .library import define, mutate, row_major


def column_moments_definition(h: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of :func:`column_moments` in plain torch."""
    if h.shape[0] == 0:
        zeros = torch.zeros(h.shape[1], device=h.device)
        return zeros, zeros.clone()
    var, mean = torch.var_mean(h.detach().to(torch.promote_types(torch.float32, h.dtype)), 0, correction=0)
    return mean, var


def column_moments(h: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, biased variance) of h's columns, float32[D] each, in one pass.

    Autograd treats them as constants. Pass them to :func:`activate` as ``moments``: its backward differentiates them.

    Args:
        h: [R, D] float32, bfloat16 or float16. Without rows both results are zero.
    """
    check.tensor("h", h, (*check.ROW_DTYPES, torch.float64) if backend.runs_definition() else check.ROW_DTYPES, 2)
    if backend.runs_definition():
        return column_moments_definition(h)
    return _moments(h)


def _moments_kernel(h: Tensor) -> tuple[Tensor, Tensor]:
    mean, var = (torch.empty(h.shape[1], dtype=torch.float32, device=h.device) for _ in range(2))
    backend.kernels(h.device).column_moments(mean, var, row_major(h))
    return mean, var


def _moments_fake(h: Tensor) -> tuple[Tensor, Tensor]:
    mean, var = (torch.empty(h.shape[1], dtype=torch.float32, device=h.device) for _ in range(2))
    return mean, var


_moments = define("column_moments(Tensor h) -> (Tensor, Tensor)", _moments_kernel, _moments_fake)
mutate(_moments, lambda redispatch, *args: redispatch(*args))
