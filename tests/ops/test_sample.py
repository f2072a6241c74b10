"""sample_neighbours, place_nodes and transpose: the definitions against plain Python, the CPU kernels against these."""

import math
from collections.abc import Callable

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
    use_backend,
)

from . import graphs
from .pairs import pairwise

HUB = 100_000

SELECTIONS: dict[str, Callable[[int], Tensor]] = {
    "none": lambda n: torch.zeros(0, dtype=torch.int64),
    "hub": lambda n: torch.tensor([0]),
    "all": lambda n: torch.arange(n),
    "shuffled": lambda n: torch.randperm(n, generator=torch.Generator().manual_seed(1)),
    "repeated": lambda n: torch.tensor([0, 3, 0, n - 1, n - 1, 3, 0]),
}


def degrees(*counts: int) -> tuple[Tensor, Tensor]:
    """Rows of these degrees, and as many columns as rows."""
    rowptr = torch.nn.functional.pad(torch.tensor(counts).cumsum(0), (1, 0))
    return rowptr, torch.arange(int(rowptr[-1])) % len(counts)


GRAPHS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "random": lambda: graphs.random(300, 3000, hub=700),
    "chain": lambda: graphs.chain(60),
    "edgeless": lambda: graphs.edgeless(60),
    # Around the words of a bitmap, and the words of a summary of 64 of them.
    "words": lambda: degrees(0, 1, 2, 3, 63, 64, 65, 0, 127, 128, 129, 4095, 4096, 4097, 8193, 0),
}
SAMPLES = {
    "-".join(map(str, case.values())): case
    for case in pairwise(
        dict(
            graph=tuple(GRAPHS), rows=tuple(SELECTIONS), fanout=(1, 2, 10, 63, 64, 65, 1000, 9000),
            seed=(0, 7, -(2**63), 2**63 - 1), col=(torch.int32, torch.int64), threads=(1, 2),
        )
    )
}  # fmt: skip


def check_sample(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> None:
    """The kernel equals the definition, and both have the right numbers of distinct neighbours of each row."""
    rowptr, edge = sample_neighbours(adj, rows, fanout, seed=seed)
    expected = sample_neighbours_definition(adj, rows, fanout, seed=seed)
    assert (rowptr.dtype, edge.dtype) == (torch.int64, torch.int64)
    assert torch.equal(rowptr, expected[0]) and torch.equal(edge, expected[1])
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    assert torch.equal(rowptr.diff(), degree.clamp(max=fanout))
    row = torch.repeat_interleave(torch.arange(len(rows)), rowptr.diff())
    assert bool((edge >= adj.rowptr[rows][row]).all()) and bool((edge < adj.rowptr[rows + 1][row]).all())
    assert bool((edge.diff()[row.diff() == 0] > 0).all()), "the sample of a row is not ascending and distinct"


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, threads: Callable[[int], None]) -> None:
    kind, rows, fanout, seed, col, count = SAMPLES[name].values()
    rowptr, neighbours = GRAPHS[kind]()
    threads(count)
    check_sample(Adjacency(rowptr, neighbours.to(col)), SELECTIONS[rows](rowptr.numel() - 1), fanout, seed)


@pytest.mark.parametrize("fanout", [1, 2, 64, 300, HUB - 1, HUB, HUB + 1, 2**40])
def test_sample_of_a_hub(fanout: int) -> None:
    """100,000 neighbours, between rows without any and with few. The definition has a column per draw, so at many draws the
    expected sample is written down."""
    adj = Adjacency(*degrees(5, 0, HUB, 3))
    rows = torch.tensor([2, 1, 3, 2, 0])
    if fanout <= 300:
        check_sample(adj, rows, fanout, 9)
        return
    rowptr, edge = sample_neighbours(adj, rows, fanout, seed=9)
    hub = edge[rowptr[0] : rowptr[1]]
    assert rowptr.tolist() == [0, (k := min(fanout, HUB)), k, k + 3, 2 * k + 3, 2 * k + 8]
    assert bool((hub.diff() > 0).all()) and int(hub[0]) >= 5 and int(hub[-1]) < 5 + HUB
    assert torch.equal(edge[rowptr[3] : rowptr[4]], hub)
    assert edge[rowptr[2] : rowptr[3]].tolist() == [HUB + 5, HUB + 6, HUB + 7]
    if fanout == HUB - 1:
        (left_out,) = set(range(5, 5 + HUB)) - set(hub.tolist())
        with_other_seed = sample_neighbours(adj, rows, fanout, seed=10)[1][:fanout]
        assert left_out in with_other_seed.tolist()


