"""history_spmm, halo_spmm and the gradient of edge weights, against pull, concatenate and multiply in torch, and against
only reading the rows.

Cutting the batch's matrix out of the graph is not timed for the alternatives: bench_graph and bench_epoch do that.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from rest_triton.ops import halo_spmm, history_spmm

from .alternatives import Cut, aggregates, messages
from .cases import AGGREGATES, UNIFORM, Case, neighbours
from .harness import OURS, Bench, Variant, against
from .limits import aggregate, reading, reads

both_modes = pytest.mark.parametrize("mode", ["forward", "both"])


@both_modes
@pytest.mark.parametrize("case", AGGREGATES, ids=str)
def bench_history_spmm(bench: Bench, case: Case, mode: str) -> None:
    name, b = bench.build(case)
    cut, x = Cut(b), b.x.requires_grad_()
    grad = torch.randn_like(b.x) if mode == "both" else None

    def pulled() -> Tensor:
        return torch.cat([x, b.table.index_select(0, cut.halo).float()])

    with torch.no_grad():
        wanted = [cut.product64(pulled())]
        if grad is not None:
            wanted.append(cut.transposed64(grad)[: len(b.rows)])
    ours = Variant(OURS, partial(history_spmm, b.adj, b.rows, b.position, x, b.table), (x,))
    variants = [ours, *aggregates(cut, pulled, (x,), case, "pull + cat", bench.tiny)]
    limit = aggregate(b, b.table, [b.rows] if grad is not None else [])
    bench.op("history_spmm", name, variants, against(*wanted), [limit], grad)


@both_modes
@pytest.mark.parametrize("case", [Case("arxiv", 128), Case("products", 47)], ids=str)
def bench_halo_spmm(bench: Bench, case: Case, mode: str) -> None:
    """The halo's rows are computed and have gradients: no table, nothing pulled, one more aggregate backward."""
    name, b = bench.build(case)
    cut, x = Cut(b), b.x.requires_grad_()
    halo_x = b.table.index_select(0, cut.halo).float().requires_grad_()
    position = b.position.clone()
    position[cut.halo] = ~torch.arange(len(cut.halo), dtype=torch.int32, device=position.device)
    b = replace(b, position=position)
    grad = torch.randn_like(b.x) if mode == "both" else None

    def joined() -> Tensor:
        return torch.cat([x, halo_x])

    with torch.no_grad():
        wanted = [cut.product64(joined())]
        if grad is not None:
            wanted += cut.transposed64(grad).split([len(b.rows), len(cut.halo)])
    ours = Variant(OURS, partial(halo_spmm, b.adj, b.rows, cut.halo, position, x, halo_x), (x, halo_x))
    variants = [ours, *aggregates(cut, joined, (x, halo_x), case, "cat", bench.tiny)]
    limit = aggregate(b, halo_x, [b.rows, cut.halo] if grad is not None else [])
    bench.op("halo_spmm", name, variants, against(*wanted), [limit], grad)


def bench_edge_weights(bench: Bench) -> None:
    """history_spmm with a weight per edge and the gradient of these; torch's CSR product has none, messages have."""
    name, b = bench.build(Case("arxiv", 47))
    cut = Cut(b)
    weight = torch.rand(b.adj.num_edges, device=b.rows.device).requires_grad_()
    adj = replace(b.adj, edge_weight=weight, reverse=None)
    edge = neighbours(replace(b.adj, col=torch.arange(b.adj.num_edges, device=b.rows.device)), b.rows)
    grad = torch.randn_like(b.x)

    def pulled() -> Tensor:
        return torch.cat([b.x, b.table.index_select(0, cut.halo).float()])

    with torch.no_grad():
        source = pulled().double()
        wanted_weight = torch.zeros(b.adj.num_edges, dtype=torch.float64, device=weight.device)
        for some in torch.arange(len(edge), device=weight.device).split(1 << 18):
            dots = (source[cut.col[some]] * grad.double()[cut.row[some]]).sum(1)
            wanted_weight[edge[some]] = cut.value64[some] * dots
        weighted = copy(cut)
        weighted.value64 = cut.value64 * weight[edge].double()
        wanted = weighted.product64(source)
    ours = Variant(OURS, partial(history_spmm, adj, b.rows, b.position, b.x, b.table), (weight,))
    theirs = Variant("pull + cat + messages + scatter_add", lambda: messages(cut, pulled, weight[edge])(), (weight,))
    variants = [ours, theirs, *([] if bench.tiny else [theirs.compiled()])]
    limit = reading(2 * reads(b.position, b.columns, b.x, b.table))
    bench.op("edge weights", name, variants, against(wanted, wanted_weight), [limit], grad)


@pytest.mark.parametrize("width", [128, 256])
def bench_bfloat16_table(bench: Bench, width: int) -> None:
    """All rows from the table, as in exact inference: bfloat16 has half the bytes, but not half the time."""
    name, b = bench.build(Case(UNIFORM, width, "bfloat16"))
    everything = ~torch.arange(b.adj.num_nodes, dtype=torch.int32, device=b.rows.device)
    full = b.table.float()
    tables = {OURS: b.table, "a float32 table": full}
    variants = [Variant(n, partial(history_spmm, b.adj, b.rows, everything, None, t)) for n, t in tables.items()]
    names = ("only reading the rows", "only reading the rows of the float32 table")
    limits = [reading(reads(everything, b.columns, None, t), n) for n, t in zip(names, tables.values(), strict=True)]
    columns = neighbours(b.adj, b.rows)
    row = torch.repeat_interleave(
        torch.arange(len(b.rows), device=columns.device), b.adj.rowptr[b.rows + 1] - b.adj.rowptr[b.rows]
    )
    wanted = torch.zeros(len(b.rows), full.shape[1], dtype=torch.float64, device=full.device)
    assert b.adj.row_scale is not None and b.adj.col_scale is not None
    for some in torch.arange(len(columns), device=columns.device).split(1 << 18):
        weight = b.adj.row_scale[b.rows[row[some]]].double() * b.adj.col_scale[columns[some]].double()
        wanted.index_add_(0, row[some], weight[:, None] * full[columns[some]].double())
    bench.op("history_spmm, all rows from the table", name, variants, against(wanted), limits)


def bench_between_matmuls(bench: Bench) -> None:
    """history_spmm and torch's products in turn, as in training, against one after the other: a pool of threads of its own
    would wait behind torch's."""
    name, b = bench.build(Case("arxiv", 128))
    weight = torch.randn(b.x.shape[1], b.x.shape[1], device=b.x.device)
    aggregate_once = partial(history_spmm, b.adj, b.rows, b.position, b.x, b.table)
    multiply_once = partial(torch.mm, b.x, weight)

    def calls(*order: Callable[[], object]) -> None:
        for call in order:
            call()

    apart = [aggregate_once] * 10 + [multiply_once] * 10
    mixed = [aggregate_once, multiply_once] * 10
    bench.in_turn("history_spmm between matmuls", name, {OURS: partial(calls, *mixed), "10 of each": partial(calls, *apart)})
