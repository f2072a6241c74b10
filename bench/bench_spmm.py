"""history_spmm, halo_spmm and the gradient of edge weights: against pull, concatenate and multiply, and against only
reading the rows.

Cutting the batch's matrix out of the graph and relabelling it is not timed for the alternatives: per op it is said what they
compute, per batch (bench_batches) and per epoch (bench_epoch) what they have to do before.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.ops import halo_spmm, history_spmm

from . import moved
from .alternatives import MOST_MESSAGES, Cut, Forward, libraries, messages, products
from .cases import AGGREGATES, UNIFORM, Case, Room
from .limits import Limit, reads, row_limits
from .measure import ROUNDS, Report, best
from .results import Record
from .runner import OURS, Job, Variant, against, run
from .shapes import Batch, neighbours


def peers(cut: Cut, source: Forward, inputs: tuple[Tensor, ...], case: Case, room: Room, named: str) -> list[Variant]:
    """What one would write otherwise. The slow ones, and those that torch has to compile, where the case is thorough."""
    made = products(cut, source, thorough=case.thorough) | libraries(cut, source)
    small = case.thorough and cut.messages_bytes(case.width) <= MOST_MESSAGES
    if small:
        made["messages + scatter_add"] = messages(cut, source)
    found = [Variant(f"{named} + {name}", forward, inputs) for name, forward in made.items()]
    if small:
        chosen = (f"{named} + CSR @ dense, int64", f"{named} + messages + scatter_add")
        found += [variant.compiled(room.compiler) for variant in found if variant.what in chosen]
    return found


def limits_of(b: Batch, table: Tensor, backward: Sequence[Tensor]) -> list[Limit]:
    """Reading the rows of forward, and in backward those of the gradient, which is shaped as x, for these rows."""
    assert b.adj.reverse is not None
    forward = row_limits("forward", reads(b.position, b.columns, b.x.detach(), table))
    columns = torch.cat([neighbours(b.adj.reverse, rows) for rows in backward])
    return forward + row_limits("backward", reads(b.position, columns, b.x.detach(), None))


@pytest.mark.parametrize("case", AGGREGATES, ids=str)
def bench_history_spmm(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    name, b = room.build(case)
    cut, x = Cut(b), b.x.requires_grad_()
    grad = torch.randn_like(b.x)

    def pulled() -> Tensor:
        return torch.cat([x, b.table.index_select(0, cut.halo).float()])

    ours = Variant(OURS, partial(history_spmm, b.adj, b.rows, b.position, x, b.table), (x,))
    with torch.no_grad():
        wanted = cut.product64(pulled()), cut.transposed64(grad)[: len(b.rows)]
    job = Job(
        "history_spmm", name, f"history_spmm: {name}", [ours, *peers(cut, pulled, (x,), case, room, "pull + cat")],
        against(*wanted), moved.history_spmm(b), limits_of(b, b.table, [b.rows]), grad, remarks=[b.describe()],
    )  # fmt: skip
    found = run(job, report, 1 if tiny else ROUNDS)
    for mode in ("forward", "both"):
        theirs = [r.seconds for (what, m), r in found.items() if what.startswith("pull") and m == mode and r.seconds]
        benchmark.extra_info[f"speedup_{mode}"] = min(theirs, default=0.0) / (found[OURS, mode].seconds or 1.0)
    benchmark.pedantic(ours.forward, rounds=1)


@pytest.mark.parametrize("case", [Case("arxiv", 128), Case("products", 47)], ids=str)
def bench_fresh_spmm(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    """The halo's rows are computed and have gradients, too: no table, nothing pulled, but one more aggregate backward."""
    name, b = room.build(case)
    cut, x = Cut(b), b.x.requires_grad_()
    halo_x = b.table.index_select(0, cut.halo).float().requires_grad_()
    position = b.position.clone()
    position[cut.halo] = ~torch.arange(len(cut.halo), dtype=torch.int32, device=position.device)
    b = replace(b, position=position)
    grad = torch.randn_like(b.x)

    def joined() -> Tensor:
        return torch.cat([x, halo_x])

    ours = Variant(OURS, partial(halo_spmm, b.adj, b.rows, cut.halo, position, x, halo_x), (x, halo_x))
    with torch.no_grad():
        wanted = cut.product64(joined()), *cut.transposed64(grad).split([len(b.rows), len(cut.halo)])
    job = Job(
        "halo_spmm", name, f"halo_spmm: {name}", [ours, *peers(cut, joined, (x, halo_x), case, room, "cat")],
        against(*wanted), moved.halo_spmm(b, halo_x), limits_of(b, halo_x.detach(), [b.rows, cut.halo]), grad,
        remarks=[b.describe()],
    )  # fmt: skip
    run(job, report, 1 if tiny else ROUNDS)
    benchmark.pedantic(ours.forward, rounds=1)


