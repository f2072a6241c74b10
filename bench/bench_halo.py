"""halo against torch.unique, and as a share of the aggregate that it serves."""

import pytest
import torch

from rest_triton.ops import halo, history_spmm

from .measure import ROUNDS, Report, best
from .shapes import powerlaw


def bench_halo(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    count, edges, nodes = (100, 1000, 300) if tiny else (85_000, 1_200_000, 169_343)
    adj, rows = powerlaw(count, edges, nodes, 30 if tiny else 2_100)
    position = ~torch.arange(nodes, dtype=torch.int32)
    position[rows] = torch.arange(count, dtype=torch.int32)
    x, table = torch.randn(count, 128), torch.randn(nodes, 128)
    batch_edges = int(adj.rowptr[count])

    def by_unique() -> torch.Tensor:
        neighbours = adj.col[:batch_edges].long()
        return torch.unique(neighbours[position[neighbours] < 0])

    assert torch.equal(halo(adj, rows), by_unique())
    variants = {
        "halo": lambda: halo(adj, rows),
        "torch.unique of out-of-batch neighbours": by_unique,
        "history_spmm at width 128": lambda: history_spmm(adj, rows, position, x, table),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    share = times["halo"] / times["history_spmm at width 128"]
    remarks = (
        f"{100 * share:.1f} % of the aggregate",
        f"{times['torch.unique of out-of-batch neighbours'] / times['halo']:.0f} times ours",
        "",
    )
    report.table(
        f"halo of {count} rows and {batch_edges} edges: {len(by_unique())} nodes",
        [(n, t, r) for (n, t), r in zip(times.items(), remarks, strict=True)],
    )
    benchmark.extra_info["share_of_aggregate"] = share
    benchmark.pedantic(halo, args=(adj, rows), rounds=1 if tiny else 20)
