"""Bad arguments: refused with a message that names the argument and the way out, before anything is written."""

from collections.abc import Callable

import pytest
import torch

from rest_triton.ops import (
    Adjacency,
    activate,
    debug,
    edges_inside,
    gather_rows,
    halo,
    history_spmm,
    place_nodes,
    sample_neighbours,
    scatter_rows,
    transpose,
)

from . import graphs

ROWPTR, COL = graphs.random()
N = 40
ADJ = Adjacency(ROWPTR, COL)
ROWS = torch.arange(10)
POSITION = ~torch.arange(N, dtype=torch.int32)
POSITION[ROWS] = torch.arange(10, dtype=torch.int32)
BEFORE = POSITION.clone()
X, TABLE = torch.ones(10, 4), torch.ones(N, 4)


def spmm(adj: Adjacency = ADJ, rows: object = ROWS, position: object = POSITION, x: object = X, table: object = TABLE,
         **options: object) -> Callable[[], object]:  # fmt: skip
    return lambda: history_spmm(adj, rows, position, x, table, **options)


GRAD_X = torch.ones(10, 4, requires_grad=True)
BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "rows-list": (spmm(rows=[1, 2]), TypeError, "rows is a list; it must be a int64 tensor"),
    "rows-int32": (spmm(rows=ROWS.int()), TypeError, r"rows is int32; it must be int64; convert it with rows.to\(torch.int64"),
    "rows-2d": (spmm(rows=ROWS[None]), ValueError, r"rows has shape \[1, 10\]; it must have 1 dimension"),
    "position-int64": (spmm(position=POSITION.long()), TypeError, "position is int64; it must be int32"),
    "position-short": (spmm(position=POSITION[:-1]), ValueError, r"position has shape \[39\]; dimension 0 must be 40"),
    "no-source": (spmm(x=None, table=None), ValueError, "x and history are both None"),
    "x-float64": (spmm(x=X.double()), TypeError, r'x is float64.*x.float\(\).*use_backend\("torch"\)'),
    "x-int": (spmm(x=X.int()), TypeError, "x is int32; it must be float32 or bfloat16 or float16"),
    "history-1d": (spmm(table=TABLE[0]), ValueError, r"history has shape \[4\]; it must have 2 dimensions"),
    "widths": (spmm(table=TABLE[:, :3]), ValueError, r"history has shape \[40, 3\]; dimension 1 must be 4"),
    "residual-short": (spmm(residual=X[:5]), ValueError, r"residual has shape \[5, 4\]; dimension 0 must be 10, one per row"),
    "device": (spmm(x=X.to("meta")), ValueError, r"x is on meta, the op runs on cpu; move it with x.to\('cpu'\)"),
    "dropout": (spmm(edge_dropout=1.5), ValueError, "edge_dropout is 1.5; it must be a probability"),
    "scale-float64": (spmm(Adjacency(ROWPTR, COL, col_scale=torch.ones(N).double())), TypeError, r"adj.col_scale is float64"),
    "weight-float64": (spmm(Adjacency(ROWPTR, COL, edge_weight=torch.ones(158).double())), TypeError, "adj.edge_weight is float64"),
    "out-dtype": (spmm(dtype=torch.int32), TypeError, "dtype is torch.int32; it must be float32"),
    "history-grad": (spmm(table=TABLE.clone().requires_grad_()), ValueError, r"history requires a gradient.*history.detach\(\)"),
    "no-reverse": (spmm(x=GRAD_X), ValueError, r"adj has no reverse; use adj.undirected\(\).*adj.with_reverse\(\)"),
    "x-rows": (
        spmm(ADJ.with_reverse(), x=torch.ones(11, 4, requires_grad=True)), ValueError, "x has shape .*11, 4.*must be 10",
    ),
    "no-mirror": (spmm(ADJ.undirected(), x=GRAD_X, edge_dropout=0.5), ValueError, r"the reverse's edge ids; use adj.with_reverse\(\)"),
    "undirected-weights": (
        lambda: Adjacency(ROWPTR, COL, edge_weight=torch.ones(COL.numel())).undirected(), ValueError, "use with_reverse",
    ),
    "rowptr-falls": (lambda: Adjacency(torch.tensor([0, 3, 2, 4]), torch.zeros(4, dtype=torch.long)), ValueError,
                     "rowptr decreases after row 1: 3 to 2; it must be the cumulative sum"),
    "rowptr-end": (lambda: Adjacency(ROWPTR, COL[:-1]), ValueError, "rowptr runs from 0 to 158; .* number of edges, 157"),
    "rowptr-empty": (lambda: Adjacency(ROWPTR[:0], COL), ValueError, "rowptr is empty"),
    "rowptr-int32": (lambda: Adjacency(ROWPTR.int(), COL), TypeError, "rowptr is int32; it must be int64"),
    "col-float": (lambda: Adjacency(ROWPTR, COL.float()), TypeError, "col is float32; it must be int32 or int64"),
    "col-range": (lambda: Adjacency(ROWPTR, COL + 30), ValueError, r"col has values from 30 to 5\d; .* \[0, 40\)"),
    "col-negative": (lambda: Adjacency(ROWPTR, COL - 1), ValueError, "col has values from -1"),
    "scale-size": (lambda: Adjacency(ROWPTR, COL, row_scale=torch.ones(3)), ValueError, "row_scale has shape .*3.* must be 40"),
    "scale-grad": (lambda: Adjacency(ROWPTR, COL, col_scale=torch.ones(N, requires_grad=True)), ValueError,
                   "only edge_weight is differentiated"),
    "weight-size": (lambda: Adjacency(ROWPTR, COL, edge_weight=torch.ones(3)), ValueError, "edge_weight .* one per edge"),
    "edge-id-range": (lambda: Adjacency(ROWPTR, COL, edge_id=torch.full_like(COL, 158)), ValueError, "edge_id has values"),
    "reverse-other": (lambda: Adjacency(ROWPTR, COL, reverse=Adjacency(ROWPTR[:1], COL[:0])), ValueError, "reverse has 0 nodes and 0 edges, this graph 40 and 158"),
    "h-dtype": (lambda: activate(X.double()), TypeError, "h is float64"),
    "scale-dtype": (lambda: activate(X, X[0].half()), TypeError, "scale is float16; it must be float32"),
    "scale-width": (lambda: activate(X, torch.ones(3)), ValueError, r"scale has shape \[3\]; dimension 0 must be 4"),
    "activate-rows": (lambda: activate(X, rows=ROWS[:3]), ValueError, r"rows has shape \[3\]; dimension 0 must be 10"),
    "activate-dropout": (lambda: activate(X, dropout=-0.1), ValueError, "dropout is -0.1"),
    "history-rows-alone": (lambda: activate(X, history_rows=ROWS), ValueError, "history_rows is given without history"),
    "history-width": (lambda: activate(X, history=TABLE[:, :2]), ValueError, r"history has shape \[40, 2\]"),
    "history-small": (lambda: activate(X, history=TABLE[:5]), ValueError, "history has 5 rows and h has 10; say which"),
    "history-strided": (lambda: activate(X, history=torch.ones(N, 8)[:, ::2]), ValueError, "rows must be contiguous to be written"),
    "moments-alone": (lambda: activate(X, moments=(X[0], X[0])), ValueError, "moments are given without scale and shift"),
    "moments-width": (lambda: activate(X, X[0], X[0], moments=(X[0, :2], X[0])), ValueError, r"moments\[0\] has shape \[2\]"),
    "gather-index": (lambda: gather_rows(TABLE, ROWS.int()), TypeError, "index is int32"),
    "gather-out-rows": (lambda: gather_rows(TABLE, ROWS, out=torch.ones(9, 4)), ValueError, r"out has shape \[9, 4\]; dimension 0 must be 10, one per index"),
    "gather-out-width": (lambda: gather_rows(TABLE, ROWS, out=torch.ones(10, 5)), ValueError, "out has shape .*dimension 1 must be 4"),
    "gather-out-strides": (lambda: gather_rows(TABLE, ROWS, out=torch.ones(4, 10).T), ValueError, "out has strides"),
    "gather-out-dtype": (lambda: gather_rows(TABLE, ROWS, dtype=torch.float16, out=X.clone()), TypeError, "dtype is torch.float16, but out is torch.float32"),
    "gather-out-grad": (lambda: gather_rows(TABLE.clone().requires_grad_(), ROWS, out=X.clone()), ValueError, r"table requires a gradient.*table.detach\(\)"),
    "gather-dtype": (lambda: gather_rows(TABLE, ROWS, dtype=torch.float64), TypeError, "dtype is torch.float64"),
    "scatter-size": (lambda: scatter_rows(TABLE, ROWS, X[:5]), ValueError, r"src has shape \[5, 4\]; dimension 0 must be 10"),
    "scatter-width": (lambda: scatter_rows(TABLE, ROWS, X[:, :2]), ValueError, "the width of the table"),
    "scatter-stamp": (lambda: scatter_rows(TABLE, ROWS, X, stamp=torch.zeros(3, dtype=torch.int32)), ValueError, "stamp has shape"),
    "scatter-stamp-strided": (lambda: scatter_rows(TABLE, ROWS, X, stamp=torch.zeros(2 * N, dtype=torch.int32)[::2]), ValueError, "stamp has stride 2"),
    "scatter-blend": (lambda: scatter_rows(TABLE, ROWS, X, blend=2), ValueError, "blend is 2"),
    "scatter-strided": (lambda: scatter_rows(torch.ones(N, 8)[:, ::2], ROWS, X), ValueError, "contiguous"),
    "halo-rows": (lambda: halo(ADJ, ROWS.float()), TypeError, "rows is float32"),
    "sample-rows": (lambda: sample_neighbours(ADJ, ROWS.int(), 2), TypeError, "rows is int32; it must be int64"),
    "sample-rows-2d": (lambda: sample_neighbours(ADJ, ROWS[None], 2), ValueError, r"rows has shape \[1, 10\]"),
    "sample-fanout": (lambda: sample_neighbours(ADJ, ROWS, 0), ValueError, "fanout is 0; it must be at least 1"),
    "sample-device": (lambda: sample_neighbours(ADJ, ROWS.to("meta"), 2), ValueError, "adj.rowptr is on cpu"),
    "place-position": (lambda: place_nodes(POSITION.long(), ROWS, 0), TypeError, "position is int64; it must be int32"),
    "place-nodes": (lambda: place_nodes(POSITION, ROWS.float(), 0), TypeError, "nodes is float32; it must be int32 or int64"),
    "place-device": (lambda: place_nodes(POSITION, ROWS.to("meta"), 0), ValueError, "nodes is on meta"),
    "place-first": (lambda: place_nodes(POSITION, ROWS, -1), ValueError, "first is -1; up to 10 .* give 0 to 2147483638"),
    "place-first-large": (lambda: place_nodes(POSITION, ROWS, 2**31 - 9), ValueError, "first is 2147483639; .* are int32"),
    "transpose-rowptr": (lambda: transpose(ROWPTR.int(), COL.int(), N), TypeError, "rowptr is int32; it must be int64"),
    "transpose-rowptr-empty": (lambda: transpose(ROWPTR[:0], COL.int(), N), ValueError, "rowptr is empty"),
    "transpose-col": (lambda: transpose(ROWPTR, COL, N), TypeError, "col is int64; it must be int32"),
    "transpose-device": (lambda: transpose(ROWPTR, COL.int().to("meta"), N), ValueError, "col is on meta"),
    "transpose-columns": (lambda: transpose(ROWPTR, COL.int(), -1), ValueError, "columns is -1; it must be at least 0"),
    "inside-rows": (lambda: edges_inside(ADJ, ROWS.int(), POSITION), TypeError, "rows is int32"),
    "inside-position": (lambda: edges_inside(ADJ, ROWS, POSITION.long()), TypeError, "position is int64"),
    "inside-size": (lambda: edges_inside(ADJ, ROWS, POSITION[:-1]), ValueError, r"position has shape \[39\]"),
    "inside-device": (lambda: edges_inside(ADJ, ROWS, POSITION.to("meta")), ValueError, "position is on meta"),
}  # fmt: skip