def test_sample_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    """Many chunks, and hubs in some of them."""
    rowptr, col = graphs.random(50_000, 400_000, hub=5000)
    adj, rows = Adjacency(rowptr, col), torch.randperm(50_000)
    rows[::1000] = 0
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(sample_neighbours(adj, rows, 7, seed=3))
    for rowptr, edge in found[1:]:
        assert torch.equal(rowptr, found[0][0]) and torch.equal(edge, found[0][1])
    with use_backend("torch"):
        expected = sample_neighbours(adj, rows, 7, seed=3)
    assert all(map(torch.equal, found[0], expected))


def test_sample_of_arrays_with_gaps() -> None:
    rowptr, col = graphs.random(60, 500, hub=90)
    rows = torch.arange(60)
    expected = sample_neighbours(Adjacency(rowptr, col), rows, 4, seed=1)
    spread = Adjacency(torch.stack([rowptr, rowptr + 5], 1)[:, 0], torch.stack([col, col], 1)[:, 1])
    got = sample_neighbours(spread, torch.stack([rows, rows + 999], 1)[:, 0], 4, seed=1)
    assert all(map(torch.equal, got, expected))


def test_sample_depends_on_seed_and_row_alone() -> None:
    """The other rows, their order and their number change nothing; the seed and the row do."""
    rowptr, col = degrees(*[40] * 200)
    adj, rows = Adjacency(rowptr, col), torch.arange(200)
    sample = chosen(adj, rows, 6, seed=2)
    some = torch.randperm(200)[:77]
    assert torch.equal(chosen(adj, some, 6, seed=2), sample[some])
    assert torch.equal(chosen(adj, torch.tensor([50]), 6, seed=2), sample[50:51])
    for other in (3, 2 + 2**32, -2):
        assert int((chosen(adj, rows, 6, seed=other) == sample).all(1).sum()) == 0
    assert len(torch.unique(sample, dim=0)) == 200


