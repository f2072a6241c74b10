"""gather_rows and scatter_rows against indexing, and against a plain copy of as many bytes."""

import pytest
import torch

from rest_triton.ops import gather_rows, scatter_rows

from .measure import ROUNDS, Report, best


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def bench_rows(benchmark: pytest.FixtureRequest, tiny: bool, report: Report, dtype: torch.dtype) -> None:
    count, nodes, width = (50, 300, 16) if tiny else (60_000, 600_000, 128)
    table = torch.randn(nodes, width).to(dtype)
    index = torch.randperm(nodes)[:count]
    rows = torch.randn(count, width)
    stamp = torch.zeros(nodes, dtype=torch.int32)
    buffer = torch.empty_like(rows)

    def put() -> None:
        table[index] = rows.to(dtype)

    assert torch.equal(gather_rows(table, index, dtype=torch.float32), table[index].float())
    variants = {
        "gather_rows to float32": lambda: gather_rows(table, index, dtype=torch.float32),
        "table[index].float()": lambda: table[index].float(),
        "scatter_rows from float32, with stamp": lambda: scatter_rows(table, index, rows, stamp=stamp, step=1),
        "table[index] = rows.to(dtype), no stamp": put,
        "copy of the rows, contiguous, reused memory": lambda: buffer.copy_(rows),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    names = list(times)
    remarks = (
        f"{times[names[1]] / times[names[0]]:.1f} times faster; {100 * times[names[4]] / times[names[0]]:.0f} % of a copy",
        "",
        f"{times[names[3]] / times[names[2]]:.1f} times faster; {100 * times[names[4]] / times[names[2]]:.0f} % of a copy",
        "",
        "",
    )
    report.table(
        f"rows: {count} random rows of {width}, table of {nodes} in {str(dtype)[6:]}",
        [(n, t, r) for (n, t), r in zip(times.items(), remarks, strict=True)],
    )
    benchmark.pedantic(gather_rows, args=(table, index), rounds=1 if tiny else ROUNDS)
