"""edges_inside against its definition and plain Python, on every backend."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rest_triton.ops import Adjacency, edges_inside, use_backend
from rest_triton.sampling.batch import Batch, PositionMaps

from . import graphs
from .pairs import pairwise

NODES = 70
ROWS: dict[str, Callable[[], Tensor]] = {
    "none": lambda: torch.zeros(0, dtype=torch.int64),
    "one": lambda: torch.tensor([0]),
    "some": lambda: torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[:30],
    "all": lambda: torch.arange(NODES).flip(0),
    "repeated": lambda: torch.tensor([3, 0, 3, 69, 0]),
}
CASES = {
    "-".join(map(str, case.values())): case
    for case in pairwise(
        dict(graph=tuple(graphs.KINDS), rows=tuple(ROWS), places=(0.0, 0.4, 1.0), col=(torch.int32, torch.int64))
    )
}


def placed(share: float) -> Tensor:
    """int32[N]: places for a share of the nodes, the smallest and largest of them at both ends of the range."""
    draw = torch.Generator().manual_seed(2)
    position = ~torch.arange(NODES, dtype=torch.int32)
    nodes = torch.randperm(NODES, generator=draw)[: int(NODES * share)]
    position[nodes] = torch.arange(len(nodes), dtype=torch.int32)
    if 0 < share < 1:
        position[nodes[-1]] = 2**31 - 1
        position[0] = -(2**31)
    return position


@pytest.mark.parametrize("name", CASES)
def test_edges_inside(name: str, place: torch.device) -> None:
    kind, rows, share, dtype = CASES[name].values()
    rowptr, col = graphs.KINDS[kind](NODES)
    nodes, position = ROWS[rows](), placed(share)
    edges = [[k for k in range(rowptr[g], rowptr[g + 1]) if position[col[k]] >= 0] for g in nodes]
    ends = [0, *torch.tensor([len(of) for of in edges], dtype=torch.int64).cumsum(0).tolist()]
    with use_backend("torch"):
        defined = edges_inside(Adjacency(rowptr, col.to(dtype)), nodes, position)
    adj = Adjacency(rowptr.to(place), col.to(place, dtype))
    for found in (defined, edges_inside(adj, nodes.to(place), position.to(place))):
        assert [t.dtype for t in found] == [torch.int64, torch.int64]
        assert found[0].tolist() == ends and found[1].tolist() == [k for of in edges for k in of]


def test_with_gaps(place: torch.device) -> None:
    rowptr, col = (t.to(place) for t in graphs.random())
    adj, rows, position = Adjacency(rowptr, col), torch.arange(20, device=place), placed(0.4)[:40].to(place)
    spread, wide = torch.stack([rows, rows + 999], 1)[:, 0], torch.stack([position, -position], 1)[:, 0]
    assert all(map(torch.equal, edges_inside(adj, spread, wide), edges_inside(adj, rows, position)))


def test_more_columns_than_rows(place: torch.device) -> None:
    """A sample has as many columns as its input has rows."""
    adj = Adjacency(torch.tensor([0, 2, 3]), torch.tensor([4, 1, 3], dtype=torch.int32), columns=5).to(place)
    position = torch.tensor([-1, 0, -1, -1, 7], dtype=torch.int32, device=place)
    rowptr, edge = edges_inside(adj, torch.arange(2, device=place), position)
    assert (rowptr.tolist(), edge.tolist()) == ([0, 2, 2], [0, 1])


def test_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    """More rows than a chunk, and more chunks than threads."""
    rowptr, col = graphs.random(50_000, 400_000, hub=9000)
    adj, rows = Adjacency(rowptr, col.int()), torch.randperm(50_000)[:20_000]
    rows[rows == 0], rows[777] = rows[777], 0  # the hub
    position = torch.where(torch.rand(50_000) < 0.3, 1, -1).int()
    with use_backend("torch"):
        expected = edges_inside(adj, rows, position)
    for count in (1, 2, 3):
        threads(count)
        assert all(map(torch.equal, edges_inside(adj, rows, position), expected))


def test_the_edges_of_a_batch(place: torch.device) -> None:
    """Those of the subgraph, by PyG."""
    from torch_geometric.utils import subgraph

    rowptr, col = graphs.undirected(NODES)
    nodes = ROWS["some"]()
    source = torch.repeat_interleave(torch.arange(NODES), rowptr.diff())
    expected, _ = subgraph(nodes, torch.stack([col, source]), num_nodes=NODES)
    maps, batch = PositionMaps(NODES, place), Batch(NODES, nodes=nodes).on(place)
    with maps.enter(batch) as position:
        ends, edge = edges_inside(Adjacency(rowptr.to(place), col.to(place)), batch.rows, position)
    target = torch.repeat_interleave(nodes, ends.diff().cpu())
    found = torch.stack([col[edge.cpu()], target])
    assert sorted(map(tuple, found.T.tolist())) == sorted(map(tuple, expected.T.tolist()))
    assert torch.equal(position, ~torch.arange(NODES, dtype=torch.int32, device=place))
