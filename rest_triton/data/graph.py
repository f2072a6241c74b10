"""A graph for node classification: CSR, features, labels, splits."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..ops import Adjacency, check, gather_rows
from . import csr
from .features import SparseRows

MASKS = ("train_mask", "val_mask", "test_mask")
CHUNK_ROWS = 65536  # rows of x that are checked at a time, so that the check takes little memory
Normalisation = Literal["gcn", "mean", "sum", "loops"]


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable graph for node classification. Every method returns a new graph.

    Args:
        rowptr: int64[N+1]; col: int32 (int64 beyond 2^31 nodes) [E]. The in-neighbours of node g are
            ``col[rowptr[g] .. rowptr[g+1]]``, ascending. Node g aggregates over them.
        x: features, float32, bfloat16 or float16 [N, D], or :class:`SparseRows`, or None.
        y: labels, int64[N], or multi-label int8 [N, C] of 0 and 1; -1 = unknown. Or None.
        train_mask, val_mask, test_mask: bool[N], disjoint. Or None.
        num_classes: None: the largest label plus one.
        directed: None: inferred from the edges. False requires that every edge has its reverse.
        name: for messages and file names.

    Example::

        graph = Graph.from_edges(edge_index, num_nodes=4, y=torch.tensor([0, 1, 0, -1]), symmetrise=True)
        adj = graph.adjacency("gcn")  # self-loops and degree scales, for history_spmm
    """

    rowptr: Tensor
    col: Tensor
    x: Tensor | SparseRows | None = None
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    num_classes: int | None = None
    directed: bool | None = None
    name: str = "graph"
    #: Arrays that a method of this class returned, or that this package wrote, are not checked again.
    _checked: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not self._checked:
            self._check_edges()
            self._check_nodes()
        classes = _count_classes(self.y) if self.num_classes is None else self.num_classes
        object.__setattr__(self, "num_classes", classes)
        if self.y is not None and not self._checked:
            _check_labels(self.y, classes, self.train_mask)
        if self.directed is None or not self._checked:
            _, symmetric, ascending = self._digest
            if not ascending:
                raise ValueError("col does not ascend in every row; use Graph.from_edges for edges in any order")
            if self.directed is False and not symmetric:
                raise ValueError(
                    f"{self.name} has directed=False, but some of its edges have no reverse; "
                    "add them with symmetrise=True, or pass directed=None"
                )
            object.__setattr__(self, "directed", not symmetric if self.directed is None else self.directed)
        object.__setattr__(self, "_checked", True)

    @classmethod
    def from_edges(
        cls, edge_index: Tensor, num_nodes: int, *, symmetrise: bool = False, deduplicate: bool = False, **nodes: Any
    ) -> "Graph":
        """A graph from ``edge_index``, int32 or int64 [2, E]: sources in row 0, targets in row 1, in any order.

        ``deduplicate`` keeps each edge once. ``symmetrise`` also adds the reverse of every edge.
        ``nodes`` are the other arguments of :class:`Graph`.
        """
        check.tensor("edge_index", edge_index, check.INDEX_DTYPES, 2)
        check.size("edge_index", edge_index, 0, 2, "sources and targets")
        if num_nodes < 0:
            raise ValueError(f"num_nodes is {num_nodes}; it must not be negative")
        check.in_range("edge_index", edge_index, 0, num_nodes, f"the ids of {num_nodes} nodes")
        rowptr, col = csr.from_edges(edge_index[0], edge_index[1], num_nodes, mirror=symmetrise, deduplicate=deduplicate)
        return cls(rowptr, col, **(nodes | {"directed": False} if symmetrise else nodes))

    def _check_edges(self) -> None:
        check.tensor("rowptr", self.rowptr, (torch.int64,), 1)
        check.tensor("col", self.col, check.INDEX_DTYPES, 1)
        check.row_pointers("rowptr", self.rowptr, self.col.numel(), "edges")
        check.in_range("col", self.col, 0, self.num_nodes, "the node ids")
        if self.num_nodes <= 2**31:  # half the bytes of the most read array
            object.__setattr__(self, "col", self.col.to(torch.int32))

    def _check_nodes(self) -> None:
        n = self.num_nodes
        if isinstance(self.x, Tensor):
            check.tensor("x", self.x, check.ROW_DTYPES, 2)
            _check_finite(self.x)
        if self.x is not None and self.x.shape[0] != n:
            raise ValueError(
                f"x has {self.x.shape[0]} rows, the graph {n} nodes; x needs one row per node, in the order of node ids"
            )
        masks = [(name, mask) for name in MASKS if (mask := getattr(self, name)) is not None]
        for name, mask in masks:
            check.tensor(name, mask, (torch.bool,), 1)
            check.size(name, mask, 0, n, "one per node")
        for i, (name, mask) in enumerate(masks):
            for other_name, other in masks[:i]:
                both = torch.nonzero(mask & other)
                if both.numel() > 0:
                    raise ValueError(
                        f"{both.shape[0]} nodes, the first of them {int(both[0])}, are in {other_name} and in {name}; "
                        "remove them from one of the two"
                    )
        if self.y is not None:
            check.tensor("y", self.y, (torch.int8,) if self.y.dim() == 2 else (torch.int64,), 2 if self.y.dim() == 2 else 1)
            check.size("y", self.y, 0, n, "one per node")

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """The number of directed edges. An undirected edge counts twice."""
        return self.col.numel()

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    @property
    def multilabel(self) -> bool:
        return self.y is not None and self.y.dim() == 2

    @cached_property
    def _digest(self) -> tuple[str, bool, bool]:
        return csr.fingerprint(self.rowptr, self.col)

    @property
    def fingerprint(self) -> str:
        """A hash of the edges, 32 hexadecimal digits. Partitions and histories are filed under it."""
        return self._digest[0]

    @property
    def degree(self) -> Tensor:
        """The number of in-neighbours, int64[N]."""
        return self.rowptr.diff()

    @property
    def nbytes(self) -> int:
        arrays = (self.rowptr, self.col, self.x, self.y, *(getattr(self, name) for name in MASKS))
        return sum(a.nbytes for a in arrays if a is not None)

    def _with_edges(self, edges: tuple[Tensor, Tensor], directed: bool | None) -> "Graph":
        if edges[1] is self.col:
            return self
        return replace(self, rowptr=edges[0], col=edges[1], directed=directed)

    def symmetrise(self) -> "Graph":
        """Add the reverse of every edge and keep each edge once."""
        if self.directed is False:
            return self.deduplicate()
        return self._with_edges(csr.symmetrise(self.rowptr, self.col), False)

    def deduplicate(self) -> "Graph":
        """Keep each edge once."""
        return self._with_edges(csr.deduplicate(self.rowptr, self.col), None if self.directed else False)

    def with_self_loops(self) -> "Graph":
        """Give every node exactly one self-loop."""
        return self._with_edges(csr.with_self_loops(self.rowptr, self.col), self.directed)

    def without_self_loops(self) -> "Graph":
        """Remove all self-loops."""
        return self._with_edges(csr.without_self_loops(self.rowptr, self.col), self.directed)

    def reverse(self) -> "Graph":
        """Reverse every edge."""
        if self.directed is False:
            return self
        return self._with_edges(csr.reverse(self.rowptr, self.col), True)

    def permute(self, order: Tensor) -> "Graph":
        """The graph with permuted nodes: node i is node ``order[i]`` of this graph. ``order`` is int64[N]."""
        check.tensor("order", order, (torch.int64,), 1)
        check.size("order", order, 0, self.num_nodes, "one per node")
        check.in_range("order", order, 0, self.num_nodes, "the node ids")
        if not torch.zeros(self.num_nodes, dtype=torch.bool).index_fill_(0, order, True).all():
            raise ValueError(
                f"order has some of the {self.num_nodes} nodes twice and others not at all; it must be a permutation"
            )
        rowptr, col = csr.permute(self.rowptr, self.col, order)
        x = self.x
        if x is not None:
            x = x.rows(order) if isinstance(x, SparseRows) else gather_rows(x, order)
        nodes = {name: value[order] for name in ("y", *MASKS) if (value := getattr(self, name)) is not None}
        return replace(self, rowptr=rowptr, col=col, x=x, **nodes)

    def adjacency(self, normalise: Normalisation = "gcn") -> Adjacency:
        """The normalised adjacency for message passing, with its reverse for backward.

        ``gcn``: self-loops, scaled by ``deg ** -0.5`` on both sides. ``mean``: scaled by ``1 / deg``. ``sum``: not scaled.
        """
        if normalise not in get_args(Normalisation):
            raise ValueError(f"normalise is {normalise!r}; it must be 'gcn', 'mean', 'sum' or 'loops'")
        graph = self.with_self_loops() if normalise in ("gcn", "loops") else self
        row_scale = None if normalise in ("sum", "loops") else csr.degree_scale(graph.rowptr, root=normalise == "gcn")
        col_scale = row_scale if normalise == "gcn" else None
        adj = Adjacency(graph.rowptr, graph.col, row_scale, col_scale, _checked=True)
        return adj.with_reverse() if self.directed else adj.undirected()

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        sparse = " sparse" if isinstance(self.x, SparseRows) else ""
        return (
            f"Graph({self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges ({kind}), "
            f"{self.num_features}{sparse} features, {self.num_classes} classes)"
        )


