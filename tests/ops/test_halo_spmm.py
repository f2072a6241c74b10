"""halo_spmm: the halo's rows have gradients, and they are those of the whole graph."""

import pytest
import torch
from torch import Tensor

from rest_triton.ops import Adjacency, halo, halo_spmm, history_spmm, use_backend
from rest_triton.sampling.batch import node_batch

from .pairs import pairwise

N, D = 40, 5


def graph(directed: bool, seed: int = 0) -> Adjacency:
    """A graph with duplicate edges, a hub, empty rows and isolated nodes."""
    g = torch.Generator().manual_seed(seed)
    degree = torch.randint(0, 5, (N,), generator=g)
    degree[3], degree[7:10] = 30, 0
    rowptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    col = torch.randint(0, N - 2, (int(rowptr[-1]),), generator=g)
    if not directed:
        row = torch.repeat_interleave(torch.arange(N), degree)
        both = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
        both = both[:, (both[0] * N + both[1]).argsort()]
        rowptr, col = torch.nn.functional.pad(torch.bincount(both[0], minlength=N).cumsum(0), (1, 0)), both[1]
    scale = torch.rand(N, generator=g) + 0.5
    adj = Adjacency(rowptr, col.int(), row_scale=scale, col_scale=scale)
    return adj.with_reverse()


def slots(rows: Tensor, outside: Tensor) -> Tensor:
    position = torch.full((N,), -(2**30), dtype=torch.int32)  # no other row may be read
    position[rows] = torch.arange(len(rows), dtype=torch.int32)
    position[outside] = ~torch.arange(len(outside), dtype=torch.int32)
    return position


ANY = dict(directed=[False, True], edge_dropout=[0.0, 0.4], alpha=[None, 0.3], size=[0, 1, 9, N])
CASES = {"-".join(map(str, chosen.values())): chosen for chosen in pairwise(ANY)}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_halo(name: str, place: torch.device) -> None:
    """The definition with a batch of all nodes, of which the result has only ``rows``."""
    directed, edge_dropout, alpha, size = CASES[name].values()
    adj = graph(directed).to(place)
    rows = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:size].to(place)
    outside = halo(adj, rows)
    assert (outside.numel() > 0) == (0 < size < N)
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(2)).to(place)
    residual = torch.randn(N, D, generator=torch.Generator().manual_seed(3)).to(place)
    weight = torch.randn(size, D, generator=torch.Generator().manual_seed(4)).to(place)
    options = dict(edge_dropout=edge_dropout, seed=11) | ({} if alpha is None else dict(alpha=alpha))

    def residual_of(some: Tensor) -> Tensor | None:
        return None if alpha is None else residual[some]

    inside, around = x[rows].requires_grad_(), x[outside].requires_grad_()
    position = slots(rows.cpu(), outside.cpu()).to(place)
    out = halo_spmm(adj, rows, outside, position, inside, around, residual=residual_of(rows), **options)
    (out * weight).sum().backward()

    whole, nodes = x.clone().requires_grad_(), torch.arange(N, device=place)
    with use_backend("torch"):
        expected = history_spmm(adj, nodes, nodes.int(), whole, residual=residual_of(nodes), **options)[rows]
        (expected * weight).sum().backward()
    torch.testing.assert_close(out, expected)
    assert inside.grad is not None and whole.grad is not None
    torch.testing.assert_close(inside.grad, whole.grad[rows])
    got = torch.zeros_like(around) if around.grad is None else around.grad
    torch.testing.assert_close(got, whole.grad[outside])


def test_no_gradient_no_extra_work() -> None:
    adj, rows = graph(False), torch.arange(5)
    outside = halo(adj, rows)
    position = slots(rows, outside)
    x, around = torch.randn(5, D, requires_grad=True), torch.randn(len(outside), D)
    assert "ToHalo" not in type(halo_spmm(adj, rows, outside, position, x, around).grad_fn).__name__
    with torch.no_grad():
        assert not halo_spmm(adj, rows, outside, position, x, around.requires_grad_()).requires_grad


def test_a_graph_without_reverse_is_refused() -> None:
    whole = graph(False)
    adj = Adjacency(whole.rowptr, whole.col)
    batch = node_batch(torch.arange(5), N)
    outside = batch.halo(adj)
    around = torch.randn(len(outside), D, requires_grad=True)
    with pytest.raises(ValueError, match=r"halo_x requires a gradient but adj has no reverse; use adj\.undirected"):
        halo_spmm(adj, batch.rows, outside, slots(batch.rows, outside), torch.randn(5, D), around)


def test_a_moved_graph_shares_its_arrays_with_its_reverse() -> None:
    whole = graph(False)
    moved = Adjacency(whole.rowptr, whole.col, whole.row_scale, whole.col_scale).undirected().to("meta")
    assert moved.reverse is not None and moved.rowptr.device.type == "meta"
    assert moved.reverse.rowptr is moved.rowptr and moved.reverse.col is moved.col
