"""The error that a kernel may have: that of plain torch, plus a little.

The truth is the definition in float64. Plain torch is the definition in the dtypes of the case. "A little" is one rounding
of the result's dtype (the kernel may round the other way) and float32 noise from adding in another order.
"""

import torch
from torch import Tensor

ROUNDING = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float64: 2.0**-50}


def assert_within_budget(name: str, got: Tensor, plain: Tensor, truth: Tensor, terms: float = 0.0) -> None:
    """Assert that ``got`` is within the budget. terms: the size of the summands, where they cancel in the result."""
    assert got.shape == truth.shape, f"{name}: shape {list(got.shape)}, expected {list(truth.shape)}"
    assert got.dtype == plain.dtype, f"{name}: dtype {got.dtype}, expected {plain.dtype}"
    if truth.numel() == 0:
        return
    got64, truth = got.detach().double().cpu(), truth.detach().cpu()
    assert torch.isfinite(got64).all(), f"{name}: {int((~torch.isfinite(got64)).sum())} elements are not finite"
    plain_error = (plain.detach().double().cpu() - truth).abs()
    error = (got64 - truth).abs()
    allowed = plain_error.max() + ROUNDING[got.dtype] * truth.abs() + 2.0**-22 * truth.abs().max() + 2.0**-23 * terms
    excess = error - allowed
    if (excess > 0).any():
        worst = int(excess.argmax())
        raise AssertionError(
            f"{name}: {int((excess > 0).sum())} of {truth.numel()} elements out of budget; the worst is "
            f"{got64.flatten()[worst]:.8g}, truth {truth.flatten()[worst]:.8g}, error {error.flatten()[worst]:.3g}, "
            f"allowed {allowed.flatten()[worst]:.3g}"
        )
