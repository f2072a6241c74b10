"""Calls of the launchers that between them compile every kernel: each dtype, each width bucket, each branch.

A case is run under ``launch.recording`` on tensors of a few elements, so it goes through the launcher that users go
through. Which widths: 1, 3, 16 and 32 share a warp among many rows; 47 allows no vector loads; 100 is masked; 128 and
256 fill a warp with float32 and with half precision; 300 takes several programs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from rest_triton.kernels.gpu.activate import activate, activate_backward
from rest_triton.kernels.gpu.attention import attention
from rest_triton.kernels.gpu.attention_grad import attention_row_grad, attention_source_grad
from rest_triton.kernels.gpu.edge_grad import edge_grad
from rest_triton.kernels.gpu.halo import halo
from rest_triton.kernels.gpu.launch import Settings, recording
from rest_triton.kernels.gpu.rows import gather_rows, scatter_rows
from rest_triton.kernels.gpu.sample import place_nodes, sample_neighbours
from rest_triton.kernels.gpu.spmm import spmm

from .binary import TARGETS, Launch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROWS, EDGES = 4, 9


@dataclass(frozen=True)
class Case:
    """One call of the launcher ``op``, at ``width``; ``variant`` says what is special about it."""

    op: str
    variant: str
    width: int
    call: Callable[[], object]

    def launches(self, target: str) -> dict[str, Launch]:
        """The kernels that the call launches on ``target``, by name."""
        found: dict[str, Launch] = {}

        def record(kernel: object, grid: tuple[int, ...], arguments: dict, settings: Settings) -> None:
            launch = Launch(kernel, arguments, settings)
            found.setdefault(launch.name, launch)

        with recording(record, TARGETS[target].warp_size):
            self.call()
        return found


def cases() -> Iterator[Case]:
    """All cases, the same for every target."""
    yield from _spmm_cases()
    yield from _edge_grad_cases()
    yield from _attention_cases()
    yield from _activate_cases()
    yield from _row_cases()
    for col in (torch.int32, torch.int64):
        yield Case("halo", f"col {str(col).removeprefix('torch.')}", 0, partial(_halo, col))
        yield Case("place_nodes", f"nodes {str(col).removeprefix('torch.')}", 0, partial(_place, col))
    for fanout in (1, 2, 10, 25, 100, 256, 512, 1025, 1024):  # 1025 draws do not fit the registers
        call = partial(sample_neighbours, torch.arange(ROWS + 1), _ints(ROWS), fanout, 0)
        yield Case("sample_neighbours", f"fan-out {fanout}", 0, call)


def _spmm_cases() -> Iterator[Case]:
    for dtype, widths in (
        ("fp32", (1, 3, 16, 32, 47, 64, 100, 128, 256, 300)),
        ("bf16", (16, 32, 47, 64, 100, 128, 256, 300)),
        ("fp16", (47, 128, 256)),
    ):
        for width in widths:
            yield _spmm(dtype, width, dtype, dtype, dtype)
    for x, history in product((*DTYPES, None), repeat=2):
        if x != history:
            yield _spmm(f"x {x}, history {history}", 128, x, history)
    for out, residual in zip(DTYPES, ("bf16", "fp16", "fp32"), strict=True):
        yield _spmm(f"out {out}, residual {residual}", 128, "bf16", "bf16", out, residual=residual)
    for dtype, width in (("fp32", 128), ("bf16", 256), ("bf16", 47)):
        yield _spmm(f"{dtype}, no scales", width, dtype, dtype, dtype, scales=False)
        yield _spmm(f"{dtype}, everything", width, dtype, dtype, dtype, residual=dtype, everything=True)
    yield _spmm("x fp32, history None, everything", 32, "fp32", None, residual="fp32", everything=True)
    yield _spmm("x fp32, history bf16, everything", 128, "fp32", "bf16", residual="fp32", everything=True)


def _spmm(variant: str, width: int, x: str | None, history: str | None, *arguments: str, **parts: object) -> Case:
    return Case("spmm", variant, width, partial(_call_spmm, width, x, history, *arguments, **parts))


def _call_spmm(
    width: int,
    x: str | None,
    history: str | None,
    out: str = "fp32",
    residual: str | None = None,
    scales: bool = True,
    everything: bool = False,
) -> None:
    index = torch.int64 if everything else torch.int32
    spmm(
        _matrix(out, width),
        _ints(ROWS + 1),
        _ints(EDGES, index),
        _ints(EDGES, index) if everything else None,
        _ints(ROWS),
        _ints(ROWS, torch.int32),
        _matrix(x, width),
        _matrix(history, width),
        _floats(ROWS) if scales else None,
        _floats(ROWS) if scales else None,
        _floats(EDGES) if everything else None,
        _matrix(residual, width),
        scale=1.0,
        alpha=0.0,
        edge_dropout=0.5 if everything else 0.0,
        seed=0,
        hub_node=_ints(1) if everything else None,
        hub_first=_ints(2) if everything else None,
        hub_segments=int(everything),
    )


def _edge_grad_cases() -> Iterator[Case]:
    for x, history, width, everything in (
        ("fp32", "fp32", 16, False),
        ("fp32", "fp32", 47, False),
        ("fp32", "fp32", 128, False),
        ("fp32", "fp32", 300, True),
        ("bf16", "bf16", 128, False),
        ("bf16", "bf16", 256, True),
        ("fp16", "fp16", 100, False),
        ("bf16", None, 256, False),
        (None, "fp32", 128, True),
        ("fp32", "bf16", 128, True),
    ):
        variant = f"x {x}, history {history}{', everything' * everything}"
        yield Case("edge_grad", variant, width, partial(_call_edge_grad, x, history, width, everything))


def _call_edge_grad(x: str | None, history: str | None, width: int, everything: bool) -> None:
    index = torch.int64 if everything else torch.int32
    edge_grad(
        _floats(EDGES),
        _ints(ROWS + 1),
        _ints(EDGES, index),
        _ints(EDGES, index) if everything else None,
        _ints(ROWS),
        _ints(ROWS, torch.int32),
        _matrix(x, width),
        _matrix(history, width),
        _floats(ROWS) if everything else None,
        _floats(ROWS) if everything else None,
        _matrix(x or history, width),
        scale=1.0,
        edge_dropout=0.5 if everything else 0.0,
        seed=0,
    )


def _attention_cases() -> Iterator[Case]:
    for x, history, heads, channels, everything in (
        ("fp32", "fp32", 1, 1, False),
        ("fp32", "fp32", 3, 1, True),
        ("fp32", "fp32", 8, 8, False),
        ("fp32", "fp32", 1, 47, True),
        ("fp32", "fp32", 4, 32, True),
        ("fp32", "fp32", 1, 1000, False),
        ("bf16", "bf16", 8, 8, True),
        ("bf16", "bf16", 4, 64, False),
        ("fp16", "fp16", 3, 128, False),
        ("bf16", None, 1, 256, False),
        (None, "fp32", 8, 16, True),
        ("fp32", "bf16", 4, 32, True),
    ):
        variant = f"x {x}, history {history}, {heads} heads{', everything' * everything}"
        for backward in (False, True):
            call = partial(_call_attention, x, history, heads, heads * channels, everything, backward)
            yield Case("attention_grad" if backward else "attention", variant, heads * channels, call)


def _call_attention(x: str | None, history: str | None, heads: int, width: int, everything: bool, backward: bool) -> None:
    index = torch.int64 if everything else torch.int32
    graph = _ints(ROWS + 1), _ints(EDGES, index), _ints(EDGES, index) if everything else None, _ints(ROWS)
    position, row_score = _ints(ROWS, torch.int32), _matrix("fp32", heads)
    sources = _matrix(x, width), _matrix(x, heads), row_score, _matrix(history, width), _matrix(history, heads)
    options: dict = dict(
        negative_slope=0.2, dropout=0.5 if everything else 0.0, seed=0, hub_node=_ints(1) if everything else None,
        hub_first=_ints(2) if everything else None, hub_segments=int(everything),
    )  # fmt: skip
    norm, out = _matrix("fp32", 2 * heads), _matrix(x or "fp32", width)
    if not backward:
        attention(out, norm, *graph, position, *sources, **options)
        return
    attention_row_grad(_matrix("fp32", 3 * heads), *graph, position, *sources, norm, out, **options)
    if x is not None:
        terms = _matrix("fp32", 4 * heads)
        attention_source_grad(out, _matrix(x, heads), *graph, position, *sources[:2], terms, out, **options)


def _activate_cases() -> Iterator[Case]:
    everything = dict(affine=True, dropout=0.5, relu=True)
    for h, y, history, width, parts in (
        ("fp32", "fp32", "fp32", 3, everything),
        ("fp32", "fp32", "fp32", 47, everything),
        ("fp32", "fp32", "bf16", 128, everything),
        ("fp32", "bf16", None, 256, everything),
        ("bf16", "bf16", "bf16", 128, everything),
        ("bf16", "bf16", None, 100, dict(affine=True, dropout=0.0, relu=True)),
        ("fp16", "fp16", "fp16", 256, everything),
        ("bf16", "fp32", "fp32", 300, dict(affine=False, dropout=0.5, relu=False)),
        ("fp32", "fp32", None, 2000, everything),
    ):
        forward = partial(_activate, h, y, history, width, **parts)
        yield Case("activate", f"{h} to {y}, history {history}{_without(parts)}", width, forward)
        # With moments there are two launches: one for the sums alone, one that writes the gradient by slope and offset.
        for saved in ("input", "output", "input, moments") if parts["affine"] else ("input", "output"):
            backward = partial(_backward, h, y, width, saved, **parts)
            yield Case("activate_backward", f"{y} to {h}, from the {saved}{_without(parts)}", width, backward)


def _without(parts: dict) -> str:
    return "".join(f", no {name}" for name, value in parts.items() if not value)


def _activate(h: str, y: str, history: str | None, width: int, affine: bool, dropout: float, relu: bool) -> None:
    vector = _floats(width) if affine else None
    activate(
        _matrix(y, width),
        _matrix(h, width),
        vector,
        vector,
        _ints(ROWS),
        _matrix(history, width),
        None if history is None else _ints(ROWS),
        relu=relu,
        dropout=dropout,
        seed=0,
    )


def _backward(h: str, y: str, width: int, saved: str, affine: bool, dropout: float, relu: bool) -> None:
    vector = _floats(width) if affine else None
    from_input, moments = saved != "output", saved == "input, moments"
    activate_backward(
        _matrix(h, width),
        vector if saved == "input" else None,
        None if moments else vector,
        _matrix(y, width),
        _matrix(h if from_input else y, width) if relu or from_input else None,
        vector,
        vector,
        _ints(ROWS),
        vector if moments else None,
        vector if moments else None,
        saved_is_output=not from_input,
        relu=relu,
        dropout=dropout,
        seed=0,
    )


def _row_cases() -> Iterator[Case]:
    pairs = [(table, dense, 128) for table, dense in product(DTYPES, repeat=2)]
    pairs += [("fp32", "fp32", width) for width in (1, 47, 100, 1500)]
    pairs += [("bf16", "fp32", 300), ("bf16", "bf16", 256)]
    for table, dense, width in pairs:
        yield Case("gather_rows", f"{table} to {dense}", width, partial(_gather, table, dense, width))
        for blend in (1.0, 0.5) if table == dense else (1.0,):
            variant = f"{dense} to {table}{', blended' * (blend != 1)}"
            yield Case("scatter_rows", variant, width, partial(_scatter, table, dense, width, blend))


def _gather(table: str, dense: str, width: int) -> None:
    gather_rows(_matrix(dense, width), _matrix(table, width), _ints(ROWS))


def _scatter(table: str, dense: str, width: int, blend: float) -> None:
    stamp = _ints(ROWS, torch.int32 if blend == 1 else torch.int64)
    scatter_rows(_matrix(table, width), _ints(ROWS), _matrix(dense, width), blend=blend, stamp=stamp, step=1)


def _halo(col: torch.dtype) -> None:
    halo(_ints(ROWS + 1), _ints(EDGES, col), _ints(ROWS))


def _place(nodes: torch.dtype) -> None:
    place_nodes(_ints(ROWS, torch.int32), _ints(EDGES, nodes), 0)


def _matrix(dtype: str | None, width: int) -> Tensor | None:
    return None if dtype is None else torch.zeros(ROWS, width, dtype=DTYPES[dtype])


def _floats(count: int) -> Tensor:
    return torch.zeros(count)


def _ints(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(count, dtype=dtype)
