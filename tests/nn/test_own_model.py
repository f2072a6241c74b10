"""A model of the user's own, as HistoryGNN's docstring writes one: every method and exact inference compute it."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, ModuleList

from rest_triton.nn import Context, HistoryGNN

from ..history.runs import CLASSES, FEATURES, Run, same_results
from .test_norm import dense


class SAGE(HistoryGNN):
    def __init__(self, dims: list[int], dropout: float = 0.0) -> None:
        super().__init__(history_dims=dims[1:-1])
        self.lins, self.dropout = ModuleList(Linear(2 * a, b) for a, b in pairwise(dims)), dropout

    def layer(self, layer: int, ctx: Context) -> Tensor:
        u = self.lins[layer](torch.cat([ctx.h, ctx.propagate()], 1))
        return u if layer == self.num_layers - 1 else ctx.output(u, dropout=self.dropout)


def run_of(dropout: float = 0.0, **options: Any) -> Run:
    torch.manual_seed(1)
    return Run(SAGE([FEATURES, 16, 8, CLASSES], dropout), **options)


def test_exact_inference_is_the_equation() -> None:
    run = run_of()
    run.losses(3)
    matrix, h = dense(run), run.data.x
    with torch.no_grad():
        for layer, lin in enumerate(run.model.lins):
            h = lin(torch.cat([h, matrix @ h], 1))
            h = h if layer == 2 else h.relu()
    torch.testing.assert_close(run.engine.exact(), h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.engine.predict(run.batch(), 1), h, rtol=1e-4, atol=1e-5)


def test_one_batch_of_all_nodes_is_full_batch_training() -> None:
    """Losses and weights after five steps, with dropout."""
    full = run_of(0.3, method="full")
    expected = full.losses(5)
    assert expected[-1] < expected[0]
    for method in ("gas", "gas+rest", "gas+rest-is"):
        run = run_of(0.3, method=method, batch_size=6)
        assert run.losses(5) == expected, method
        assert all(map(torch.equal, run.model.parameters(), full.model.parameters())), method


@pytest.mark.parametrize("method", ["gas", "gas+rest", "gas+rest-is"])
def test_same_steps_wherever_the_tables_are(method: str, tmp_path: Any) -> None:
    near, far = run_of(0.3, method=method), run_of(0.3, method=method, far=True)
    assert near.history.widths == (16, 8)
    assert near.losses(6) == far.losses(6) and same_results(near, far)
