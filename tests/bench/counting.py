"""Every element that a kernel's definition reads or writes on a given graph, counted one by one.

Independent of the formulas in bench/traffic.py: it walks the tensors as the kernels' equations do, and knows about tiles
only how many programs read an index each.
"""

from collections import defaultdict
from collections.abc import Iterable

from bench.gpu_shapes import Graph
from bench.streams import Precision
from rest_triton.kernels._hubs import HUB_DEGREE, HUB_SEGMENT

FLOAT = 4


class Count:
    """Bytes of all accesses and of distinct elements, by tensor."""

    def __init__(self) -> None:
        self.accesses: dict[str, int] = defaultdict(int)
        self._seen: dict[str, dict[object, int]] = defaultdict(dict)

    def touch(self, name: str, element: object, nbytes: int) -> None:
        self.accesses[name] += nbytes
        self._seen[name][element] = nbytes

    @property
    def distinct(self) -> dict[str, int]:
        return {name: sum(seen.values()) for name, seen in self._seen.items()}


def _neighbours(count: Count, graph: Graph, width: int, p: Precision, edges: Iterable[int], blocks: int) -> None:
    for k in edges:
        c = int(graph.col[k])
        for _ in range(blocks):
            count.touch("col", k, 4)
            count.touch("position", c, 4)
            count.touch("col_scale", c, FLOAT)
        position = int(graph.position[c])
        name, row, size = ("x", position, p.x.itemsize) if position >= 0 else ("history", ~position, p.table.itemsize)
        for d in range(width):
            count.touch(name, (row, d), size)


def _ends(count: Count, graph: Graph, i: int, times: int) -> tuple[int, int, int]:
    """The row's node and its edges, which ``times`` programs look up."""
    g = int(graph.rows[i])
    for _ in range(times):
        count.touch("rows", i, 8)
        count.touch("rowptr", g, 8)
        count.touch("rowptr", g + 1, 8)
    return g, int(graph.rowptr[g]), int(graph.rowptr[g + 1])


def spmm(graph: Graph, width: int, p: Precision, blocks: int) -> Count:
    count = Count()
    for i in range(len(graph.rows)):
        g, begin, end = _ends(count, graph, i, blocks)
        if end - begin > HUB_DEGREE:
            for _ in range(blocks):
                count.touch("hub_row", g, 4)
            continue
        for _ in range(blocks):
            count.touch("row_scale", g, FLOAT)
        _neighbours(count, graph, width, p, range(begin, end), blocks)
        for d in range(width):
            count.touch("out", (i, d), p.x.itemsize)
    return count


def spmm_hub_segment(graph: Graph, width: int, p: Precision, blocks: int) -> Count:
    count = Count()
    for i in range(len(graph.rows)):
        g = int(graph.rows[i])
        begin, end = int(graph.rowptr[g]), int(graph.rowptr[g + 1])
        if end - begin > HUB_DEGREE:
            _neighbours(count, graph, width, p, range(begin, end), blocks)
            for s in range(begin, end, HUB_SEGMENT):
                for d in range(width):
                    count.touch("partial", (g, s, d), FLOAT)
    return count


def edge_grad(graph: Graph, width: int, p: Precision, block: int, split: int) -> Count:
    count = Count()
    for i in range(len(graph.rows)):
        g, begin, end = _ends(count, graph, i, split)
        for first in range(begin, min(begin + split * block, end), block):  # a program for each, which stays
            count.touch("row_scale", g, FLOAT)
            for d in range(width):
                count.touch("grad_out", (i, d), p.x.itemsize)
            assert first < end
        _neighbours(count, graph, width, p, range(begin, end), 1)
        for k in range(begin, end):
            count.touch("grad_edge_weight", k, FLOAT)
    return count


def mark_neighbours(graph: Graph) -> Count:
    count = Count()
    for i in range(len(graph.rows)):
        _, begin, end = _ends(count, graph, i, 1)
        for k in range(begin, end):
            count.touch("col", k, 4)
            count.touch("flag", int(graph.col[k]), 1)
    return count


def copy_rows(index: Iterable[int], width: int, p: Precision, *, gather: bool) -> Count:
    count = Count()
    for i, g in enumerate(index):
        count.touch("index", i, 8)
        for d in range(width):
            count.touch("table", (g, d), p.table.itemsize)
            count.touch("rows", (i, d), p.x.itemsize)
        if not gather:
            count.touch("stamp", g, 4)
    return count


def activate(rows: int, width: int, p: Precision) -> Count:
    count = Count()
    for i in range(rows):
        count.touch("rows", i, 8)
        count.touch("history_rows", i, 8)
        for d in range(width):
            for name, size in (("h", p.x.itemsize), ("y", p.x.itemsize), ("history", p.table.itemsize)):
                count.touch(name, (i, d), size)
    return count


def activate_backward(rows: int, width: int, p: Precision, partials: int) -> Count:
    count = Count()
    for i in range(rows):
        count.touch("rows", i, 8)
        for d in range(width):
            for name in ("grad_y", "h", "grad_h"):
                count.touch(name, (i, d), p.x.itemsize)
    for program in range(partials):
        for d in range(2 * width):
            count.touch("partial sums", (program, d), FLOAT)
    return count
