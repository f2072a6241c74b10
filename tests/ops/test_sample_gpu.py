"""The GPU kernels of sample_neighbours, place_nodes and transpose: bitwise equal to their definitions."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from rest_triton.ops import (
    Adjacency,
    place_nodes,
    place_nodes_definition,
    sample_neighbours,
    sample_neighbours_definition,
    transpose,
    transpose_definition,
)

from ..conftest import PLACES
from . import graphs
from .pairs import pairwise

on_gpu = pytest.mark.parametrize("place", PLACES[1:], indirect=True)

SELECTIONS = {
    "none": torch.zeros(0, dtype=torch.int64),
    "one": torch.tensor([0]),
    "all": torch.randperm(60, generator=torch.Generator().manual_seed(1)),
    "repeated": torch.tensor([0, 3, 0, 59, 59, 3, 0]),
}
GRAPHS = {
    "random": lambda: graphs.random(60, 400, hub=40),
    "star": lambda: graphs.star(60),
    "chain": lambda: graphs.chain(60),
    "edgeless": lambda: graphs.edgeless(60),
}
SAMPLES = {
    "-".join(map(str, case.values())): case
    for case in pairwise(
        dict(graph=tuple(GRAPHS), rows=tuple(SELECTIONS), fanout=(1, 2, 3, 8, 33, 58, 59, 1024), seed=(0, -(2**63)))
    )
}


def check_sample(graph: tuple[Tensor, Tensor], rows: Tensor, fanout: int, seed: int, place: torch.device) -> None:
    rowptr, edge = sample_neighbours_definition(Adjacency(*graph), rows, fanout, seed=seed)
    adj = Adjacency(*(t.to(place) for t in graph))
    got_rowptr, got_edge = sample_neighbours(adj, rows.to(place), fanout, seed=seed)
    assert (got_rowptr.dtype, got_edge.dtype) == (torch.int64, torch.int64)
    assert torch.equal(got_rowptr.cpu(), rowptr) and torch.equal(got_edge.cpu(), edge)


@pytest.fixture
def kernels() -> ModuleType:
    from rest_triton.kernels.gpu import sample  # imports Triton

    return sample


@on_gpu
@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, place: torch.device) -> None:
    kind, rows, fanout, seed = SAMPLES[name].values()
    check_sample(GRAPHS[kind](), SELECTIONS[rows], fanout, seed, place)


@on_gpu
@pytest.mark.parametrize("name", SAMPLES)
def test_sample_by_flags(name: str, place: torch.device, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What larger fan-outs take, at fan-outs that the interpreter has time for."""
    monkeypatch.setattr(kernels, "MOST_DRAWS", 0)
    kind, rows, fanout, seed = SAMPLES[name].values()
    check_sample(GRAPHS[kind](), SELECTIONS[rows], fanout, seed, place)


@on_gpu
@pytest.mark.parametrize("degree", range(6, 10))
def test_sample_around_the_fanout(degree: int, place: torch.device) -> None:
    """Rows with one neighbour less than the fan-out, as many, and one or two more, where most draws are repetitions."""
    rowptr = torch.arange(0, 40 * degree + 1, degree)
    check_sample((rowptr, torch.arange(40 * degree) % 40), torch.arange(40).flip(0), 7, 3, place)


@on_gpu
@pytest.mark.parametrize("fanout", [1024, 1025, 1099, 1100, 2**31 - 1, 2**31, 2**40])
def test_sample_of_a_hub(fanout: int, place: torch.device) -> None:
    hub, ahead = 1100, torch.arange(10)
    rowptr = torch.cat([ahead, torch.full((30,), 9 + hub)])
    rows = torch.tensor([2, 9, 30])
    if fanout > 2000:  # the definition has a column per draw
        adj = Adjacency(rowptr.to(place), (torch.arange(9 + hub) % 39).to(place))
        got = sample_neighbours(adj, rows.to(place), fanout)
        assert [t.tolist() for t in got] == [[0, 1, 1 + hub, 1 + hub], [2, *range(9, 9 + hub)]]
    else:
        check_sample((rowptr, torch.arange(9 + hub) % 39), rows, fanout, 5, place)


def check_place(table: Tensor, nodes: Tensor, first: int, place: torch.device) -> None:
    """``table``: the position, or in its first column; the second must not be written."""
    results = []
    for op, device in ((place_nodes_definition, torch.device("cpu")), (place_nodes, place)):
        written = table.to(device, copy=True)
        fresh, places = op(written[:, 0] if table.dim() == 2 else written, nodes.to(device), first)
        assert (fresh.dtype, places.dtype) == (torch.int64, torch.int32)
        results.append([t.cpu() for t in (fresh, places, written)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@on_gpu
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 256, 600])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_place(share: float, count: int, dtype: torch.dtype, place: torch.device) -> None:
    g = torch.Generator().manual_seed(count)
    position = torch.where(torch.rand(300, generator=g) < share, torch.arange(300), -1 - torch.arange(300)).int()
    position[:2] = torch.tensor([-(2**31), 0])
    nodes = torch.randint(0, 300, (count,), generator=g, dtype=dtype)
    nodes[:1] = 299
    check_place(position, nodes, 70, place)


@on_gpu
def test_place_with_gaps(place: torch.device) -> None:
    table = torch.full((40, 2), -1, dtype=torch.int32)
    table[::2, 0] = 5
    check_place(table, torch.arange(80)[1::3] % 40, 0, place)
    check_place(table, torch.tensor([7, 9, 7, 39]), 2**31 - 4, place)


@on_gpu
@pytest.mark.parametrize("kind", graphs.KINDS)
@pytest.mark.parametrize("columns", [70, 1000])
def test_transpose(kind: str, columns: int, place: torch.device) -> None:
    rowptr, col = graphs.KINDS[kind](70)
    check_transpose(rowptr, col.int(), columns, place)


@on_gpu
def test_transpose_of_little(place: torch.device) -> None:
    check_transpose(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0, place)
    check_transpose(torch.zeros(6, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3, place)
    check_transpose(torch.tensor([0, 0, 3, 3, 5, 5]), torch.tensor([2, 0, 2, 2, 2], dtype=torch.int32), 3, place)


def check_transpose(rowptr: Tensor, col: Tensor, columns: int, place: torch.device) -> None:
    expected = transpose_definition(rowptr, col, columns)
    got = transpose(rowptr.to(place), col.to(place), columns)
    assert (got[0].dtype, got[1].dtype) == (torch.int64, torch.int32)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, expected, strict=True))
