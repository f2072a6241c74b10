"""The graph that everything else works on: who is next to whom, what is known of each node, and who learns from whom."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from . import csr
from .features import SparseRows
from ..ops import Adjacency, check, gather_rows

MASKS = ("train_mask", "val_mask", "test_mask")
Normalisation = Literal["gcn", "mean", "sum"]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph for node classification. Nothing in it changes: every method returns a new one.

    Args:
        rowptr: int64[N+1]; col: int32 (int64 beyond 2^31 nodes) [E]. The in-neighbours of node g, those it aggregates over,
            are ``col[rowptr[g] .. rowptr[g+1]]``, ascending.
        x: features, float32 [N, D] (bfloat16 and float16 as well), or :class:`SparseRows`, or None.
        y: labels, int64[N], or int8 [N, C] where a node can have several (0, 1); -1 = not known. Or None.
        train_mask, val_mask, test_mask: bool[N], no node in two of them. Or None.
        num_classes: None takes the largest label plus one.
        directed: None looks at the edges. False for a graph whose edges are not all there both ways is refused.
        name: for people and for file names.

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
    #: Arrays known to be good (from a method here, or written by this package) are not read again.
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
                raise ValueError("col does not ascend in every row; Graph.from_edges takes edges in any order")
            if self.directed is False and not symmetric:
                raise ValueError(
                    f"{self.name} is said to be undirected, but some of its edges are there one way only; "
                    "make it so with .symmetrise(), or leave directed=None"
                )
            object.__setattr__(self, "directed", not symmetric if self.directed is None else self.directed)
        object.__setattr__(self, "_checked", True)

    @classmethod
    def from_edges(
        cls, edge_index: Tensor, num_nodes: int, *, symmetrise: bool = False, deduplicate: bool = False, **nodes: Any
    ) -> "Graph":
        """From int32 or int64 [2, E]: row 0 the sources, row 1 the targets, in any order.

        ``symmetrise`` also adds every edge the other way round, and each edge once; ``deduplicate`` only the latter.
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
        if self.num_nodes <= 2**31:  # half the bytes, and what is read most
            object.__setattr__(self, "col", self.col.to(torch.int32))

    def _check_nodes(self) -> None:
        n = self.num_nodes
        if isinstance(self.x, Tensor):
            check.tensor("x", self.x, check.ROW_DTYPES, 2)
            _check_finite(self.x)
        if self.x is not None and self.x.shape[0] != n:
            raise ValueError(
                f"x has {self.x.shape[0]} rows, the graph {n} nodes; give one row per node, in the order of their ids"
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
                        "scores would be measured on nodes that were trained on: remove them from one of the two"
                    )
        if self.y is not None:
            check.tensor("y", self.y, (torch.int8,) if self.y.dim() == 2 else (torch.int64,), 2 if self.y.dim() == 2 else 1)
            check.size("y", self.y, 0, n, "one per node")

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Directed edges: an undirected one counts twice."""
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
        """32 hexadecimal digits that tell this structure from any other: what partitions and tables are filed under."""
        return self._digest[0]

    @property
    def degree(self) -> Tensor:
        """int64[N], the number of in-neighbours."""
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
        """Every edge both ways, and each once."""
        if self.directed is False:
            return self.deduplicate()
        return self._with_edges(csr.symmetrise(self.rowptr, self.col), False)

    def deduplicate(self) -> "Graph":
        """Each edge once."""
        return self._with_edges(csr.deduplicate(self.rowptr, self.col), None if self.directed else False)

    def with_self_loops(self) -> "Graph":
        """Every node its own neighbour, once."""
        return self._with_edges(csr.with_self_loops(self.rowptr, self.col), self.directed)

    def without_self_loops(self) -> "Graph":
        """No node its own neighbour."""
        return self._with_edges(csr.without_self_loops(self.rowptr, self.col), self.directed)

    def reverse(self) -> "Graph":
        """Every edge turned round."""
        if self.directed is False:
            return self
        return self._with_edges(csr.reverse(self.rowptr, self.col), True)

    def permute(self, order: Tensor) -> "Graph":
        """The same graph with its nodes in another order: node i is what node ``order[i]`` was. int64[N]."""
        check.tensor("order", order, (torch.int64,), 1)
        check.size("order", order, 0, self.num_nodes, "one per node")
        check.in_range("order", order, 0, self.num_nodes, "the node ids")
        if not torch.zeros(self.num_nodes, dtype=torch.bool).index_fill_(0, order, True).all():
            raise ValueError(
                f"order names some of the {self.num_nodes} nodes twice and others never; it must be a permutation"
            )
        rowptr, col = csr.permute(self.rowptr, self.col, order)
        x = self.x
        if x is not None:
            x = x.rows(order) if isinstance(x, SparseRows) else gather_rows(x, order)
        nodes = {name: value[order] for name in ("y", *MASKS) if (value := getattr(self, name)) is not None}
        return replace(self, rowptr=rowptr, col=col, x=x, **nodes)

    def adjacency(self, normalise: Normalisation = "gcn") -> Adjacency:
        """The adjacency that a model aggregates with, and its reverse for backward.

        ``gcn``: with self-loops, scaled by ``deg ** -0.5`` on both sides. ``mean``: scaled by ``1 / deg``. ``sum``: as is.
        """
        if normalise not in ("gcn", "mean", "sum"):
            raise ValueError(f"normalise is {normalise!r}; it must be 'gcn', 'mean' or 'sum'")
        graph = self.with_self_loops() if normalise == "gcn" else self
        row_scale = None if normalise == "sum" else csr.degree_scale(graph.rowptr, root=normalise == "gcn")
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
    for begin in range(0, x.shape[0], 65536):  # in pieces: the answer is one bit, its way there should not cost gigabytes
        bad = torch.nonzero(~torch.isfinite(x[begin : begin + 65536]))
        if bad.numel() > 0:
            row, column = int(bad[0, 0]), int(bad[0, 1])
            value = float(x[begin + row, column])
            raise ValueError(
                f"x[{begin + row}, {column}] is {value}; features must be finite: torch.nan_to_num(x) makes them so, "
                "or remove what made them"
            )


def _count_classes(y: Tensor | None) -> int:
    if y is None or y.numel() == 0:
        return 0
    return y.shape[1] if y.dim() == 2 else max(0, int(y.max()) + 1)


def _check_labels(y: Tensor, classes: int, train_mask: Tensor | None) -> None:
    if y.dim() == 2:
        check.size("y", y, 1, classes, "one column per class")
        check.in_range("y", y, -1, 2, "0 or 1, and -1 for not known")
    else:
        check.in_range("y", y, -1, classes, f"{classes} classes, and -1 for not known")
    if train_mask is not None:
        unknown = torch.nonzero(train_mask & (y.amin(1) if y.dim() == 2 else y).lt(0))
        if unknown.numel() > 0:
            raise ValueError(
                f"{unknown.shape[0]} nodes of train_mask, the first of them {int(unknown[0])}, have no label (-1); "
                "remove them from train_mask"
            )
