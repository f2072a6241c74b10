"""Dropout's hash: the same on every backend, with the statistics of independent draws."""

import pytest
import torch

from rest_triton.kernels import _hash
from rest_triton.ops import Adjacency, activate, history_spmm
from rest_triton.ops.hashing import edge_kept, feature_kept

SEEDS = [0, 1, -1, 2**63 - 1, -(2**63)]


def plain_feature_kept(seed: int, row: int, feature: int, p: float) -> bool:
    """The comment in _hash.py, in Python integers."""
    key = _hash.mix64(seed + _hash.GOLDEN64)
    word = _hash.mix64(key + (row + 1) * _hash.GOLDEN64)
    low, high, mask = word & 0xFFFFFFFF, word >> 32, 0xFFFFFFFF
    v = (low + feature * _hash.GOLDEN32) & mask
    v ^= v >> 16
    v = (v * _hash.MULT1) & mask
    v ^= v >> 15
    v = ((v ^ high) * _hash.MULT2) & mask
    v ^= v >> 16
    return (v >> 8) >= _hash.threshold(p)


@pytest.mark.parametrize("seed", SEEDS)
def test_definition_is_the_written_formula(seed: int) -> None:
    rows = torch.tensor([0, 1, 77, 2**40])
    got = feature_kept(seed, rows, 5, 0.3)
    assert got.tolist() == [[plain_feature_kept(seed, int(r), d, 0.3) for d in range(5)] for r in rows]
    key = _hash.mix64(seed + _hash.GOLDEN64)
    bits = [_hash.mix64(key + (int(e) + 1) * _hash.GOLDEN64) >> 40 for e in rows]
    assert edge_kept(seed, rows, 0.3).tolist() == [b >= _hash.threshold(0.3) for b in bits]


@pytest.mark.parametrize("seed", [1, -(2**63)])
def test_every_backend_drops_the_same_features(seed: int, place: torch.device) -> None:
    rows = torch.tensor([0, 1, 77, 2**40, 3])
    y = activate(torch.ones(5, 70, device=place), dropout=0.3, seed=seed, rows=rows.to(place))
    assert torch.equal(y.cpu() != 0, feature_kept(seed, rows, 70, 0.3))


@pytest.mark.parametrize("seed", [1, -(2**63)])
def test_every_backend_drops_the_same_edges(seed: int, place: torch.device) -> None:
    """Each node has one edge, so its result is 0 exactly if the edge is dropped."""
    n = 50
    adj = Adjacency(torch.arange(n + 1, device=place), torch.arange(n, device=place))
    nodes, position = torch.arange(n, device=place), torch.arange(n, dtype=torch.int32, device=place)
    out = history_spmm(adj, nodes, position, torch.ones(n, 1, device=place), edge_dropout=0.3, seed=seed)
    assert torch.equal(out.cpu().squeeze(1) != 0, edge_kept(seed, torch.arange(n), 0.3))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate(p: float) -> None:
    kept = feature_kept(3, torch.arange(2000), 256, p).double()
    sigma = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * sigma
    for dim, count in ((0, 2000), (1, 256)):  # no row and no feature is favoured
        worst = ((kept.mean(dim) - (1 - p)).abs() * (count / (p * (1 - p))) ** 0.5).max()
        assert worst < 5.5
    edges = edge_kept(3, torch.arange(500_000), p).double()
    assert abs(edges.mean() - (1 - p)) < 5 * (p * (1 - p) / edges.numel()) ** 0.5


def test_no_correlation_between_neighbours_and_seeds() -> None:
    """Draws for adjacent rows, features and seeds, as in training, are uncorrelated."""
    coins = torch.stack([feature_kept(s, torch.arange(1000), 128, 0.5) for s in range(4)]).double() - 0.5
    for lag in (1, 2, 3):
        for dim in (0, 1, 2):
            a = coins.narrow(dim, 0, coins.shape[dim] - lag)
            b = coins.narrow(dim, lag, coins.shape[dim] - lag)
            z = (a * b * 4).mean() * a.numel() ** 0.5
            assert abs(z) < 4.5, (lag, dim, float(z))
    edges = torch.stack([edge_kept(s, torch.arange(200_000), 0.5) for s in range(3)]).double() - 0.5
    for a, b in ((edges[0], edges[1]), (edges[1], edges[2]), (edges[0, :-1], edges[0, 1:])):
        assert abs((a * b * 4).mean() * a.numel() ** 0.5) < 4.5


def test_ends_of_the_range() -> None:
    assert feature_kept(0, torch.arange(5), 10, 0.0).all() and not feature_kept(0, torch.arange(5), 10, 1.0).any()
    assert _hash.keep_scale(0.0) == 1.0 and _hash.keep_scale(0.5) == 2.0 and _hash.keep_scale(1.0) == 0.0
