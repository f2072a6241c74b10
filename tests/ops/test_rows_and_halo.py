"""gather_rows, scatter_rows and halo against their definitions on every backend."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from rest_triton.ops import Adjacency, gather_rows, halo, scatter_rows, use_backend

from . import graphs
from .budget import assert_within_budget
from .pairs import pairwise

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def named(**options: Sequence[Any]) -> dict[str, dict[str, Any]]:
    return {"-".join(str(value).removeprefix("torch.") for value in case.values()): case for case in pairwise(options)}


GATHERS = named(table=DTYPES, into=DTYPES, width=(1, 3, 47, 128))
SCATTERS = named(table=DTYPES, source=DTYPES, blend=(1.0, 0.3, 0.0), width=(1, 47, 128))
HALOS = named(kind=tuple(graphs.KINDS), share=(0.0, 0.3, 1.0), col=(torch.int32, torch.int64))


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str, place: torch.device) -> None:
    table, into, width = GATHERS[name].values()
    values, index = torch.randn(30, width).to(table), torch.tensor([29, 0, 5, 5, 7])
    expected = values[index].to(into)
    values, index = values.to(place), index.to(place)
    assert torch.equal(gather_rows(values, index, dtype=into).cpu(), expected)
    buffer = torch.full((7, width + 3), 7.0, dtype=into, device=place)
    out = buffer[1:6, :width]
    assert gather_rows(values, index, out=out) is out
    assert torch.equal(out.cpu(), expected)
    buffer[1:6, :width] = 7.0
    assert bool((buffer == 7.0).all())  # nothing beside it was touched
    assert gather_rows(values, index[:0], out=buffer[:0, :width]).shape == (0, width)
    assert gather_rows(values, index).dtype == table


def test_gather_strided_and_empty(place: torch.device) -> None:
    wide = torch.randn(30, 20, device=place)
    index = torch.tensor([3, 1], device=place)
    for table in (wide[:, :7], wide[:, ::3], wide[::2]):
        assert torch.equal(gather_rows(table, index), table[index])
    assert gather_rows(wide, index[:0]).shape == (0, 20)
    gaps = torch.tensor([3, 99, 1, 99], device=place)[::2]
    assert torch.equal(gather_rows(wide, gaps), wide[gaps])
    scatter_rows(wide, gaps, torch.ones(2, 20, device=place))
    assert (wide[index] == 1).all() and not (wide[[0, 2]] == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_gather(dtype: torch.dtype, place: torch.device) -> None:
    """A row that is read twice gets the sum of both gradients, in float32."""
    g = torch.Generator().manual_seed(2)
    values, grad = torch.randn(10, 5, generator=g).to(dtype), torch.randn(3, 5, generator=g)
    index = torch.tensor([3, 3, 0])

    def gradient(table: torch.Tensor, device: torch.device) -> torch.Tensor:
        table = table.to(device).requires_grad_()
        rows = gather_rows(table, index.to(device), dtype=torch.float32)
        return torch.autograd.grad(rows, table, grad.to(device))[0]

    got = gradient(values, place)
    with use_backend("torch"):
        plain = gradient(values, torch.device("cpu"))
    truth = torch.zeros(10, 5, dtype=torch.float64).index_add(0, index, grad.double())
    assert_within_budget("grad table", got, plain, truth)


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name: str, place: torch.device) -> None:
    table, source, blend, width = SCATTERS[name].values()
    old, new = torch.randn(30, width).to(table), torch.randn(3, width).to(source)
    index = torch.tensor([29, 0, 5])
    expected, expected_stamp = old.clone(), torch.zeros(30, dtype=torch.int32)
    with use_backend("torch"):
        scatter_rows(expected, index, new, blend=blend, stamp=expected_stamp, step=9)
    got, stamp = old.to(place, copy=True), torch.zeros(30, dtype=torch.int32, device=place)
    scatter_rows(got, index.to(place), new.to(place), blend=blend, stamp=stamp, step=9)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-6 if table == torch.float32 else 2**-7, atol=1e-6)
    assert torch.equal(stamp.cpu(), expected_stamp) and stamp.sum() == 27
    untouched = torch.ones(30, dtype=torch.bool)
    untouched[index] = False
    assert torch.equal(got.cpu()[untouched], old[untouched])


@pytest.mark.parametrize("table", DTYPES)
def test_special_values_survive(table: torch.dtype, place: torch.device) -> None:
    """NaN of any bits, infinities, zeros of both signs, values that round up to the next exponent or to infinity."""
    bits = torch.tensor(
        [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, 0x7F800000, -0x800000, 0, -0x80000000, 0x3FFFFFFF, 0x7F7FFFFF]
    )
    values = bits.to(torch.int32).view(torch.float32)[None]
    got = torch.zeros(2, values.shape[1], dtype=table, device=place)
    scatter_rows(got, torch.tensor([1], device=place), values.to(place))
    torch.testing.assert_close(got[1:].cpu(), values.to(table), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got[1:].cpu().signbit()[~values.isnan()], values.signbit()[~values.isnan()])


@pytest.mark.parametrize("stamp", [torch.int32, torch.int64])
def test_scatter_stamps_and_strides(stamp: torch.dtype, place: torch.device) -> None:
    table = torch.zeros(10, 20, device=place)
    when = torch.zeros(10, dtype=stamp, device=place)
    index = torch.tensor([4, 2], device=place)
    scatter_rows(table[:, :7], index, torch.ones(2, 14, device=place)[:, ::2], stamp=when, step=2**31 - 1)
    assert table.sum() == 14 and table[:, 7:].sum() == 0 and (when[index] == 2**31 - 1).all()
    scatter_rows(table, index[:0], torch.ones(0, 20, device=place))
    assert table.sum() == 14


def test_scatter_takes_values_not_gradients() -> None:
    table = torch.zeros(4, 3)
    scatter_rows(table, torch.tensor([1]), torch.ones(1, 3, requires_grad=True) * 2)
    assert not table.requires_grad and table[1].sum() == 6


@pytest.mark.parametrize("name", HALOS)
def test_halo(name: str, place: torch.device) -> None:
    kind, share, col = HALOS[name].values()
    rowptr, neighbours = graphs.KINDS[kind](70)  # more than one word of a bitmap
    rows = torch.randperm(70)[: int(70 * share)]
    expected = sorted(
        {int(c) for g in rows for c in neighbours[rowptr[g] : rowptr[g + 1]]} - set(rows.tolist())
    )  # fmt: skip
    adj = Adjacency(rowptr, neighbours.to(col))
    with use_backend("torch"):
        assert halo(adj, rows).tolist() == expected
    got = halo(Adjacency(rowptr.to(place), neighbours.to(place, col)), rows.to(place))
    assert got.dtype == torch.int64 and got.tolist() == expected


def test_halo_of_rows_with_gaps(place: torch.device) -> None:
    rowptr, col = (t.to(place) for t in graphs.random())
    rows = torch.arange(20, device=place)
    spread = torch.stack([rows, rows + 999], 1)[:, 0]
    assert torch.equal(halo(Adjacency(rowptr, col), spread), halo(Adjacency(rowptr, col), rows))


def test_halo_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    rowptr, col = graphs.random(50_000, 400_000)
    adj = Adjacency(rowptr, col)
    rows = torch.randperm(50_000)[:9000]
    with use_backend("torch"):
        expected = halo(adj, rows)
    for count in (1, 2, 3):
        threads(count)
        assert torch.equal(halo(adj, rows), expected)