def _check_finite(x: Tensor) -> None:
    for begin in range(0, x.shape[0], CHUNK_ROWS):
        bad = torch.nonzero(~torch.isfinite(x[begin : begin + CHUNK_ROWS]))
        if bad.numel() > 0:
            row, column = int(bad[0, 0]), int(bad[0, 1])
            value = float(x[begin + row, column])
            raise ValueError(
                f"x[{begin + row}, {column}] is {value}; features must be finite, for example by torch.nan_to_num(x)"
            )


def _count_classes(y: Tensor | None) -> int:
    if y is None or y.numel() == 0:
        return 0
    return y.shape[1] if y.dim() == 2 else max(0, int(y.max()) + 1)


def _check_labels(y: Tensor, classes: int, train_mask: Tensor | None) -> None:
    if y.dim() == 2:
        check.size("y", y, 1, classes, "one column per class")
        check.in_range("y", y, -1, 2, "0 or 1, and -1 for unknown")
    else:
        check.in_range("y", y, -1, classes, f"{classes} classes, and -1 for unknown")
    if train_mask is not None:
        unknown = torch.nonzero(train_mask & (y.amin(1) if y.dim() == 2 else y).lt(0))
        if unknown.numel() > 0:
            raise ValueError(
                f"{unknown.shape[0]} nodes of train_mask, the first of them {int(unknown[0])}, have no label (-1); "
                "remove them from train_mask"
            )
