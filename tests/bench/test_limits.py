"""What the limits move, and what the alternatives compute."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench import limits
from bench.alternatives import Cut, messages, products
from bench.cases import Batch, Case, build
from rest_triton.ops import history_spmm_definition

CPU = torch.device("cpu")


@pytest.fixture(params=["arxiv", "uniform"])
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    root = str(tmp_path_factory.getbasetemp())
    dtype = "bfloat16" if request.param == "arxiv" else "float32"
    return build(Case(request.param, 8, dtype), tiny=True, graph="", root=root, device=CPU)[1]


def bytes_of_rows(batch: Batch, adj_columns: list[int], table: Tensor | None) -> int:
    """Walking over every edge."""
    total = 0
    for column in adj_columns:
        source = batch.x if int(batch.position[column]) >= 0 else table
        total += 0 if source is None else source.shape[1] * source.element_size()
    return total


def columns_of(rowptr: Tensor, col: Tensor, rows: Tensor) -> list[int]:
    return [int(c) for g in rows.tolist() for c in col[int(rowptr[g]) : int(rowptr[g + 1])]]


def test_an_aggregate_is_held_against_its_rows(batch: Batch) -> None:
    left_out = 2 * 3 * batch.x[0].nbytes  # of each dtype up to three rows: the loop takes four at a time
    forward = bytes_of_rows(batch, columns_of(batch.adj.rowptr, batch.adj.col, batch.rows), batch.table)
    limit = limits.aggregate(batch, batch.table)
    assert 0 <= forward - limit.bytes <= left_out
    reverse = batch.adj.reverse
    assert reverse is not None
    rows = torch.cat([batch.rows, batch.halo])
    backward = bytes_of_rows(batch, columns_of(reverse.rowptr, reverse.col, rows), None)
    both = limits.aggregate(batch, batch.table, [batch.rows, batch.halo])
    assert 0 <= forward + backward - both.bytes <= 2 * left_out
    both.run()


def test_the_very_rows_are_read(batch: Batch) -> None:
    for some in limits.reads(batch.position, batch.columns, batch.x, batch.table):
        size = some.source.element_size()
        expected = [
            batch.x[p].data_ptr() if p >= 0 else batch.table[~p].data_ptr()
            for p in batch.position[batch.columns].tolist()
            if (batch.x if p >= 0 else batch.table).element_size() == size
        ]
        assert some.where.tolist() == expected[: len(expected) // 4 * 4]
        assert some.bytes == len(some.where) * size * 8


def test_halo_bytes(batch: Batch) -> None:
    columns = columns_of(batch.adj.rowptr, batch.adj.col, batch.rows)
    offsets = {g for row in batch.rows.tolist() for g in (row, row + 1)}
    assert limits.halo_bytes(batch) == 4 * len(columns) + 8 * (len(offsets) + len(batch.rows) + len(batch.halo))


def test_bytes_of_passes_over_rows() -> None:
    """The sizes of all that is read and written, once each."""
    table, h, index = torch.zeros(50, 6, dtype=torch.bfloat16), torch.zeros(20, 6), torch.arange(20)
    row32, row16, ids, per_feature = 20 * 6 * 4, 20 * 6 * 2, 20 * 8, 2 * 6 * 4
    forward = 2 * row32 + row16 + ids + per_feature
    backward = 3 * row32 + ids + 2 * per_feature

    def activate(moments: bool, backward: bool) -> int:
        return limits.activate_bytes(h, table, moments=moments, backward=backward)

    assert activate(False, False) == forward and activate(True, False) == forward + row32
    assert activate(False, True) == forward + backward and activate(True, True) == forward + backward + 3 * row32
    assert limits.gather_bytes(table, index, h) == row16 + row32 + ids
    assert limits.scatter_bytes(table, index, h, torch.zeros(50, dtype=torch.int32)) == row32 + row16 + ids + 20 * 4


@pytest.mark.parametrize("make", [limits.copy, limits.triad])
def test_passes_move_as_many_bytes(make) -> None:
    limit = make(1200, CPU)
    limit.run()
    assert limit.bytes == 1200


def test_alternatives_are_the_definition(batch: Batch) -> None:
    """In float64, which errors are measured against, and in float32; result and gradient."""
    x, cut = batch.x.double().requires_grad_(), Cut(batch)
    grad = torch.randn(batch.x.shape, dtype=torch.float64)
    exact = history_spmm_definition(batch.adj, batch.rows, batch.position, x, batch.table.double())
    (exact_grad,) = torch.autograd.grad(exact, x, grad)
    source = torch.cat([batch.x, batch.table[cut.halo].float()])
    torch.testing.assert_close(cut.product64(source), exact.detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(cut.transposed64(grad)[: len(x)], exact_grad, rtol=1e-6, atol=1e-9)
    ways = products(cut, lambda: source, thorough=True)
    assert len(ways) == 4 and len(products(cut, lambda: source, thorough=False)) == 2
    ways["messages"] = messages(cut, lambda: source)
    for way in ways.values():
        torch.testing.assert_close(way().double(), exact.detach(), rtol=1e-4, atol=1e-4)
    weight = torch.rand(cut.col.numel())
    weighted = replace(batch.adj, edge_weight=torch.zeros(batch.adj.num_edges), reverse=None)
    first = torch.cat([torch.arange(int(batch.adj.rowptr[g]), int(batch.adj.rowptr[g + 1])) for g in batch.rows.tolist()])
    weighted.edge_weight[first] = weight
    exact = history_spmm_definition(weighted, batch.rows, batch.position, x, batch.table.double())
    torch.testing.assert_close(messages(cut, lambda: source, weight)().double(), exact.detach(), rtol=1e-4, atol=1e-4)
