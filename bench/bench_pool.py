"""Why the CPU kernels run on torch's own threads: a training-like mix of torch matmuls and kernels.

The same spmm loop is run by Numba's own thread pool, alone and between matmuls. Torch's workers spin for a while after each
matmul; whoever has threads of his own waits behind them.
"""

import numba
import numpy as np
import pytest
import torch

from rest_triton.ops import history_spmm

from .measure import ROUNDS, Report, best
from .shapes import uniform


@numba.njit(parallel=True, fastmath=True)
def prange_spmm(out, rowptr, col, rows, position, x, table, scale):
    for i in numba.prange(rows.shape[0]):
        g = rows[i]
        out[i, :] = 0
        for k in range(rowptr[g], rowptr[g + 1]):
            c = col[k]
            p = position[c]
            w = scale[c]
            if p >= 0:
                for d in range(out.shape[1]):
                    out[i, d] += w * x[p, d]
            else:
                for d in range(out.shape[1]):
                    out[i, d] += w * table[~p, d]
        for d in range(out.shape[1]):
            out[i, d] *= scale[g]


def bench_mix(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    b = uniform(100, 5, 500, 16, 0.7) if tiny else uniform(6_000, 20, 40_000, 128, 0.7)
    weight = torch.randn(b.x.shape[1], b.x.shape[1])
    arrays = [t.numpy() for t in (b.adj.rowptr, b.adj.col, b.rows, b.position, b.x, b.table, b.adj.row_scale)]
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    out = np.empty(b.x.shape, np.float32)

    def matmul() -> None:
        torch.mm(b.x, weight)

    def ours() -> None:
        history_spmm(b.adj, b.rows, b.position, b.x, b.table)

    def pooled() -> None:
        prange_spmm(out, *arrays)

    def mixed(kernel):
        def run() -> None:
            for _ in range(10):
                kernel()
                matmul()

        return run

    def alone(kernel):
        def run() -> None:
            for _ in range(10):
                kernel()

        return run

    pooled()
    np.testing.assert_allclose(out, history_spmm(b.adj, b.rows, b.position, b.x, b.table).numpy(), rtol=1e-3, atol=1e-3)
    variants = {
        "10 matmuls": alone(matmul),
        "10 history_spmm": alone(ours),
        "10 of both, in turn": mixed(ours),
        "10 numba.prange": alone(pooled),
        "10 numba.prange and matmuls, in turn": mixed(pooled),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    names = list(times)
    excess = {
        names[2]: times[names[2]] / (times[names[0]] + times[names[1]]),
        names[4]: times[names[4]] / (times[names[0]] + times[names[3]]),
    }
    report.table(
        f"a mix of kernels and matmuls: {len(b.rows)} rows, {b.edges} edges, width {b.x.shape[1]}, "
        f"Numba's threads: {numba.threading_layer()}",
        [(n, t, f"{excess[n]:.2f} times the sum of its parts" if n in excess else "") for n, t in times.items()],
    )
    benchmark.extra_info |= {"excess_ours": excess[names[2]], "excess_prange": excess[names[4]]}
    benchmark.pedantic(variants[names[2]], rounds=1 if tiny else ROUNDS)
