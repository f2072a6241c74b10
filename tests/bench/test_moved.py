"""The byte formulas against a count of every element that the definitions touch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bench import moved
from bench.shapes import Batch
from rest_triton.ops import Adjacency

from .batches import clustered, scattered


@pytest.fixture(params=["clustered", "scattered"])
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return clustered(tmp_path_factory.getbasetemp()) if request.param == "clustered" else scattered()


def count(adj: Adjacency, rows: Tensor, position: Tensor, x: Tensor | None, table: Tensor | None) -> tuple[int, int]:
    """(bytes at least, bytes of rows) of one aggregate with a float32 result, by walking over every edge."""
    width = next(t for t in (x, table) if t is not None).shape[1]
    touched: dict[tuple[str, int], int] = {}
    per_edge = 0
    for i, g in enumerate(rows.tolist()):
        touched |= {("rows", i): 8, ("rowptr", g): 8, ("rowptr", g + 1): 8, ("row_scale", g): 4, ("out", i): 4 * width}
        for k in range(int(adj.rowptr[g]), int(adj.rowptr[g + 1])):
            c = int(adj.col[k])
            touched |= {("col", k): 4, ("position", c): 4}
            name, source = ("x", x) if int(position[c]) >= 0 else ("table", table)
            if source is not None:
                nbytes = width * source.element_size()
                touched |= {("col_scale", c): 4, (name, c): nbytes}
                per_edge += nbytes
    return sum(touched.values()), per_edge


def test_history_spmm(batch: Batch) -> None:
    found = moved.history_spmm(batch)
    forward = count(batch.adj, batch.rows, batch.position, batch.x, batch.table)
    assert batch.adj.reverse is not None
    backward = count(batch.adj.reverse, batch.rows, batch.position, batch.x, None)
    assert (found["forward"].least, found["forward"].rows) == forward
    assert (found["backward"].least, found["backward"].rows) == backward
    assert found["both"].least == forward[0] + backward[0]
    assert found["both"].counted == forward[1] + backward[1]


def test_fresh_spmm(batch: Batch) -> None:
    halo_x = batch.table[batch.halo].float()
    found = moved.halo_spmm(batch, halo_x)
    assert batch.adj.reverse is not None
    to_batch, to_halo = (count(batch.adj.reverse, rows, batch.position, batch.x, None) for rows in (batch.rows, batch.halo))
    assert (found["backward"].least, found["backward"].rows) == (to_batch[0] + to_halo[0], to_batch[1] + to_halo[1])
    assert found["forward"].rows == count(batch.adj, batch.rows, batch.position, batch.x, halo_x)[1]


def test_all_rows_from_the_table(batch: Batch) -> None:
    everything = ~torch.arange(batch.adj.num_nodes, dtype=torch.int32)
    found = moved.aggregate(batch.adj, batch.rows, everything, None, batch.table, batch.x)
    assert (found.least, found.rows) == count(batch.adj, batch.rows, everything, None, batch.table)


def test_halo(batch: Batch) -> None:
    columns = {k for g in batch.rows.tolist() for k in range(int(batch.adj.rowptr[g]), int(batch.adj.rowptr[g + 1]))}
    offsets = {g for row in batch.rows.tolist() for g in (row, row + 1)}
    expected = 4 * len(columns) + 8 * (len(offsets) + len(batch.rows) + len(batch.halo))
    assert moved.halo(batch)["forward"].least == expected


def test_passes_over_rows() -> None:
    """Ops that touch each row once: the sizes of what is read and written."""
    table, h, index = torch.zeros(50, 6, dtype=torch.bfloat16), torch.zeros(20, 6), torch.arange(20)
    row32, row16, per_feature = 20 * 6 * 4, 20 * 6 * 2, 2 * 6 * 4
    activate: Callable[..., dict[str, moved.Moved]] = moved.activate
    plain, trained = activate(h, table, moments=False), activate(h, table, moments=True)
    assert plain["forward"].least == row32 + row32 + row16 + 20 * 8 + per_feature
    assert plain["backward"].least == 3 * row32 + 20 * 8 + 2 * per_feature
    assert trained["forward"].least == plain["forward"].least + row32
    assert trained["backward"].least == plain["backward"].least + 2 * row32
    gathered = moved.gather_rows(table, index, h)
    assert gathered["forward"].least == row16 + row32 + 20 * 8
    assert gathered["backward"].least == row32 + 20 * 8 + table.nbytes
    stamp = torch.zeros(50, dtype=torch.int32)
    assert moved.scatter_rows(table, index, h, stamp)["forward"].least == row32 + row16 + 20 * (8 + 4)
    assert plain["both"].counted == plain["forward"].least + plain["backward"].least  # no rows by edge: the least counts
