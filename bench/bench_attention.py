"""history_attention: against gathering rows along the edges, softmax by scatter and index_add, and with PyG's softmax.

Scores are given: GATConv's linear layer is the same for all sides. Cutting the batch's matrix out of the graph is not timed.
"""

import importlib.util
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.ops import history_attention, history_attention_definition

from . import moved
from .alternatives import Cut
from .cases import Case, Room
from .limits import reads, row_limits
from .measure import ROUNDS, Report
from .moved import Moved
from .runner import OURS, Job, Variant, against, run
from .shapes import neighbours

SLOPE = 0.2
CASES = [
    (Case("arxiv", 64, thorough=True), 8),
    (Case("products", 47, thorough=True), 1),
    (Case("reddit", 64, "bfloat16"), 8),
]


def softmax_by_scatter(score: Tensor, row: Tensor, rows: int) -> Tensor:
    index = row[:, None].expand_as(score)
    largest = score.new_zeros(rows, score.shape[1]).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    weight = (score - largest[row]).exp()
    return weight / weight.new_zeros(rows, score.shape[1]).index_add(0, row, weight)[row]


def softmax_of_pyg(score: Tensor, row: Tensor, rows: int) -> Tensor:
    from torch_geometric.utils import softmax

    return softmax(score, row, num_nodes=rows)


@pytest.mark.parametrize(("case", "heads"), CASES, ids=lambda value: str(value))
def bench_history_attention(benchmark: Any, tiny: bool, room: Room, report: Report, case: Case, heads: int) -> None:
    name, b = room.build(case)
    b = replace(b, adj=replace(b.adj, row_scale=None, col_scale=None, reverse=None).with_reverse())
    cut, count, width = Cut(b), len(b.rows), b.x.shape[1]
    inputs = x, x_score, row_score = tuple(
        t.requires_grad_() for t in (b.x, b.x[:, :heads].clone(), b.x[:, -heads:].clone())
    )
    table_score, grad = b.table[:, :heads].contiguous(), torch.randn_like(b.x)

    def by(op: Any, *given: Tensor) -> Tensor:
        return op(b.adj, b.rows, b.position, *given, negative_slope=SLOPE)

    def messages(softmax: Any) -> Tensor:
        source = torch.cat([x, b.table.index_select(0, cut.halo).float()])
        score = torch.cat([x_score, table_score.index_select(0, cut.halo).float()])
        alpha = softmax(F.leaky_relu(score[cut.col] + row_score[cut.row], SLOPE), cut.row, count)
        message = alpha[:, :, None] * source.index_select(0, cut.col).view(-1, heads, width // heads)
        return source.new_zeros(count, width).index_add(0, cut.row, message.flatten(1))

    exact = [t.detach().double().requires_grad_() for t in inputs]
    wanted = by(history_attention_definition, *exact, b.table.double(), table_score.double())
    wanted_grads = torch.autograd.grad(wanted, exact, grad.double())

    ours = Variant(OURS, partial(by, history_attention, *inputs, b.table, table_score), inputs)
    theirs = Variant("pull + cat + gather + scatter softmax + index_add", partial(messages, softmax_by_scatter), inputs)
    variants = [ours, theirs]
    if importlib.util.find_spec("torch_geometric"):
        variants.append(Variant("the same with PyG's softmax, as GATConv", partial(messages, softmax_of_pyg), inputs))
    if case.thorough:
        variants.append(theirs.compiled(room.compiler))

    assert b.adj.reverse is not None
    forward, backward = (
        reads(b.position, columns, x.detach(), table)
        for columns, table in ((b.columns, b.table), (neighbours(b.adj.reverse, b.rows), None))
    )
    limits = row_limits("forward", forward) + row_limits("backward", forward + backward)
    job = Job(
        "history_attention", name, f"history_attention, {heads} heads: {name}", variants,
        against(wanted.detach(), *wanted_grads), bytes_moved(b, heads), limits, grad, remarks=[b.describe()],
    )  # fmt: skip
    found = run(job, report, 1 if tiny else ROUNDS)
    for mode in ("forward", "both"):
        seconds = [r.seconds for (what, m), r in found.items() if what in {v.what for v in variants[1:]} and m == mode]
        benchmark.extra_info[f"speedup_{mode}"] = min(filter(None, seconds), default=0.0) / (
            found[OURS, mode].seconds or 1.0
        )
    benchmark.pedantic(ours.forward, rounds=1)


def bytes_moved(b: Any, heads: int) -> dict[str, Moved]:
    """Those of history_spmm, and of scores. Backward reads the forward's rows again, and then the reverse graph's."""
    scores = 4 * heads * len(b.rows)
    spmm = moved.history_spmm(b)
    forward = spmm["forward"] + Moved(4 * scores, 4 * heads * b.edges)
    return moved.with_both(forward, forward + spmm["backward"] + Moved(4 * scores, 0))
