"""Batches and their position maps."""

import pytest
import torch
from torch import Tensor

from rest_triton.ops import Adjacency, halo_definition, history_spmm
from rest_triton.sampling import halo_rows
from rest_triton.sampling.batch import Batch, ClusterBatches, PositionMaps, node_batch

from ..ops import graphs

N = 40
PTR = torch.tensor([0, 7, 7, 12, 20, 33, 40])  # one cluster is empty
OUTSIDE = ~torch.arange(N, dtype=torch.int32)


def expected_map(rows: Tensor) -> Tensor:
    position = OUTSIDE.clone()
    position[rows] = torch.arange(len(rows), dtype=torch.int32)
    return position


@pytest.mark.parametrize("batch_size", [1, 2, 4, 6])
def test_an_epoch_has_every_node_once(batch_size: int) -> None:
    batches = ClusterBatches(PTR, batch_size, seed=3)
    epoch = batches.epoch(0)
    assert len(epoch) == len(batches) == -(-6 // batch_size)
    assert sorted(k for batch in epoch for k in batch.clusters) == list(range(6))
    assert torch.equal(torch.cat([batch.rows for batch in epoch]).sort().values, torch.arange(N))
    for batch in epoch:
        assert len(batch) == batch.rows.numel()
        assert torch.equal(batch.rows, batch.rows.unique())  # ascending, distinct


def test_shuffled_by_seed_and_epoch_alone() -> None:
    ptr = torch.arange(0, 101, 2)

    def order(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return [batch.clusters for batch in ClusterBatches(ptr, 5, seed).epoch(epoch)]

    assert order(1, 4) == order(1, 4)
    assert order(1, 4) != order(1, 5)
    assert order(1, 4) != order(2, 4)
    assert order(0, 1) != order(1, 0)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    order(1, 4)
    assert torch.equal(state, torch.get_rng_state())  # the user's random numbers are not touched


def test_neighbouring_clusters_are_one_range() -> None:
    batch = ClusterBatches(PTR, 6).batch([4, 0, 3])
    assert batch.clusters == (0, 3, 4)
    assert batch.ranges == ((0, 7), (12, 33))
    assert batch.rows.tolist() == [*range(7), *range(12, 33)]
    per_node = torch.arange(2 * N).view(N, 2)
    assert torch.equal(batch.take(per_node), per_node[batch.rows])
    assert ClusterBatches(PTR, 6).batch([0]).take(per_node).data_ptr() == per_node.data_ptr()


BATCHES = {
    "ranges": lambda: ClusterBatches(PTR, 6).batch([0, 3, 5]),
    "everything": lambda: ClusterBatches(PTR, 6).batch(range(6)),
    "empty": lambda: ClusterBatches(PTR, 6).batch([1]),
    "nodes": lambda: node_batch(torch.tensor([39, 3, 17, 0]), N),
    "no-nodes": lambda: node_batch(torch.zeros(0, dtype=torch.int64), N),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_enter_and_leave(kind: str) -> None:
    batch: Batch = BATCHES[kind]()
    maps = PositionMaps(N)
    for _ in range(2):
        with maps.enter(batch) as position:
            assert position.dtype == torch.int32
            assert torch.equal(position, expected_map(batch.rows))
        assert torch.equal(position, OUTSIDE)
    assert torch.equal(maps.outside, OUTSIDE)


def test_two_batches_at_once() -> None:
    """Maps of overlapping batches: one enters and leaves within the other, then they leave in the order of entry."""
    maps, batches = PositionMaps(N), ClusterBatches(PTR, 6)
    training, refresh = batches.batch([0, 3]), batches.batch([3, 4])
    with maps.enter(training) as first:
        with maps.enter(refresh) as second:
            assert torch.equal(first, expected_map(training.rows))
            assert torch.equal(second, expected_map(refresh.rows))
        assert torch.equal(first, expected_map(training.rows))
    one, two = maps.enter(training), maps.enter(refresh)
    a, b = one.__enter__(), two.__enter__()
    one.__exit__(None, None, None)
    assert torch.equal(b, expected_map(refresh.rows))
    two.__exit__(None, None, None)
    assert torch.equal(a, OUTSIDE) and torch.equal(b, OUTSIDE)
    assert {first.data_ptr(), second.data_ptr()} == {a.data_ptr(), b.data_ptr()}  # used again


def test_left_after_an_error() -> None:
    maps, batch = PositionMaps(N), ClusterBatches(PTR, 6).batch([2])
    with pytest.raises(KeyError), maps.enter(batch) as position:
        raise KeyError
    assert torch.equal(position, OUTSIDE)


def test_leaving_before_backward_is_noticed() -> None:
    rowptr, col = graphs.undirected()
    adj = Adjacency(rowptr, col).undirected()
    batch, maps = ClusterBatches(PTR, 6).batch([0, 3]), PositionMaps(N)
    x = torch.ones(len(batch), 3, requires_grad=True)
    with maps.enter(batch) as position:
        z = history_spmm(adj, batch.rows, position, x, torch.ones(N, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("kind", BATCHES)
def test_halo(kind: str) -> None:
    adj, batch = Adjacency(*graphs.random()), BATCHES[kind]()
    assert torch.equal(batch.halo(adj), halo_definition(adj, batch.rows))


@pytest.mark.parametrize("kind", BATCHES)
def test_halo_found_before(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adj, batch = Adjacency(*graphs.random()), BATCHES[kind]()
    known = batch.with_halo(adj)
    monkeypatch.setattr("rest_triton.sampling.batch.halo", lambda *_: pytest.fail("looked for again"))
    assert torch.equal(known.halo(adj), halo_definition(adj, batch.rows)) and torch.equal(known.rows, batch.rows)
    assert batch.on("cpu") is batch
    elsewhere = known.on("meta")
    assert elsewhere.rows.device.type == "meta" and elsewhere.halo(adj).device.type == "meta"
    assert elsewhere.rows.shape == batch.rows.shape


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="batch_size is 7; there are 6 clusters"):
        ClusterBatches(PTR, 7)
    with pytest.raises(ValueError, match="batch_size is 0"):
        ClusterBatches(PTR, 0)
    with pytest.raises(ValueError, match="ptr decreases after row 1: 5 to 2"):
        ClusterBatches(torch.tensor([0, 5, 2, 9]), 1)
    with pytest.raises(ValueError, match=r"clusters are \[1, 1\]; they must be distinct, from 0 to 5"):
        ClusterBatches(PTR, 2).batch([1, 1])
    with pytest.raises(ValueError, match=r"clusters are \[6\]"):
        ClusterBatches(PTR, 2).batch([6])
    with pytest.raises(ValueError, match="nodes has values from 0 to 40"):
        node_batch(torch.tensor([0, 40]), N)
    with pytest.raises(ValueError, match="only 1 distinct"):
        node_batch(torch.tensor([3, 3]), N)
    with pytest.raises(ValueError, match="batch is of a graph with 40 nodes, the maps of one with 41"):
        PositionMaps(41).enter(node_batch(torch.tensor([3]), N)).__enter__()
    with pytest.raises(ValueError, match="there are 2147483648 nodes; a position map is int32"):
        PositionMaps(2**31)


def line_of_clusters() -> tuple[Adjacency, torch.Tensor]:
    """24 nodes in a line, in 6 clusters of several sizes."""
    row = torch.arange(24)
    col = torch.stack([row - 1, row + 1], 1)
    inside = (col >= 0) & (col < 24)
    rowptr = torch.nn.functional.pad(inside.sum(1).cumsum(0), (1, 0))
    return Adjacency(rowptr, col[inside].int()), torch.tensor([0, 1, 4, 9, 15, 20, 24])


@pytest.mark.parametrize("batch_size", [1, 2, 5, 6])
def test_halo_per_row(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand over the batches of an epoch, and over the first two of them."""
    adj, ptr = line_of_clusters()
    batches = ClusterBatches(ptr, batch_size).epoch(0)
    for most in (8, 2):
        monkeypatch.setattr(halo_rows, "BATCHES", most)
        rows = [set(batch.rows.tolist()) for batch in batches[:most]]
        around = [{b for a in own for b in (a - 1, a + 1) if 0 <= b < 24} - own for own in rows]
        expected = sum(map(len, around)) / sum(map(len, rows))
        assert halo_rows.halo_per_row(adj, ptr, batch_size) == expected
    assert expected == 0 if batch_size == 6 else expected > 0
