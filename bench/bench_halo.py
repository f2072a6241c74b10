"""halo against torch.unique and a map of marks, and as a share of the aggregate that it serves.

The alternatives are given the batch's neighbours, side by side and as int64: cutting them out of the graph is not timed."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import halo, halo_definition, history_spmm

from . import moved
from .cases import Case, Room, of_graphs
from .limits import copy
from .measure import ROUNDS, Report
from .runner import OURS, Job, Variant, run


@pytest.mark.parametrize("case", list(of_graphs(128)), ids=lambda case: case.graph)
def bench_halo(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    name, b = room.build(case)
    name = name.split(", width")[0]
    wanted, outside = halo_definition(b.adj, b.rows), b.position < 0

    def by_unique() -> Tensor:
        return torch.unique(b.columns[b.position[b.columns] < 0])

    def by_marks() -> Tensor:
        seen = torch.zeros_like(outside)
        seen[b.columns] = True
        return torch.nonzero(seen & outside).squeeze(1)

    aggregate = "history_spmm at width 128, for scale"
    variants = [
        Variant(OURS, partial(halo, b.adj, b.rows)),
        Variant("torch.unique of those outside", by_unique),
        Variant("a map of marks + nonzero", by_marks),
        Variant("a map of marks + nonzero", by_marks).compiled(room.compiler),
        Variant(
            aggregate,
            partial(history_spmm, b.adj, b.rows, b.position, b.x, b.table),
            errors=lambda got: [0.0],
            moved=moved.history_spmm(b),
        ),
    ]
    nbytes = moved.halo(b)
    job = Job(
        "halo", name, f"halo: {name}", variants, lambda got: [0.0 if torch.equal(got[0], wanted) else float("inf")], nbytes,
        [copy(nbytes["forward"].least, b.rows.device)], b.x, remarks=[b.describe().split(", table")[0]],
    )  # fmt: skip
    found = run(job, report, 1 if tiny else ROUNDS)
    ours, whole = found[OURS, "forward"].seconds, found[aggregate, "forward"].seconds
    assert ours and whole
    report.lines.append(f"  halo takes {100 * ours / whole:.1f} % of the aggregate")
    benchmark.extra_info["share_of_aggregate"] = ours / whole
    benchmark.pedantic(halo, args=(b.adj, b.rows), rounds=1)
