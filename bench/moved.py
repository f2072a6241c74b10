"""How many bytes an op has to move, counted on the batch at hand.

``least``: everything it reads and writes, once each, however often it is needed. No kernel can do with less.
``rows``: of an aggregate, a row for every edge, as often as it is asked for. Caches serve some of them; where they are of no
help, this is what memory has to deliver. It is what an aggregate's GB/s are reckoned from, and the limit that it is compared
with reads just these rows.

Indices count with their own size: 8 bytes for a row id and an offset, 4 for a position and a scale.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rest_triton.ops import Adjacency

from .shapes import Batch, neighbours


@dataclass(frozen=True)
class Moved:
    least: int
    rows: int | None = None

    @property
    def counted(self) -> int:
        """What GB/s are reckoned from."""
        return self.least if self.rows is None else self.rows

    def __add__(self, other: "Moved") -> "Moved":
        rows = None if self.rows is None or other.rows is None else self.rows + other.rows
        return Moved(self.least + other.least, rows)


def aggregate(adj: Adjacency, rows: Tensor, position: Tensor, x: Tensor | None, table: Tensor | None, out: Tensor) -> Moved:
    """``out`` = history_spmm of these.

    least = 8 per row id and per distinct row offset; per edge its column; per distinct neighbour its position, and, if it is
    read, its row and scale; the result and a scale per row.
    rows = edges to the batch x a row of x + edges to the outside x a row of the table.
    """
    columns = neighbours(adj, rows)
    near = distinct(columns, adj.num_nodes)
    inside, outside = (0 if t is None else t.shape[1] * t.element_size() for t in (x, table))
    scale = 0 if adj.col_scale is None else 4
    at_inside, at_outside = (bytes_ + scale if bytes_ else 0 for bytes_ in (inside, outside))
    within, near_within = (int((position[c] >= 0).sum()) for c in (columns, near))
    beyond, near_beyond = len(columns) - within, len(near) - near_within
    least = (
        8 * len(rows)
        + 8 * len(distinct(torch.cat([rows, rows + 1]), adj.num_nodes + 1))
        + len(columns) * adj.col.element_size()
    )
    least += 4 * len(near) + near_within * at_inside + near_beyond * at_outside
    least += out.nbytes + (0 if adj.row_scale is None else 4 * len(rows))
    return Moved(least, within * inside + beyond * outside)


def history_spmm(b: Batch) -> dict[str, Moved]:
    """Forward, and backward: the same op on the reverse graph, whose rows are the gradients of the batch's."""
    assert b.adj.reverse is not None
    forward = aggregate(b.adj, b.rows, b.position, b.x, b.table, b.x)
    backward = aggregate(b.adj.reverse, b.rows, b.position, b.x, None, b.x)
    return with_both(forward, backward)


def halo_spmm(b: Batch, halo_x: Tensor) -> dict[str, Moved]:
    """As history_spmm, and backward once more for the rows of the halo."""
    assert b.adj.reverse is not None
    forward = aggregate(b.adj, b.rows, b.position, b.x, halo_x, b.x)
    backward = aggregate(b.adj.reverse, b.rows, b.position, b.x, None, b.x)
    return with_both(forward, backward + aggregate(b.adj.reverse, b.halo, b.position, b.x, None, halo_x))


def edge_weights(b: Batch) -> dict[str, Moved]:
    """history_spmm with a weight per edge, 4 bytes more each. Backward for the weights: the rows of both ends of each edge,
    of which that of the gradient stays at hand for all edges of a row; a gradient for every edge of the graph is written."""
    forward = aggregate(b.adj, b.rows, b.position, b.x, b.table, b.x)
    assert forward.rows is not None
    forward = Moved(forward.least + 4 * b.edges, forward.rows)
    return with_both(forward, Moved(forward.least - 4 * b.edges + 4 * b.adj.num_edges, forward.rows))


def activate(h: Tensor, table: Tensor, *, moments: bool) -> dict[str, Moved]:
    """Forward: h is read, the result and the table's rows are written, an id per row. Backward: gradient and h are read, the
    gradient of h is written. Moments need a pass over h before forward, and over gradient and h before backward: they
    belong to all rows, so none can be finished before all were seen. 8 bytes per feature for scale and shift, either way.
    """
    per_feature, ids = 8 * h.shape[1], 8 * h.shape[0]
    forward = 2 * h.nbytes + h.numel() * table.element_size() + ids + per_feature + (h.nbytes if moments else 0)
    backward = 3 * h.nbytes + ids + 2 * per_feature + (2 * h.nbytes if moments else 0)
    return with_both(Moved(forward), Moved(backward))


def gather_rows(table: Tensor, index: Tensor, out: Tensor) -> dict[str, Moved]:
    """Each row read and written, 8 bytes per index. Backward: the gradient's rows read, all of the table's written."""
    read = index.numel() * table.shape[1] * table.element_size()
    return with_both(Moved(read + out.nbytes + 8 * index.numel()), Moved(out.nbytes + 8 * index.numel() + table.nbytes))


def scatter_rows(table: Tensor, index: Tensor, src: Tensor, stamp: Tensor) -> dict[str, Moved]:
    """Each row read and written, an index and a stamp for each."""
    written = index.numel() * (table.shape[1] * table.element_size() + stamp.element_size())
    return {"forward": Moved(src.nbytes + written + 8 * index.numel())}


def halo(b: Batch) -> dict[str, Moved]:
    """Row ids, distinct row offsets and all columns read, the halo written."""
    offsets = len(distinct(torch.cat([b.rows, b.rows + 1]), b.adj.num_nodes + 1))
    return {"forward": Moved(8 * (len(b.rows) + offsets + len(b.halo)) + b.edges * b.adj.col.element_size())}


def distinct(values: Tensor, below: int) -> Tensor:
    """Each of the values once. By marks: a sort of millions takes longer than what is measured."""
    seen = torch.zeros(below, dtype=torch.bool, device=values.device)
    seen[values] = True
    return torch.nonzero(seen).squeeze(1)


def with_both(forward: Moved, backward: Moved) -> dict[str, Moved]:
    return {"forward": forward, "backward": backward, "both": forward + backward}