def chosen(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    """[R, fanout]: the chosen neighbours of each row, counted from 0. Every row has more than ``fanout``."""
    edge = sample_neighbours(adj, rows, fanout, seed=seed)[1]
    return edge.view(len(rows), fanout) - adj.rowptr[rows][:, None]


# Uniformity. Every case draws samples of ROWS rows for each of SEEDS seeds: 60,000 samples. The statistics have known
# expectation and variance if each subset of the neighbours is as likely as any other.

ROWS, SEEDS = 6000, 10
DRAWS = ROWS * SEEDS


def many(degree: int, fanout: int, sampler: Callable[..., Tensor] = chosen) -> Tensor:
    """[DRAWS, fanout]: the samples of rows of one degree."""
    adj = Adjacency(torch.arange(0, ROWS * degree + 1, degree), torch.zeros(ROWS * degree, dtype=torch.int64))
    return torch.cat([sampler(adj, torch.arange(ROWS), fanout, seed=seed) for seed in range(SEEDS)])


def normal_score(chi2: float, free: int) -> float:
    """By Wilson and Hilferty: the cube root of chi-square is nearly normal."""
    return ((chi2 / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))


def scores(samples: Tensor, degree: int) -> dict[str, float]:
    """z-scores: of the frequency of each neighbour (chi-square), of pairs, and of neighbours in consecutive rows."""
    fanout, found = samples.shape[1], {}
    taken = torch.zeros(len(samples), degree, dtype=torch.float64).scatter_(1, samples, 1.0)
    share, free = fanout / degree, degree - 1
    # Two neighbours exclude each other: the covariance of their counts is -1 / (degree - 1) of the variance.
    variance = len(samples) * share * (1 - share) * degree / free
    chi2 = float((taken.sum(0) - len(samples) * share).square().sum()) / variance
    found["frequency"] = normal_score(chi2, free)
    half = degree // 2
    pair = (taken[:, :half] * taken[:, degree - half :].flip(1)).mean(0)  # 0 with the last, 1 with the last but one …
    both = share * (fanout - 1) / (degree - 1)
    spread = math.sqrt(both * (1 - both) / len(samples))
    found["pairs"] = float((pair - both).abs().max()) / spread if both > 0 else 0.0
    agree = (taken[1:] * taken[:-1]).sum(1)
    variance = degree * share * share * (1 - share) ** 2 * degree / (degree - 1)
    found["rows"] = float(agree.mean() - degree * share * share) / math.sqrt(variance / len(agree))
    return found


#: About 200 normal scores are compared with it, and one is larger with probability 6e-7. The samples are the same in every
#: run.
MOST = 5.0

CASES = [(2, 1), (3, 2), (7, 1), (13, 4), (40, 10), (64, 63), (65, 2), (100, 10), (100, 90)]


@pytest.mark.parametrize(("degree", "fanout"), CASES)
def test_samples_are_uniform(degree: int, fanout: int) -> None:
    found = scores(many(degree, fanout), degree)
    assert all(abs(z) < MOST for z in found.values()), found


def test_large_rows_are_uniform() -> None:
    """A row of 100,000: 2000 samples of 10, in a hundred parts."""
    adj = Adjacency(*degrees(HUB))
    samples = torch.cat([chosen(adj, torch.tensor([0]), 10, seed=seed) for seed in range(2000)])
    counts = torch.bincount(samples.flatten() * 100 // HUB, minlength=100).double()
    assert abs(normal_score(float((counts - 200).square().sum() / 200), 99)) < MOST


def with_replacement(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    degree = (adj.rowptr[rows + 1] - adj.rowptr[rows])[:, None]
    draw = torch.rand(len(rows), fanout, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draw * degree).long()


def without_floyd(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    """A repeated number is replaced by the next one, instead of by the last."""
    drawn = with_replacement(adj, rows, fanout, seed)
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    for i in range(1, fanout):
        for _ in range(i):
            taken = (drawn[:, :i] == drawn[:, i : i + 1]).any(1)
            drawn[:, i] = torch.where(taken, (drawn[:, i] + 1) % degree, drawn[:, i])
    return drawn


def too_few_bits(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    """A hash of eight bits: some neighbours are drawn by more values than others."""
    degree = adj.rowptr[rows + 1] - adj.rowptr[rows]
    word = torch.randint(0, 256, (len(rows),), generator=torch.Generator().manual_seed(seed))
    return (word * degree >> 8)[:, None]


def block(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    """Consecutive neighbours from a random one on: each is as likely as any other, but pairs are not."""
    first = with_replacement(adj, rows, 1, seed)
    degree = (adj.rowptr[rows + 1] - adj.rowptr[rows])[:, None]
    return (first + torch.arange(fanout)) % degree


def alike(adj: Adjacency, rows: Tensor, fanout: int, seed: int) -> Tensor:
    """Rows 2 i and 2 i + 1 have the same sample."""
    return chosen(adj, rows // 2 * 2, fanout, seed)


@pytest.mark.parametrize(
    ("sampler", "degree", "fanout", "score"),
    [(without_floyd, 13, 4, "pairs"), (too_few_bits, 100, 1, "frequency"), (block, 40, 10, "pairs"), (alike, 13, 4, "rows")],
)
def test_a_biased_sampler_is_noticed(sampler: Callable[..., Tensor], degree: int, fanout: int, score: str) -> None:
    assert abs(scores(many(degree, fanout, sampler), degree)[score]) > 2 * MOST


# place_nodes.


def expected_places(position: list[int], nodes: list[int], first: int) -> tuple[list[int], list[int], list[int]]:
    """(fresh, places, position) in plain Python."""
    fresh = sorted({g for g in nodes if position[g] < 0})
    for at, g in enumerate(fresh):
        position[g] = first + at
    return fresh, [position[g] for g in nodes], position


PLACED = {
    "-".join(map(str, case.values())): case
    for case in pairwise(
        dict(nodes=(1, 63, 64, 65, 300, 5000), count=(0, 1, 900, 20_000), share=(0.0, 0.4, 1.0), first=(0, 70, 2**31 - 5001),
             dtype=(torch.int32, torch.int64), threads=(1, 2))
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_place(name: str, threads: Callable[[int], None]) -> None:
    """Nodes that have a place keep it, and nodes that are not listed keep what they have."""
    size, count, share, first, dtype, number = PLACED[name].values()
    threads(number)
    g = torch.Generator().manual_seed(size + count)
    everyone = torch.arange(size, dtype=torch.int32)
    position = torch.where(torch.rand(size, generator=g) < share, everyone + 3, ~everyone)
    position[:1] = -(2**31)
    nodes = torch.randint(0, size, (count,), generator=g, dtype=dtype)
    before = position.clone()
    wanted = expected_places(position.tolist(), nodes.tolist(), first)
    for op in (place_nodes_definition, place_nodes):
        written = position.clone()
        fresh, places = op(written, nodes, first)
        assert (fresh.dtype, places.dtype) == (torch.int64, torch.int32)
        assert [fresh.tolist(), places.tolist(), written.tolist()] == list(wanted)
    untouched = torch.ones(size, dtype=torch.bool)
    untouched[fresh] = False
    assert torch.equal(written[untouched], before[untouched])


def test_place_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    """As many nodes as keep all threads busy, so that each has marks of its own."""
    size, count = 300_000, 2_000_000
    nodes = torch.randint(0, size, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    position = torch.where(torch.arange(size) % 3 == 0, -1, 7).int()
    wanted = position.clone()
    fresh, places = place_nodes_definition(wanted, nodes, 10)
    for number in (1, 2, 3):
        threads(number)
        written = position.clone()
        got = place_nodes(written, nodes, 10)
        assert torch.equal(got[0], fresh) and torch.equal(got[1], places) and torch.equal(written, wanted)


def test_place_in_an_array_with_gaps() -> None:
    table = torch.full((200, 2), -1, dtype=torch.int32)
    nodes = torch.stack([torch.arange(150), torch.arange(150)], 1)[::3, 0]
    fresh, places = place_nodes(table[:, 0], nodes, 9)
    assert torch.equal(fresh, nodes) and places.tolist() == list(range(9, 59))
    assert torch.equal(table[nodes, 0], places) and int((table == -1).sum()) == 350


# transpose.

TRANSPOSED = {
    "-".join(map(str, case.values())): case
    for case in pairwise(dict(kind=(*graphs.KINDS, "large", "hub"), more=(0, 1, 5000), threads=(1, 2, 3)))
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transpose(name: str, threads: Callable[[int], None]) -> None:
    """Against torch's stable sort. more: columns without an edge."""
    kind, more, count = TRANSPOSED[name].values()
    threads(count)
    made = dict(graphs.KINDS, large=lambda: graphs.random(3000, 60_000), hub=lambda: graphs.random(300, 500, hub=HUB))
    rowptr, col = made[kind]()
    columns, n = rowptr.numel() - 1 + more, rowptr.numel() - 1
    row = torch.repeat_interleave(torch.arange(n), rowptr.diff())
    order = torch.sort(col, stable=True).indices
    starts = torch.searchsorted(col[order], torch.arange(columns + 1))
    for op in (transpose_definition, transpose):
        got = op(rowptr, col.int(), columns)
        assert (got[0].dtype, got[1].dtype) == (torch.int64, torch.int32)
        assert torch.equal(got[0], starts) and torch.equal(got[1].long(), row[order])


def test_transpose_of_arrays_with_gaps_and_of_nothing() -> None:
    rowptr, col = graphs.random()
    expected = transpose(rowptr, col.int(), 40)
    spread = torch.stack([rowptr, rowptr], 1)[:, 1], torch.stack([col, col], 1)[:, 0].int()
    assert all(map(torch.equal, transpose(*spread, 40), expected))
    nothing = transpose(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0)
    assert nothing[0].tolist() == [0] and nothing[1].numel() == 0
    assert transpose(torch.zeros(6, dtype=torch.int64), col[:0].int(), 3)[0].tolist() == [0] * 4


def test_a_transpose_twice_is_sorted_by_row() -> None:
    rowptr, col = graphs.random(200, 3000)
    back = transpose(*transpose(rowptr, col.int(), 200), 200)
    assert torch.equal(back[0], rowptr)
    row = torch.repeat_interleave(torch.arange(200), rowptr.diff())
    assert torch.equal(back[1].long(), col[(row * 200 + col).argsort(stable=True)])
