"""history_attention, against gathering rows along the edges, softmax by scatter, and index_add in torch, as GATConv does.

Scores are given: GATConv's linear layer is the same for all sides. Cutting the batch's matrix out of the graph is not
timed for the alternatives.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.ops import history_attention, history_attention_definition

from .alternatives import Cut
from .cases import Case
from .harness import OURS, Bench, Variant, against
from .limits import aggregate

CASES = [(Case("arxiv", 64), 8), (Case("products", 47), 1), (Case("arxiv", 64, "bfloat16"), 8)]
Softmax = Callable[[Tensor, Tensor, int], Tensor]


def by_scatter(score: Tensor, row: Tensor, rows: int) -> Tensor:
    index = row[:, None].expand_as(score)
    largest = score.new_zeros(rows, score.shape[1]).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    weight = (score - largest[row]).exp()
    return weight / weight.new_zeros(rows, score.shape[1]).index_add(0, row, weight)[row]


def by_pyg(score: Tensor, row: Tensor, rows: int) -> Tensor:
    from torch_geometric.utils import softmax

    return softmax(score, row, num_nodes=rows)


@pytest.mark.parametrize("mode", ["forward", "both"])
@pytest.mark.parametrize(("case", "heads"), CASES, ids=str)
def bench_history_attention(bench: Bench, case: Case, heads: int, mode: str) -> None:
    name, b = bench.build(case)
    b = replace(b, adj=replace(b.adj, row_scale=None, col_scale=None, reverse=None).with_reverse())
    cut, rows, width = Cut(b), len(b.rows), b.x.shape[1]
    x, x_score, row_score = (t.requires_grad_() for t in (b.x, b.x[:, :heads].clone(), b.x[:, -heads:].clone()))
    table_score = b.table[:, :heads].contiguous()
    grad = torch.randn_like(b.x) if mode == "both" else None

    def messages(softmax: Softmax) -> Tensor:
        source = torch.cat([x, b.table.index_select(0, cut.halo).float()])
        score = torch.cat([x_score, table_score.index_select(0, cut.halo).float()])
        alpha = softmax(F.leaky_relu(score[cut.col] + row_score[cut.row], 0.2), cut.row, rows)
        message = alpha[:, :, None] * source.index_select(0, cut.col).view(-1, heads, width // heads)
        return source.new_zeros(rows, width).index_add(0, cut.row, message.flatten(1))

    exact = [t.detach().double().requires_grad_() for t in (x, x_score, row_score)]
    wanted = [
        history_attention_definition(b.adj, b.rows, b.position, *exact, b.table.double(), table_score.double())
    ]  # fmt: skip
    if grad is not None:
        wanted += torch.autograd.grad(wanted[0], exact, grad.double())
    inputs = x, x_score, row_score
    ours = Variant(OURS, partial(history_attention, b.adj, b.rows, b.position, *inputs, b.table, table_score), inputs)
    others = [Variant("pull + cat + gather + scatter softmax + index_add", partial(messages, by_scatter), inputs)]
    if importlib.util.find_spec("torch_geometric"):
        others.append(Variant("the same with PyG's softmax, as GATConv", partial(messages, by_pyg), inputs))
    limit = aggregate(b, b.table, [b.rows] if grad is not None else [])
    bench.op(
        f"history_attention, {heads} heads", name, [ours, *others], against(*(w.detach() for w in wanted)), [limit], grad
    )
