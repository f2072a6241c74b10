"""gather_rows, scatter_rows and halo against torch's indexing, and against a copy of as many bytes.

On a batch of clusters, the rows of its halo are gathered and its own are written; without clusters, rows in no order.
"""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from rest_triton.ops import gather_rows, halo, halo_definition, scatter_rows

from .cases import SOURCES, UNIFORM, Case
from .harness import OURS, Bench, Variant, against, relative_error
from .limits import copy, gather_bytes, halo_bytes, scatter_bytes

CASES = [
    Case(UNIFORM, 128),
    Case(UNIFORM, 128, "bfloat16"),
    Case("products", 47),
    Case("products", 256, "bfloat16"),
    Case("papers100m", 128, "float16"),
]


def shuffled(case: Case, rows: Tensor) -> Tensor:
    if case.graph != UNIFORM:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).to(rows.device)]


@pytest.mark.parametrize("case", CASES, ids=str)
def bench_gather_rows(bench: Bench, case: Case) -> None:
    """Rows of a table as float32."""
    name, b = bench.build(case)
    table, index = b.table, shuffled(case, b.rows if case.graph == UNIFORM else b.halo)
    variants = [
        Variant(OURS, partial(gather_rows, table, index, dtype=torch.float32)),
        Variant("index_select + float", lambda: table.index_select(0, index).float()),
        Variant("table[index].float()", lambda: table[index].float()),
    ]
    wanted = table[index].double()
    limit = copy(gather_bytes(table, index, wanted.float()), table.device)
    bench.op("gather_rows", name, variants, against(wanted), [limit])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [128, 256])
def bench_gather_into_buffer(bench: Bench, width: int, dtype: str) -> None:
    """An eighth of the rows of products' table into a buffer that is there already, as histories are fetched."""
    nodes = 2_000 if bench.tiny else 2_449_029
    table = torch.ones(nodes, width, dtype=getattr(torch, dtype), device=bench.device)
    table += torch.arange(nodes, device=bench.device)[:, None] % 251
    index = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[: nodes // 8].sort().values.to(bench.device)
    buffer = torch.zeros(len(index), width, dtype=table.dtype, device=bench.device)

    def ours() -> Tensor:
        gather_rows(table, index, out=buffer)
        return buffer

    variants = [Variant(OURS, ours), Variant("index_select", lambda: torch.index_select(table, 0, index, out=buffer))]
    name = f"{len(index):,} of {nodes:,} rows, width {width}, {dtype}"
    limit = copy(gather_bytes(table, index, buffer), table.device)
    wanted = table[index].double()

    def error(got: Sequence[Tensor]) -> float:
        far = relative_error(got[0], wanted)
        buffer.zero_()  # or the next variant need not write it
        return far

    bench.op("gather_rows into a buffer", name, variants, error, [limit])


@pytest.mark.parametrize("case", CASES, ids=str)
def bench_scatter_rows(bench: Bench, case: Case) -> None:
    """float32 rows into a table, and their stamps."""
    name, b = bench.build(case)
    table, index, src = b.table, shuffled(case, b.rows), b.x
    stamp = torch.zeros(len(table), dtype=torch.int32, device=table.device)

    def ours() -> Tensor:
        scatter_rows(table, index, src, stamp=stamp, step=1)
        return table

    def by_index() -> Tensor:
        table[index] = src.to(table.dtype)
        stamp[index] = 1
        return table

    def by_copy() -> Tensor:
        table.index_copy_(0, index, src.to(table.dtype))
        stamp[index] = 1
        return table

    def error(got: Sequence[Tensor]) -> float:
        stamped = bool((stamp[index] == 1).all())
        far = relative_error(table[index], src)
        table[index], stamp[index] = float("nan"), 0  # or the next variant need not write them
        return far if stamped else float("inf")

    variants = [Variant(OURS, ours), Variant("table[index] = rows", by_index), Variant("index_copy_", by_copy)]
    limit = copy(scatter_bytes(table, index, src, stamp), table.device)
    rounding = float(torch.finfo(table.dtype).eps)
    bench.op("scatter_rows", name, variants, error, [limit], tolerance=rounding)


@pytest.mark.parametrize("graph", SOURCES)
def bench_halo(bench: Bench, graph: str) -> None:
    """The alternatives are given the batch's neighbours as int64: cutting them out of the graph is not timed."""
    name, b = bench.build(Case(graph, 1))
    outside = b.position < 0

    def by_unique() -> Tensor:
        return torch.unique(b.columns[b.position[b.columns] < 0])

    def by_marks() -> Tensor:
        seen = torch.zeros_like(outside)
        seen[b.columns] = True
        return torch.nonzero(seen & outside).squeeze(1)

    variants = [
        Variant(OURS, partial(halo, b.adj, b.rows)),
        Variant("torch.unique of those outside", by_unique),
        Variant("a map of marks + nonzero", by_marks),
    ]
    limit = copy(halo_bytes(b), b.rows.device)
    check = against(halo_definition(b.adj, b.rows))
    bench.op("halo", name.split(", width")[0], variants, check, [limit], tolerance=0.0)
