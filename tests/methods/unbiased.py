"""Whether estimates are right on average."""

import torch
from torch import Tensor


def standard_errors(draws: Tensor, exact: Tensor) -> tuple[float, float]:
    """(root mean square, largest) of the entries of ``mean - exact``, in standard errors.

    draws: [K, …], each an estimate of ``exact``. Entries that never vary must be exact, and do not count.
    """
    draws, exact = draws.double().flatten(1), exact.double().flatten()
    error, deviation = draws.mean(0) - exact, draws.std(0)
    varies = deviation > 1e-6 * exact.abs().max()
    assert int(varies.sum()) >= 100, f"only {int(varies.sum())} entries vary"
    torch.testing.assert_close(error[~varies], torch.zeros_like(error[~varies]), rtol=0, atol=1e-5)
    z = error[varies] / (deviation[varies] / len(draws) ** 0.5)
    return float(z.square().mean().sqrt()), float(z.abs().max())


def unbiased(draws: Tensor, exact: Tensor) -> bool:
    rms, most = standard_errors(draws, exact)
    return rms < 1.25 and most < 5
