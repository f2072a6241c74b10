"""Registration with torch: schema, fake, autograd, torch.compile, and dispatch for a table on another device."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from rest_triton.ops import (
    Adjacency,
    activate,
    edges_inside,
    gather_rows,
    halo,
    history_attention,
    history_spmm,
    place_nodes,
    sample_neighbours,
    scatter_rows,
    transpose,
    use_backend,
)

from . import graphs

OPS = torch.ops.rest_triton


def setting(width: int = 5) -> tuple[Adjacency, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    rowptr, col = graphs.random()
    scale = torch.rand(40) + 0.5
    adj = Adjacency(rowptr, col.int(), row_scale=scale, col_scale=scale).with_reverse()
    rows = torch.randperm(40)[:25]
    position = ~torch.arange(40, dtype=torch.int32)
    position[rows] = torch.arange(25, dtype=torch.int32)
    return adj, rows, position, torch.randn(25, width), torch.randn(40, width)


def spmm_arguments(x_grad: bool, weights: bool) -> tuple:
    adj, rows, position, x, history = setting()
    back = adj.reverse
    assert back is not None
    weight = torch.rand(adj.num_edges, requires_grad=True) if weights else None
    residual = torch.randn(25, 5, requires_grad=True)
    return (
        adj.rowptr, adj.col, None, None, None, 0, back.rowptr, back.col, back.edge_id, None, None, 0,
        adj.row_scale, adj.col_scale, weight, rows, position, x.requires_grad_(x_grad), history, residual, None,
        None, None, 0.7, 0.3, 0.2, 11, torch.float32,
    )  # fmt: skip


def attention_arguments(grad: bool) -> tuple:
    adj, rows, position, x, history = setting(6)
    back = adj.reverse
    assert back is not None
    x, x_score, row_score = (t.requires_grad_(grad) for t in (x, torch.randn(25, 3), torch.randn(25, 3)))
    return (
        adj.rowptr, adj.col, None, None, None, 0, back.rowptr, back.col, back.edge_id, None, None, 0, rows, position,
        x, x_score, row_score, history, torch.randn(40, 3), None, None, 0.2, 0.3, 11,
    )  # fmt: skip


def activate_arguments(grad: bool) -> tuple:
    rows = torch.randperm(40)[:6]
    h, scale, shift = (t.requires_grad_(grad) for t in (torch.randn(6, 5), torch.rand(5), torch.rand(5)))
    return h, scale, shift, rows, torch.zeros(40, 5), rows, None, None, True, 0.5, 3


SAMPLES: dict[str, Callable[[], tuple[Any, tuple]]] = {
    "spmm": lambda: (OPS.history_spmm, spmm_arguments(False, False)),
    "spmm-grad": lambda: (OPS.history_spmm, spmm_arguments(True, False)),
    "spmm-grad-weights": lambda: (OPS.history_spmm, spmm_arguments(True, True)),
    "edge-grad": lambda: (
        OPS.history_spmm_edge_grad,
        (*(a := spmm_arguments(False, False))[:3], a[12], a[13], *a[15:19], torch.randn(25, 5), 0.7, 0.2, 11),
    ),
    "attention": lambda: (OPS.history_attention, attention_arguments(False)),
    "attention-grad": lambda: (OPS.history_attention, attention_arguments(True)),
    "attention-row-grad": lambda: (
        OPS.history_attention_row_grad,
        (*(a := attention_arguments(False))[:6], *a[12:19], torch.rand(25, 6), torch.randn(25, 6), *a[21:]),
    ),
    "attention-source-grad": lambda: (
        OPS.history_attention_source_grad,
        (*(a := attention_arguments(False))[6:12], *a[12:16], torch.rand(25, 12), torch.randn(25, 6), *a[21:]),
    ),
    "activate": lambda: (OPS.activate, activate_arguments(False)),
    "activate-grad": lambda: (OPS.activate, activate_arguments(True)),
    "activate-plain": lambda: (OPS.activate, (torch.randn(6, 5, requires_grad=True), *[None] * 7, True, 0.0, 0)),
    "activate-backward": lambda: (
        OPS.activate_backward,
        (torch.randn(6, 5), torch.randn(6, 5), torch.rand(5), *[None] * 4, False, True, 0.5, 3, True, False, torch.float32),
    ),
    "activate-moments": lambda: (
        OPS.activate,
        (
            *(t.requires_grad_() for t in (torch.randn(6, 5), torch.rand(5), torch.rand(5))),
            None,
            None,
            None,
            torch.rand(5),
            torch.rand(5) + 1,
            True,
            0.5,
            3,
        ),
    ),
    "moments": lambda: (OPS.column_moments, (torch.randn(6, 5),)),
    "gather": lambda: (OPS.gather_rows, (torch.randn(9, 5), torch.tensor([3, 1]), torch.bfloat16)),
    "gather-into": lambda: (OPS.gather_rows_into, (torch.randn(9, 5), torch.tensor([3, 1]), torch.zeros(2, 5))),
    "gather-grad": lambda: (
        OPS.gather_rows,
        (torch.randn(9, 5, requires_grad=True), torch.tensor([3, 1]), torch.float32),
    ),
    "scatter": lambda: (
        OPS.scatter_rows,
        (torch.zeros(9, 5), torch.tensor([3, 1]), torch.randn(2, 5), 0.5, torch.zeros(9, dtype=torch.int32), 4),
    ),
    "halo": lambda: (OPS.halo, (setting()[0].rowptr, setting()[0].col, torch.arange(5))),
    "sample": lambda: (OPS.sample_neighbours, (setting()[0].rowptr, torch.arange(15), 2, 7)),
    "place": lambda: (OPS.place_nodes, (setting()[2], setting()[0].col, 25)),
    "transpose": lambda: (OPS.transpose, (setting()[0].rowptr, setting()[0].col, 40)),
    "inside": lambda: (OPS.edges_inside, (setting()[0].rowptr, setting()[0].col, torch.arange(5), setting()[2])),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name: str) -> None:
    op, arguments = SAMPLES[name]()
    result = torch.library.opcheck(op, arguments)
    assert set(result.values()) == {"SUCCESS"}, result


def test_every_op_has_kernels_for_cpu_and_gpu() -> None:
    names = {n.split("::")[1] for n in torch._C._dispatch_get_all_op_names() if n.startswith("rest_triton::")}
    assert names == {
        "history_spmm", "history_spmm_edge_grad", "history_attention", "history_attention_row_grad",
        "history_attention_source_grad", "activate", "activate_backward", "column_moments", "gather_rows",
        "gather_rows_into", "scatter_rows", "halo", "sample_neighbours", "place_nodes", "transpose", "edges_inside",
    }  # fmt: skip
    for name in names:
        for key in ("CPU", "CUDA", "Meta"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"rest_triton::{name}", key), (name, key)


def test_schemas_say_what_is_written() -> None:
    written = {
        name: [a.name for a in getattr(OPS, name).default._schema.arguments if a.alias_info and a.alias_info.is_write]
        for name in (
            "history_spmm",
            "history_attention",
            "activate",
            "gather_rows",
            "gather_rows_into",
            "scatter_rows",
            "halo",
            "sample_neighbours",
            "place_nodes",
            "transpose",
            "edges_inside",
        )
    }
    assert written == {
        "history_spmm": [], "history_attention": [], "activate": ["history"], "gather_rows": [], "gather_rows_into": ["out"],
        "scatter_rows": ["table", "stamp"], "halo": [], "sample_neighbours": [], "place_nodes": ["position"],
        "transpose": [], "edges_inside": [],
    }  # fmt: skip


COMPILERS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU"),
            pytest.mark.thorough,
        ],
    ),
]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_layer(compiler: str) -> None:
    """A whole layer in one graph: the compiled object gives what eager gives, with gradients and write-back, and a new
    seed does not compile it again."""
    adj, rows, position, x, history = setting()
    weight = torch.randn(5, 5)

    def layer(x: Tensor, weight: Tensor, table: Tensor, seed: int) -> Tensor:
        z = history_spmm(adj, rows, position, x, history, residual=x, alpha=0.1, edge_dropout=0.2, seed=seed)
        y = activate(z @ weight, dropout=0.3, seed=seed, rows=rows, history=table)
        scatter_rows(table, rows[:2], y[:2], blend=0.5)
        return y + gather_rows(table, rows).sum()

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    assert compiled is not layer
    for seed in (1, 2, 3, 4):
        with torch._dynamo.config.patch(error_on_recompile=seed > 2):
            results = []
            for run in (layer, compiled):
                a, w, table = x.clone().requires_grad_(), weight.clone().requires_grad_(), torch.zeros(40, 5)
                y = run(a, w, table, seed)
                results.append((y, table, *torch.autograd.grad(y.square().sum(), (a, w))))
            for eager, other in zip(*results, strict=True):
                torch.testing.assert_close(other, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_attention(compiler: str) -> None:
    adj, rows, position, x, history = setting(6)
    adj = replace(adj, row_scale=None, col_scale=None, reverse=None).with_reverse()
    source, target, table_score = torch.randn(6, 3), torch.randn(6, 3), torch.randn(40, 3)

    def layer(x: Tensor, source: Tensor, target: Tensor, seed: int) -> Tensor:
        z = history_attention(adj, rows, position, x, x @ source, x @ target, history, table_score, dropout=0.3, seed=seed)
        return z.relu() * 2

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    for seed in (1, 2, 3, 4):
        with torch._dynamo.config.patch(error_on_recompile=seed > 2):
            results = []
            for run in (layer, compiled):
                leaves = [t.clone().requires_grad_() for t in (x, source, target)]
                y = run(*leaves, seed)
                results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
            for eager, other in zip(*results, strict=True):
                torch.testing.assert_close(other, eager, rtol=1e-4, atol=1e-4)


def test_compiled_halo() -> None:
    adj, rows, *_ = setting()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda rows: halo(adj, rows) * 2, fullgraph=True, backend="aot_eager")
        for n in (5, 9):
            assert torch.equal(compiled(rows[:n]), halo(adj, rows[:n]) * 2)


def test_compiled_edges_inside() -> None:
    adj, rows, position, *_ = setting()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda rows: edges_inside(adj, rows, position)[1] * 2, fullgraph=True, backend="aot_eager")
        for n in (5, 9):
            assert torch.equal(compiled(rows[:n]), edges_inside(adj, rows[:n], position)[1] * 2)


def test_compiled_sample() -> None:
    """A sample, its places and its transpose in one graph, at other sizes and seeds."""
    adj, _, position, *_ = setting()

    def grow(rows: Tensor, position: Tensor, seed: int) -> tuple[Tensor, ...]:
        rowptr, edge = sample_neighbours(adj, rows, 2, seed=seed)
        fresh, col = place_nodes(position, adj.col[edge], 25)
        return rowptr, fresh, col, *transpose(rowptr, col, 70)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(grow, fullgraph=True, backend="aot_eager")
        for n, seed in ((15, 1), (9, 2), (11, 3)):
            maps = position.clone(), position.clone()
            expected, got = (run(torch.arange(n), p, seed) for run, p in zip((grow, compiled), maps, strict=True))
            assert all(map(torch.equal, got, expected)) and torch.equal(*maps) and not torch.equal(maps[0], position)


def test_table_in_host_memory_beside_a_gpu_runs_on_the_gpu() -> None:
    """With fake tensors, without a GPU: rows on cuda and a table on the CPU give a result on cuda."""
    with FakeTensorMode():
        table = torch.empty(100, 8)
        index = torch.empty(7, dtype=torch.int64, device="cuda")
        assert OPS.gather_rows(table, index, torch.float32).device.type == "cuda"
        position, rowptr = (torch.empty(n, dtype=d, device="cuda") for n, d in ((100, torch.int32), (101, torch.int64)))
        out = OPS.history_spmm(
            rowptr, torch.empty(50, dtype=torch.int32, device="cuda"), *[None] * 3, 0, *[None] * 5, 0, *[None] * 3, index,
            position, torch.empty(7, 8, device="cuda"), table, *[None] * 4, 1.0, 0.0, 0.0, 0, torch.float32,
        )  # fmt: skip
        assert out.device.type == "cuda" and out.shape == (7, 8)
        h = torch.empty(7, 8, device="cuda")
        assert OPS.activate(h, None, None, None, table, index, None, None, True, 0.0, 0).device.type == "cuda"


def test_dispatcher_prefers_the_gpu() -> None:
    """The dispatcher takes the highest backend among all arguments, and CUDA is above the CPU."""
    cpu, gpu = (torch._C.DispatchKeySet(k) for k in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA))
    assert (cpu | gpu).highestPriorityTypeId() == torch._C.DispatchKey.CUDA


def test_graph_to_another_device() -> None:
    adj = setting()[0]
    assert adj.to("cpu") is adj
    moved = adj.to("meta")
    assert moved.reverse is not None and adj.reverse is not None
    for before, after in ((adj, moved), (adj.reverse, moved.reverse)):
        for name in ("rowptr", "col", "row_scale", "col_scale"):
            assert getattr(after, name).device.type == "meta" and getattr(after, name).shape == getattr(before, name).shape
    assert moved.reverse.edge_id is not None and moved.edge_weight is None


@pytest.mark.gpu
def test_pinned_history_on_a_gpu() -> None:
    adj, rows, position, x, history = setting(64)
    expected = history_spmm(adj, rows, position, x, history)
    on_gpu = adj.to("cuda")
    for table in (history.cuda(), history.pin_memory()):
        got = history_spmm(on_gpu, rows.cuda(), position.cuda(), x.cuda(), table)
        torch.testing.assert_close(got.cpu(), expected)
    with pytest.raises(ValueError, match="pin_memory"):
        history_spmm(on_gpu, rows.cuda(), position.cuda(), x.cuda(), history)
    pinned = torch.zeros(40, 64).pin_memory()
    scatter_rows(pinned, rows.cuda(), x.cuda())
    torch.cuda.synchronize()
    assert torch.equal(pinned[rows], x)
    assert torch.equal(gather_rows(pinned, rows.cuda()).cpu(), x)


def test_backends_agree_after_the_switch_is_left() -> None:
    adj, rows, position, x, history = setting()
    before = history_spmm(adj, rows, position, x, history)
    with pytest.raises(RuntimeError, match="on purpose"), use_backend("torch"):
        raise RuntimeError("on purpose")
    assert torch.equal(history_spmm(adj, rows, position, x, history), before)
    with pytest.raises(ValueError, match="'cuda'; it can be 'kernel', 'torch', 'triton'"), use_backend("cuda"):
        pass
