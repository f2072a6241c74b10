"""What each Triton kernel moves and does, by formula: from counts of rows, edges and features, nothing measured.

Each formula gives the streams of one launch and what its programs wait for. The tests hold them to a count of every element.
"""

from collections.abc import Callable
from math import ceil, log2

import torch

from rest_triton.kernels._hubs import HUB_SEGMENT
from rest_triton.kernels.gpu.launch import (
    EDGE_GRAD_SPLIT,
    PARTIAL_PROGRAMS,
    REMOTE_PROGRAMS,
    Settings,
    activate_settings,
    column_sum_settings,
    copy_settings,
    edge_grad_settings,
    hub_sum_settings,
    mark_settings,
    spmm_settings,
)

from .gpu_shapes import Shape, segments_of
from .streams import Precision, Stream, Work

FLOAT, INDEX, LONG = 4, 4, 8  # bytes: float32 scales, int32 columns and positions, int64 row numbers and offsets


def drawn(draws: int, items: int) -> int:
    """How many of ``items`` are met in ``draws`` at random, in the mean."""
    return min(draws, round(items * (1 - (1 - 1 / items) ** draws))) if items else 0


def _walk(shape: Shape, width: int, p: Precision, edges: int, blocks: int) -> list[Stream]:
    """Reads of a walk over ``edges`` edges: columns, positions, scales, and the neighbours' rows.

    Hubs meet some of the batch's neighbours. All other rows together meet all of them, but for the very few that only a
    hub has.
    """
    within = round(edges * shape.share)
    at_hubs = edges == shape.hub_edges
    inside = drawn(within, shape.inside) if at_hubs else shape.inside
    outside = drawn(edges - within, shape.halo) if at_hubs else shape.halo
    return [
        Stream("col", edges * blocks, edges, INDEX),
        Stream("position", edges * blocks, inside + outside, INDEX, scattered=True),
        Stream("col_scale", edges * blocks, inside + outside, FLOAT, scattered=True),
        Stream("x", within, inside, width * p.x.itemsize, scattered=True),
        Stream("history", edges - within, outside, width * p.table.itemsize, scattered=True),
    ]


def _loads(s: Settings, p: Precision, lanes: int) -> int:
    """16-byte loads of a lane in a tile of K rows; x and history of two dtypes are loaded side by side."""
    return s.K * s.BLOCK_D * sum(dtype.itemsize for dtype in {p.x, p.table}) // (16 * lanes)


def _row_indices(shape: Shape, times: int) -> list[Stream]:
    """rows, and two entries of rowptr for each; rows of a cluster are consecutive and share one of them."""
    rows = shape.rows
    return [Stream("rows", rows * times, rows, LONG), Stream("rowptr", 2 * rows * times, rows + 1, LONG)]


