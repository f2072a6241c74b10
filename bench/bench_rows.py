"""gather_rows and scatter_rows against indexing, and against a plain copy of as many bytes.

On a batch of clusters, the rows of its halo are gathered and its own are written; without clusters, rows in no order."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import gather_rows, scatter_rows

from . import moved
from .cases import UNIFORM, Case, Room
from .limits import copy
from .measure import ROUNDS, Report
from .runner import OURS, Job, Variant, against, relative_error, run

CASES = [
    Case(UNIFORM, 128, thorough=True),
    Case(UNIFORM, 128, "bfloat16"),
    Case("products", 47),
    Case("products", 256, "bfloat16"),
    Case("papers100m", 128, "float16"),
]


def some_rows(case: Case, rows: Tensor) -> Tensor:
    if case.graph != UNIFORM:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).to(rows.device)]


@pytest.mark.parametrize("case", CASES, ids=str)
def bench_gather_rows(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    """Rows of a table as float32. The gradient of a table, which no training needs, in one case."""
    name, b = room.build(case)
    table, index = b.table, some_rows(case, b.rows if case.graph == UNIFORM else b.halo)
    grad = torch.randn(len(index), table.shape[1], device=table.device)
    wanted = [table[index].double()]
    inputs: tuple[Tensor, ...] = ()
    if case.thorough:
        inputs = (table.requires_grad_(),)
        wanted.append(torch.zeros(table.shape, dtype=torch.float64, device=table.device).index_add(0, index, grad.double()))
    ours = Variant(OURS, partial(gather_rows, table, index, dtype=torch.float32), inputs)
    theirs = Variant("index_select + float", lambda: table.index_select(0, index).float(), inputs)
    variants = [ours, theirs, Variant("table[index].float()", lambda: table[index].float(), inputs)]
    if case.thorough:
        variants.append(theirs.compiled(room.compiler))
    nbytes = moved.gather_rows(table, index, grad)
    job = Job(
        "gather_rows", name, f"gather_rows to float32: {name}", variants, against(*wanted), nbytes,
        [copy(nbytes["forward"].least, table.device)], grad, remarks=[f"{len(index):,} of {len(table):,} rows"],
    )  # fmt: skip
    found = run(job, report, 1 if tiny else ROUNDS)
    benchmark.extra_info["of_copy"] = found[OURS, "forward"].of_ceiling
    benchmark.pedantic(ours.forward, rounds=1)


@pytest.mark.parametrize("case", CASES, ids=str)
def bench_scatter_rows(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    """float32 rows into a table, and their stamps. It has no gradient."""
    name, b = room.build(case)
    table, index, src = b.table, some_rows(case, b.rows), b.x
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

    def errors(got: Sequence[Tensor]) -> list[float]:
        right = bool((stamp[index] == 1).all())
        error = relative_error(table[index], src)
        table[index], stamp[index] = float("nan"), 0  # or the next variant need not write them
        return [error if right else float("inf")]

    theirs = Variant("table[index] = rows", by_index)
    variants = [Variant(OURS, ours), theirs, Variant("index_copy_", by_copy)]
    if case.thorough:
        variants.append(theirs.compiled(room.compiler))
    nbytes = moved.scatter_rows(table, index, src, stamp)
    job = Job(
        "scatter_rows", name, f"scatter_rows from float32, with stamps: {name}", variants, errors, nbytes,
        [copy(nbytes["forward"].least, table.device)], src, torch.finfo(table.dtype).eps,
        remarks=[f"{len(index):,} of {len(table):,} rows"],
    )  # fmt: skip
    found = run(job, report, 1 if tiny else ROUNDS)
    benchmark.extra_info["of_copy"] = found[OURS, "forward"].of_ceiling
    benchmark.pedantic(ours, rounds=1)
