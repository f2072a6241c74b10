"""What ours is compared with computes the same; libraries that are not there are not missed."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from bench.alternatives import Cut, compiled, libraries, messages, products
from bench.limits import bus, copy, reads, row_limits, triad
from bench.shapes import Batch
from rest_triton.ops import history_spmm_definition

from .batches import clustered, scattered


@pytest.fixture(params=["clustered", "scattered"])
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return clustered(tmp_path_factory.getbasetemp()) if request.param == "clustered" else scattered()


def test_float64_is_the_definition(batch: Batch) -> None:
    """What errors are measured against, result and gradient."""
    x = batch.x.double().requires_grad_()
    cut, grad = Cut(batch), torch.randn(batch.x.shape, dtype=torch.float64)
    expected = history_spmm_definition(batch.adj, batch.rows, batch.position, x, batch.table.double())
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    source = torch.cat([batch.x, batch.table[cut.halo].float()])
    torch.testing.assert_close(cut.product64(source), expected.detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(cut.transposed64(grad)[: len(x)], expected_grad, rtol=1e-6, atol=1e-9)


def test_torchs_ways_agree(batch: Batch) -> None:
    cut = Cut(batch)
    source = torch.cat([batch.x, batch.table[cut.halo].float()])
    ways = products(cut, lambda: source, thorough=True)
    assert len(ways) == 4
    ways["messages"] = messages(cut, lambda: source)
    ways["compiled"] = compiled(ways["messages"], "eager")
    for way in ways.values():
        torch.testing.assert_close(way().double(), cut.product64(source), rtol=1e-4, atol=1e-4)
    assert len(products(cut, lambda: source, thorough=False)) == 2


def test_no_library_no_rows(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch_sparse", "dgl"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert libraries(Cut(batch), lambda: batch.x) == {}


class FakeSparse(ModuleType):
    class SparseTensor:
        def __init__(self, rowptr: Tensor, col: Tensor, value: Tensor, sparse_sizes: tuple, **options: bool) -> None:
            self.matrix = torch.sparse_csr_tensor(rowptr, col, value, size=sparse_sizes, check_invariants=False)

    @staticmethod
    def matmul(matrix: "FakeSparse.SparseTensor", dense: Tensor, reduce: str) -> Tensor:
        assert reduce == "sum"
        return matrix.matrix @ dense


def test_a_library_that_is_there_takes_part(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_sparse", FakeSparse("torch_sparse"))
    monkeypatch.setitem(sys.modules, "dgl", ModuleType("dgl"))  # there, but without anything that is needed
    cut = Cut(batch)
    source = torch.cat([batch.x, batch.table[cut.halo].float()])
    found = libraries(cut, lambda: source)
    assert list(found) == ["torch_sparse", "dgl"]
    torch.testing.assert_close(found["torch_sparse"]().double(), cut.product64(source), rtol=1e-4, atol=1e-4)
    with pytest.raises(AttributeError, match="create_block"):
        found["dgl"]()


def test_limits_read_what_the_op_reads(batch: Batch) -> None:
    wanted = reads(batch.position, batch.columns, batch.x, batch.table)
    inside = int((batch.position[batch.columns] >= 0).sum())
    rows = inside * batch.x.element_size() + (batch.edges - inside) * batch.table.element_size()
    assert 0 <= rows * batch.x.shape[1] - sum(r.bytes for r in wanted) <= 3 * 2 * batch.x[0].nbytes  # four at a time
    one_dtype = batch.table.dtype == torch.float32
    assert len(wanted) == (1 if one_dtype else 2)
    first = wanted[0].where[0]
    position = int(batch.position[batch.columns[0]])
    if one_dtype or position >= 0:  # the very address of the first neighbour's row
        row = batch.x[position] if position >= 0 else batch.table[~position]
        assert int(first) == row.data_ptr()
    for limit in row_limits("forward", wanted):
        limit.run()


def test_passes_over_memory() -> None:
    cpu = torch.device("cpu")
    for limit, moved in ((copy(1200, cpu), 1200), (triad(1200, cpu), 1200)):
        limit.run()
        assert limit.bytes == moved and limit.mode == ""


def test_the_bus_is_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU memory cannot be pinned; that it is asked for is seen."""
    asked = []
    plain = torch.ones

    def ones(*size: int, pin_memory: bool = False, **options: object) -> Tensor:
        asked.append(pin_memory)
        return plain(*size, **options)

    monkeypatch.setattr(torch, "ones", ones)
    limit = bus(400, torch.device("cpu"))
    limit.run()
    assert limit.bytes == 400 and asked == [False, True]


def test_gpu_rows_are_gathered_by_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = clustered(tmp_path)
    monkeypatch.setattr("bench.limits._on_cpu", lambda t: False)  # as if they lay on a GPU
    wanted = reads(b.position, b.columns, b.x, b.table)
    assert [len(r.where) for r in wanted] == [
        int((b.position[b.columns] >= 0).sum()),
        int((b.position[b.columns] < 0).sum()),
    ]
    (limit,) = row_limits("forward", wanted)
    assert limit.name == "index_select of its rows"
    limit.run()