def spmm(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    s = spmm_settings(width, 16, p.x, p.table, lanes=lanes)
    blocks, rows = ceil(width / s.BLOCK_D), shape.rows - shape.hubs

    def full(n: int) -> int:
        return n // s.EDGES

    def tail(n: int) -> int:
        return ceil(n % s.EDGES / s.K)

    runs = dict(program=rows * blocks, block=shape.total(full) * blocks, tail=shape.total(tail) * blocks)
    runs["tile"] = runs["block"] * s.EDGES // s.K
    streams = [
        *_row_indices(shape, blocks),
        *_walk(shape, width, p, shape.edges - shape.hub_edges, blocks),
        Stream("row_scale", rows * blocks, rows, FLOAT),
        Stream("hub_node", shape.hubs * blocks * _steps(shape), shape.graph_hubs if shape.hubs else 0, LONG, shared=True),
        Stream("hub_row", shape.hubs * blocks, shape.hubs, INDEX, write=True),
        Stream("out", rows, rows, width * p.x.itemsize, write=True),
    ]
    # rows, rowptr, col and position wait for each other once; then rows alone are waited for.
    rounds = 4 * shape.rows * blocks + runs["tile"] + runs["tail"]
    longest = 4 + full(shape.longest) * s.EDGES // s.K + tail(shape.longest)
    flops = 2 * (shape.edges - shape.hub_edges) * width
    return Work(tuple(streams), shape.rows * blocks, 1, rounds, longest, flops, loads=_loads(s, p, lanes), runs=runs)


def _steps(shape: Shape) -> int:
    """Steps of a bisection among the graph's hubs."""
    return ceil(log2(shape.graph_hubs)) if shape.graph_hubs > 1 else 0


def spmm_hub_segment(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    s = spmm_settings(width, 16, p.x, p.table, lanes=lanes)
    blocks, steps = ceil(width / s.BLOCK_D), _steps(shape)
    programs, busy = shape.graph_segments * blocks, shape.segments * blocks
    runs = dict(program=busy, search=programs * steps, block=shape.hub_edges // s.EDGES * blocks)
    runs["tile"] = runs["block"] * s.EDGES // s.K
    hubs = shape.hubs
    streams = [
        Stream("hub_first", programs * (steps + 1), shape.graph_hubs, LONG, shared=True),
        Stream("hub_row", programs, shape.graph_hubs, INDEX, shared=True),
        Stream("hub_node", busy, hubs, LONG, shared=True),
        Stream("rowptr", 2 * busy, 2 * hubs, LONG, shared=True),
        *_walk(shape, width, p, shape.hub_edges, blocks),
        Stream("partial", shape.segments, shape.segments, width * FLOAT, write=True),
    ]
    tiles = ceil(min(HUB_SEGMENT, shape.hub_edges) / s.K)
    # After the bisection: hub_row; and for hubs in the batch hub_node, rowptr, col and position.
    cached = programs * (steps + 1)
    flops, loads = 2 * shape.hub_edges * width, _loads(s, p, lanes)
    return Work(
        tuple(streams), programs, 1, cached + busy * 4 + runs["tile"], steps + 5 + tiles, flops,
        cached_rounds=cached, loads=loads, runs=runs,
    )  # fmt: skip


def spmm_hub_sum(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    s = hub_sum_settings(width)
    blocks, hubs = ceil(width / s.BLOCK_D), shape.hubs
    tiles = shape.total(lambda n: ceil(segments_of(n) / s.BLOCK_R), hubs=True) * blocks
    programs = shape.graph_hubs * blocks
    streams = [
        Stream("hub_row", programs, shape.graph_hubs, INDEX),
        Stream("hub_first", 2 * hubs * blocks, min(2 * hubs, shape.graph_hubs + 1), LONG, shared=True),
        Stream("hub_node", hubs * blocks, hubs, LONG),
        Stream("row_scale", hubs * blocks, hubs, FLOAT, scattered=True),
        Stream("partial", shape.segments, shape.segments, width * FLOAT),
        Stream("out", hubs, hubs, width * p.x.itemsize, write=True, scattered=True),
    ]
    longest = 2 + ceil(segments_of(shape.degrees()[0][0]) / s.BLOCK_R)
    runs = dict(program=hubs * blocks, tile=tiles)
    rounds = programs + hubs * blocks + tiles
    return Work(tuple(streams), programs, 1, rounds, longest, shape.segments * width, runs=runs)


def edge_grad(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    s = edge_grad_settings(width, 16, p.x, p.table, lanes=lanes)
    wide = ceil(width / s.BLOCK_D)  # blocks of features, one after the other

    def everywhere(count: Callable[[int], int]) -> int:
        return shape.total(count) + shape.total(count, hubs=True)

    block = everywhere(lambda n: ceil(n / s.EDGES))
    busy = everywhere(lambda n: min(ceil(n / s.EDGES), EDGE_GRAD_SPLIT))
    tiles = everywhere(lambda n: n // s.EDGES * (s.EDGES // s.K) + ceil(n % s.EDGES / s.K))
    programs = shape.rows * EDGE_GRAD_SPLIT
    streams = [
        *_row_indices(shape, EDGE_GRAD_SPLIT),
        *_walk(shape, width, p, shape.edges, 1),
        Stream("row_scale", busy, shape.rows, FLOAT),
        Stream("grad_out", busy, shape.rows, width * p.x.itemsize),
        Stream("grad_edge_weight", shape.edges, shape.edges, FLOAT, write=True),
    ]
    most = max(n for n, _ in shape.degrees())
    longest = 4 + ceil(ceil(most / s.EDGES) / EDGE_GRAD_SPLIT) * (s.EDGES // s.K) * wide
    runs = dict(program=busy, block=block, tile=tiles, wide=tiles * (wide - 1))
    rounds, flops = 2 * programs + 2 * busy + tiles * wide, 2 * shape.edges * width
    return Work(tuple(streams), programs, 1, rounds, longest, flops, loads=_loads(s, p, lanes), runs=runs)


def _tiles(count: int, width: int, settings: Settings) -> tuple[int, int]:
    """Tiles along the rows, and blocks of features."""
    return ceil(count / settings.BLOCK_R), ceil(width / settings.BLOCK_D)


def _vector(*matrices: torch.dtype) -> int:
    """Elements of one access: 16 bytes of the widest dtype."""
    return 16 // max(dtype.itemsize for dtype in matrices)


def activate(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    """BatchNorm's scale and shift, ReLU, dropout, and the rows' write-back into the table."""
    s = activate_settings(width, _vector(p.x, p.table))
    rows, (tiles, blocks) = shape.rows, _tiles(shape.rows, width, s)
    programs = tiles * blocks
    streams = (
        Stream("h", rows, rows, width * p.x.itemsize),
        Stream("scale, shift", 2 * tiles, 2, width * FLOAT, shared=True),
        Stream("rows", rows * blocks, rows, LONG),
        Stream("history_rows", rows * blocks, rows, LONG),
        Stream("history", rows, rows, width * p.table.itemsize, write=True, scattered=True),
        Stream("y", rows, rows, width * p.x.itemsize, write=True),
    )
    return Work(streams, programs, s.num_warps, programs, 1, 4 * rows * width, runs=dict(program=programs))


def activate_backward(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    """Of the same, from h; with gradients of scale and shift."""
    s = activate_settings(width, _vector(p.x))
    rows, (tiles, blocks) = shape.rows, _tiles(shape.rows, width, s)
    partials = min(tiles, PARTIAL_PROGRAMS)
    streams = (
        Stream("grad_y", rows, rows, width * p.x.itemsize),
        Stream("h", rows, rows, width * p.x.itemsize),
        Stream("scale, shift", 2 * partials, 2, width * FLOAT, shared=True),
        Stream("rows", rows * blocks, rows, LONG),
        Stream("grad_h", rows, rows, width * p.x.itemsize, write=True),
        Stream("partial sums", 2 * partials, 2 * partials, width * FLOAT, write=True),
    )
    runs = dict(program=partials * blocks, tile=tiles * blocks)
    rounds, longest = tiles * blocks, ceil(tiles / partials)
    return Work(streams, partials * blocks, s.num_warps, rounds, longest, 8 * rows * width, runs=runs)


def column_sum(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    """One of the two sums that activate_backward leaves."""
    s = column_sum_settings()
    partials = min(_tiles(shape.rows, width, activate_settings(width, _vector(p.x)))[0], PARTIAL_PROGRAMS)
    tiles, programs = _tiles(partials, width, s)
    streams = (Stream("partial", partials, partials, width * FLOAT), Stream("sum", 1, 1, width * FLOAT, write=True))
    runs = dict(program=programs, tile=tiles * programs)
    return Work(streams, programs, s.num_warps, tiles * programs, tiles, partials * width, runs=runs)


def _copy(shape: Shape, width: int, p: Precision, *, gather: bool, far: bool) -> Work:
    """Halo rows out of the table, or the batch's rows into it."""
    s = copy_settings(width, _vector(p.x, p.table))
    count = shape.halo if gather else shape.rows
    tiles, blocks = _tiles(count, width, s)
    programs = min(tiles, max(REMOTE_PROGRAMS // blocks, 1)) if far else tiles
    streams = [
        Stream("index", count * blocks, count, LONG),
        Stream("table", count, count, width * p.table.itemsize, write=not gather, scattered=True, far=far),
        Stream("rows", count, count, width * p.x.itemsize, write=gather),
    ]
    if not gather:
        streams.append(Stream("stamp", count * blocks, count, INDEX, write=True, scattered=True))
    total, longest = tiles * blocks, ceil(tiles / programs)
    # The index first, then the rows it names; src needs no index, and nothing waits for what is stored.
    rounds = 2 if gather else 1
    return Work(
        tuple(streams), programs * blocks, s.num_warps, rounds * total, rounds * longest, 0,
        far_rounds=total if far and gather else 0, runs=dict(program=programs * blocks, tile=total),
    )  # fmt: skip


def mark_neighbours(shape: Shape, width: int, p: Precision, lanes: int = 32) -> Work:
    s = mark_settings()
    tiles = sum(ceil(n / s.EDGES) * rows for n, rows in shape.degrees())
    streams = (
        *_row_indices(shape, 1),
        Stream("col", shape.edges, shape.edges, INDEX),
        Stream("flag", shape.edges, shape.distinct, 1, write=True, scattered=True),
    )
    longest = 2 + ceil(max(n for n, _ in shape.degrees()) / s.EDGES)
    runs = dict(program=shape.rows, tile=tiles)
    return Work(streams, shape.rows, 1, 2 * shape.rows + tiles, longest, 0, runs=runs)


Formula = Callable[[Shape, int, Precision, int], Work]
#: By the names that estimates have; two of them share a binary with another.
KERNELS: dict[str, Formula] = {
    "spmm": spmm,
    "spmm_hub_segment": spmm_hub_segment,
    "spmm_hub_sum": spmm_hub_sum,
    "edge_grad": edge_grad,
    "activate": activate,
    "activate_backward": activate_backward,
    "column_sum": column_sum,
    "gather_rows": lambda shape, width, p, lanes=32: _copy(shape, width, p, gather=True, far=False),
    "gather_rows, far": lambda shape, width, p, lanes=32: _copy(shape, width, p, gather=True, far=True),
    "scatter_rows": lambda shape, width, p, lanes=32: _copy(shape, width, p, gather=False, far=False),
    "scatter_rows, far": lambda shape, width, p, lanes=32: _copy(shape, width, p, gather=False, far=True),
    "mark_neighbours": mark_neighbours,
}
#: The same for people, as bytes of all accesses.
FORMULAS = {
    "spmm": "B (R (8 + 16 + 4) + E (4 + 4 + 4)) + E D s + R D x",
    "spmm_hub_segment": "B E (4 + 4 + 4) + E D s + 4 S D",
    "spmm_hub_sum": "4 S D + h D x",
    "edge_grad": f"{EDGE_GRAD_SPLIT} R (8 + 16) + programs (4 + D x) + E (4 + 4 + 4) + E D s + 4 E",
    "activate": "R (D x + 8 + 8) + R D (x + t)",
    "activate_backward": "R (2 D x + 8) + R D x + 2 P 4 D",
    "column_sum": "4 P D + 4 D",
    "gather_rows": "H (8 + D t) + H D x",
    "gather_rows, far": "H 8 + H D x; far H D t",
    "scatter_rows": "R (8 + D x) + R (D t + 4)",
    "scatter_rows, far": "R (8 + D x) + 4 R; far R D t",
    "mark_neighbours": "R (8 + 16) + 4 E + E",
}


def binary_of(kernel: str) -> str:
    return kernel.removesuffix(", far")