def _position(value: int, at: int = 0) -> torch.Tensor:
    changed = POSITION.clone()
    changed[COL[at]] = value
    return changed


DEBUG_ONLY: dict[str, tuple[Callable[[], object], str]] = {
    "position-beyond-x": (spmm(rows=torch.arange(N), position=_position(10)), r"position has values .* to 10; .*rows of x"),
    "position-beyond-history": (
        spmm(rows=torch.arange(N), position=_position(-41)), r"position has values from -41 .*\[-40, 0\)",
    ),
    "rows-range": (spmm(rows=ROWS + 35), r"rows has values from 35 to 44; .*\[0, 40\)"),
    "rows-twice": (spmm(rows=torch.zeros(10, dtype=torch.int64)), "rows has 10 elements, only 1 distinct.*torch.unique"),
    "not-entered": (
        spmm(ADJ.with_reverse(), rows=ROWS.flip(0), x=GRAD_X), r"position\[x_rows\[i\]\] is not i for every row; enter the batch",
    ),
    "activate-range": (lambda: activate(X, rows=ROWS + 35, history=TABLE), "rows has values from 35 to 44"),
    "activate-twice": (lambda: activate(X, history_rows=ROWS // 2, history=TABLE), "history_rows has 10 elements, only 5"),
    "gather-range": (lambda: gather_rows(TABLE, ROWS - 1), "index has values from -1 to 8"),
    "scatter-range": (lambda: scatter_rows(TABLE, ROWS + 31, X), "index has values from 31 to 40"),
    "scatter-twice": (lambda: scatter_rows(TABLE, ROWS // 2, X), "index has 10 elements, only 5 distinct"),
    "halo-range": (lambda: halo(ADJ, ROWS + 31), "rows has values from 31 to 40"),
    "sample-range": (lambda: sample_neighbours(ADJ, ROWS + 31, 2), "rows has values from 31 to 40"),
    "place-range": (lambda: place_nodes(POSITION, ROWS + 31, 10), "nodes has values from 31 to 40"),
    "transpose-range": (lambda: transpose(ROWPTR, COL.int(), 7), r"col has values from 0 to 2\d; .*\[0, 7\)"),
    "transpose-end": (lambda: transpose(ROWPTR, COL[:-1].int(), N), "rowptr runs from 0 to 158; .* number of edges, 157"),
    "inside-range": (lambda: edges_inside(ADJ, ROWS + 31, POSITION), "rows has values from 31 to 40"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
    assert (TABLE == 1).all() and torch.equal(POSITION, BEFORE), "something was written"


@pytest.mark.parametrize("name", DEBUG_ONLY)
def test_refused_in_debug_mode(name: str) -> None:
    call, message = DEBUG_ONLY[name]
    with debug(), pytest.raises(ValueError, match=message):
        call()
    assert (TABLE == 1).all() and torch.equal(POSITION, BEFORE), "something was written"


def test_good_input_passes_debug_mode() -> None:
    with debug():
        spmm()()
        spmm(ADJ.with_reverse(), x=GRAD_X)()
        activate(X, rows=ROWS, history=TABLE.clone())
        scatter_rows(TABLE.clone(), ROWS, X)
        rowptr, edge = sample_neighbours(ADJ, ROWS, 2)
        transpose(rowptr, place_nodes(POSITION.clone(), COL[edge], 10)[1], N)
        # Positions that no row of the batch reads are not checked: a staging buffer is smaller than the table.
        unread = POSITION.clone()
        unread[35:] = -1000
        spmm(position=unread)()