@pytest.mark.parametrize("case", [Case("arxiv", 47, thorough=True)], ids=str)
def bench_edge_weights(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case) -> None:
    """history_spmm with a weight per edge, and the gradient of these; torch's CSR product has none, messages have."""
    name, b = room.build(case)
    cut = Cut(b)
    weight = torch.rand(b.adj.num_edges, device=b.rows.device).requires_grad_()
    adj = replace(b.adj, edge_weight=weight, reverse=None)
    edge = neighbours(replace(b.adj, col=torch.arange(b.adj.num_edges, device=b.rows.device)), b.rows)
    grad = torch.randn_like(b.x)

    def pulled() -> Tensor:
        return torch.cat([b.x, b.table.index_select(0, cut.halo).float()])

    def by_messages() -> Tensor:
        return messages(cut, pulled, cut.value * weight[edge])()

    with torch.no_grad():
        source = pulled().double()
        wanted_weight = torch.zeros(b.adj.num_edges, dtype=torch.float64, device=weight.device)
        for some in torch.arange(b.edges, device=weight.device).split(1 << 18):
            dots = (source[cut.col[some]] * grad.double()[cut.row[some]]).sum(1)
            wanted_weight[edge[some]] = cut.value64[some] * dots
        weighted = copy(cut)
        weighted.value64 = cut.value64 * weight[edge].double()
        wanted = weighted.product64(source)
    ours = Variant(OURS, partial(history_spmm, adj, b.rows, b.position, b.x, b.table), (weight,))
    theirs = Variant("pull + cat + messages + scatter_add", by_messages, (weight,))
    limits = row_limits("forward", reads(b.position, b.columns, b.x, b.table))
    job = Job(
        "edge weights", name, f"history_spmm with a weight per edge, and its gradient: {name}",
        [ours, theirs, theirs.compiled(room.compiler)], against(wanted, wanted_weight), moved.edge_weights(b),
        [*limits, *(replace(limit, mode="backward") for limit in limits)], grad, remarks=[b.describe()],
    )  # fmt: skip
    run(job, report, 1 if tiny else ROUNDS)
    benchmark.pedantic(ours.forward, rounds=1)


@pytest.mark.parametrize("width", [128, 256])
def bench_bfloat16_table(benchmark: Any, tiny: bool, room: Room, report: Report, width: int) -> None:
    """All rows from the table, as in exact inference: half the bytes, but not half the time."""
    name, b = room.build(Case(UNIFORM, width))
    everything = ~torch.arange(b.adj.num_nodes, dtype=torch.int32, device=b.rows.device)
    variants, bytes_ = {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        table, as_text = b.table.to(dtype), str(dtype)[6:]
        wanted = reads(everything, b.columns, None, table)
        variants[as_text] = partial(history_spmm, b.adj, b.rows, everything, None, table)
        variants[f"{as_text}, only reading"] = row_limits("", wanted)[-1].run
        bytes_[as_text] = sum(r.bytes for r in wanted)
    torch.testing.assert_close(variants["float32"](), variants["bfloat16"](), rtol=2e-2, atol=0.5)
    times = best(variants, 1 if tiny else ROUNDS)
    gain = times["float32"] / times["bfloat16"]
    possible = times["float32, only reading"] / times["bfloat16, only reading"]
    title = f"history_spmm, all rows from the table: {name.removesuffix(', float32')}: bfloat16 is {gain:.2f} times faster"
    report.table(f"{title} (only reading the rows: {possible:.2f} times)", [(what, t, "") for what, t in times.items()])
    for dtype, nbytes in bytes_.items():
        ceiling = nbytes / times[f"{dtype}, only reading"] / 1e9
        case = f"{name.removesuffix(', float32')}, {dtype}, all rows from the table"
        report.record(Record(
            "history_spmm", case, OURS, "forward", times[dtype], bytes=nbytes, ceiling=ceiling,
            ceiling_name="only reading its rows, asked for ahead",
        ))  # fmt: skip
    benchmark.extra_info |= {"gain": gain, "possible": possible}
    benchmark.pedantic(variants["bfloat16"], rounds=1)
