"""The launches that are estimated, made by the launchers that users go through: for compiling on tensors of a few rows, for
measuring on a whole batch.

Launchers are run under ``launch.recording``, which hands over what they would launch: so a kernel that runs as the second
or third of its op is compiled, and timed, by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rest_triton.kernels import gpu
from rest_triton.kernels.gpu.launch import Settings, launch, recording

from .gpu_shapes import Graph, Shape, make
from .streams import Precision

#: As little as makes a launcher launch all its kernels.
TINY = Shape("tiny", "for compiling", 8, 4200, 3, 5, 0.5, 20, hubs=1, hub_edges=4097, graph_hubs=2)


@dataclass(frozen=True)
class Recorded:
    """One launch that has not happened yet."""

    kernel: object
    grid: tuple[int, ...]
    arguments: dict
    settings: Settings
    device: torch.device

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__.removesuffix("_kernel")

    def run(self) -> None:
        launch(self.kernel, self.grid, self.settings, self.device, **self.arguments)


def record(graph: Graph, width: int, p: Precision, lanes: int, *, far: bool = True) -> dict[str, Recorded]:
    """Every kernel's launch on ``graph``, by the names of ``traffic.KERNELS``, in an order in which they can be run.

    Where the graph is on a GPU, ``far`` adds the copies from and to page-locked memory of the host.
    """
    device, found = graph.col.device, {}
    for suffix, call in _calls(graph, width, p, far):

        def take(kernel: object, grid: tuple[int, ...], arguments: dict, settings: Settings, suffix: str = suffix) -> None:
            taken = Recorded(kernel, grid, dict(arguments), settings, device)
            found.setdefault(taken.name + suffix, taken)

        with recording(take, lanes):
            call()
    return found


def tiny(width: int, p: Precision, lanes: int) -> dict[str, Recorded]:
    """The launches at a shape that costs nothing: a binary does not depend on it."""
    return record(make(TINY), width, p, lanes, far=False)


def _calls(graph: Graph, width: int, p: Precision, far: bool) -> list[tuple[str, Callable[[], object]]]:
    device = graph.col.device
    count, edges = graph.rows.numel(), graph.col.numel()

    def matrix(rows: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, width, dtype=dtype, device=device)

    x, y, table = matrix(count, p.x), matrix(count, p.x), matrix(graph.nodes, p.table)
    scale, ones = torch.ones(graph.nodes, device=device), torch.ones(width, device=device)
    stamp = torch.zeros(graph.nodes, dtype=torch.int32, device=device)
    halo = matrix(graph.halo.numel(), p.x)
    walk = (graph.rowptr, graph.col, None, graph.rows, graph.position, x, table, scale, scale)
    hubs = dict(hub_node=graph.hub_node, hub_first=graph.hub_first, hub_segments=graph.hub_segments)
    drop = dict(edge_dropout=0.0, seed=0)
    pointwise = dict(relu=True, dropout=0.5, seed=0)
    grad = torch.zeros(edges, device=device)

    def copies(rows: Tensor) -> list[Callable[[], object]]:
        return [
            lambda: gpu.gather_rows(halo, rows, graph.halo),
            lambda: gpu.scatter_rows(rows, graph.rows, x, blend=1.0, stamp=stamp, step=1),
        ]

    calls = [
        lambda: gpu.spmm(y, *walk, None, None, scale=1.0, alpha=0.0, **drop, **hubs),
        lambda: gpu.edge_grad(grad, *walk, y, scale=1.0, **drop),
        lambda: gpu.activate(y, x, ones, ones, graph.rows, table, graph.rows, **pointwise),
        lambda: gpu.activate_backward(
            torch.empty_like(y), ones.clone(), ones.clone(), y, x, ones, ones, graph.rows, saved_is_output=False, **pointwise
        ),
        *copies(table),
        lambda: gpu.halo(graph.rowptr, graph.col, graph.rows),
    ]
    named = [("", call) for call in calls]
    if far and device.type == "cuda":
        pinned = torch.zeros(table.shape, dtype=p.table, pin_memory=True)
        named += [(", far", call) for call in copies(pinned)]
    return named
