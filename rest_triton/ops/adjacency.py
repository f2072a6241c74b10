"""Adjacency: the CSR that the ops read, with normalisation by node and the reverse for backward."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..kernels._hubs import HUB_DEGREE, HUB_SEGMENT
from . import backend, check


@dataclass(frozen=True, eq=False)
class Adjacency:
    r"""The in-neighbours of every node, with weights :math:`w_{gc} = r_g \, c_c \, e_k`.

    Args:
        rowptr: int64[N+1]. Node g aggregates over the edges ``rowptr[g] .. rowptr[g+1]``.
        col: int32 or int64 [E], the neighbour at the other end of each edge.
        row_scale: float32[N], r; col_scale: float32[N], c. Both ``deg ** -0.5`` give the GCN normalisation without a
            stored weight per edge.
        edge_weight: float32[E], e, differentiable.
        reverse: the same edges listed by their other end, for the gradient of x. Built by :meth:`with_reverse` (any
            graph) or :meth:`undirected` (free).
        edge_id: int32 or int64 [E], distinct. Edge k has weight ``edge_weight[edge_id[k]]``, and dropout hashes
            ``edge_id[k]``. None: k.
        columns: the number of nodes at the other ends, where it is not N: rows of a sample read other rows than they
            compute. ``col`` and ``col_scale`` belong to these, and ``reverse`` has as many rows.

    Example::

        adj = Adjacency(rowptr, col, row_scale=deg**-0.5, col_scale=deg**-0.5).undirected()
    """

    rowptr: Tensor
    col: Tensor
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None
    edge_weight: Tensor | None = None
    reverse: "Adjacency | None" = None
    edge_id: Tensor | None = None
    columns: int | None = None
    _checked: bool = field(default=False, repr=False)

    #: (node ids, first segment of each, number of segments) of the rows that a GPU splits; empty on a CPU.
    hubs: tuple[Tensor | None, Tensor | None, int] = field(init=False, repr=False, default=(None, None, 0))

    def __post_init__(self) -> None:
        if not self._checked:
            self._check()
        object.__setattr__(self, "_checked", True)
        if self.columns is None and backend.splits_hubs(self.rowptr.device):
            object.__setattr__(self, "hubs", self._find_hubs())

    def _check(self) -> None:
        check.tensor("rowptr", self.rowptr, (torch.int64,), 1)
        check.tensor("col", self.col, check.INDEX_DTYPES, 1)
        check.device("col", self.col, self.rowptr.device)
        n, edges = self.num_nodes, self.col.numel()
        for name, value, length in (
            ("row_scale", self.row_scale, n),
            ("col_scale", self.col_scale, self.num_columns),
            ("edge_weight", self.edge_weight, edges),
            ("edge_id", self.edge_id, edges),
        ):
            if value is None:
                continue
            dtypes = check.INDEX_DTYPES if name == "edge_id" else (torch.float32, torch.float64)
            check.tensor(name, value, dtypes, 1)
            check.size(name, value, 0, length, "one per edge" if length == edges else "one per node")
            check.device(name, value, self.rowptr.device)
        if self.reverse is not None:
            theirs = self.reverse.num_nodes, self.reverse.num_columns, self.reverse.num_edges
            if theirs != (self.num_columns, n, edges):
                raise ValueError(
                    f"reverse has {theirs[0]} nodes and {theirs[2]} edges, this graph {self.num_columns} and {edges}; "
                    "build it with with_reverse()"
                )
            check.device("reverse.rowptr", self.reverse.rowptr, self.rowptr.device)
        check.no_gradient("row_scale", self.row_scale, "only edge_weight is differentiated")
        check.no_gradient("col_scale", self.col_scale, "only edge_weight is differentiated")
        # Read all values: this runs once per graph, and a bad index would crash a kernel.
        check.row_pointers("rowptr", self.rowptr, edges, "edges")
        check.in_range("col", self.col, 0, self.num_columns, "the node ids")
        if self.edge_id is not None:
            check.in_range("edge_id", self.edge_id, 0, edges, "the edges")

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_columns(self) -> int:
        """The number of nodes at the other ends of edges."""
        return self.num_nodes if self.columns is None else self.columns

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    def _find_hubs(self) -> tuple[Tensor | None, Tensor | None, int]:
        """The value of ``hubs``.

        It is computed once per graph, not per batch: a launch needs the number of segments on the host. Reading it waits
        for the device and cannot be compiled.
        """
        degree = self.rowptr.diff()
        node = torch.nonzero(degree > HUB_DEGREE).squeeze(1)
        if node.numel() == 0:
            return None, None, 0
        segments = (degree[node] + HUB_SEGMENT - 1) // HUB_SEGMENT
        first = torch.nn.functional.pad(segments.cumsum(0), (1, 0))
        return node, first, int(first[-1])

    def to(self, device: torch.device | str) -> "Adjacency":
        """The same graph, with its reverse, on another device."""
        if self.rowptr.device == torch.device(device):
            return self
        copies: dict[int, Tensor] = {}  # by the original: an undirected graph shares its arrays with its reverse

        def moved(adj: "Adjacency") -> "Adjacency":
            names = ("rowptr", "col", "row_scale", "col_scale", "edge_weight", "edge_id")
            tensors: dict[str, Any] = {name: tensor for name in names if (tensor := getattr(adj, name)) is not None}
            for tensor in tensors.values():
                if id(tensor) not in copies:
                    copies[id(tensor)] = tensor.to(device)
            reverse = None if adj.reverse is None else moved(adj.reverse)
            fields: dict[str, Any] = {name: copies[id(tensor)] for name, tensor in tensors.items()}
            return replace(adj, reverse=reverse, **fields)

        return moved(self)

    def undirected(self) -> "Adjacency":
        """The same graph with itself as reverse. Every edge must exist in both directions. Arrays are shared.

        The reverse has no edge ids. Edge dropout and edge weights need them: use :meth:`with_reverse` for these.
        """
        check.same_nodes("undirected", self.num_nodes, self.num_columns)
        if self.edge_weight is not None or self.edge_id is not None:
            raise ValueError("undirected() shares the arrays, but edge weights are per direction; use with_reverse()")
        reverse = replace(self, row_scale=self.col_scale, col_scale=self.row_scale, reverse=None)
        return replace(self, reverse=reverse)

    def with_reverse(self) -> "Adjacency":
        """The same graph with its reverse: the transposed CSR and the id of each of its edges.

        It takes 8 to 16 bytes per edge, and is computed on the CPU in linear time.
        """
        check.same_nodes("with_reverse", self.num_nodes, self.num_columns)
        rowptr, col, names = reverse_with_names(self.rowptr.cpu(), self.col.cpu())
        device = self.rowptr.device
        names = names.to(device)
        reverse = Adjacency(
            rowptr=rowptr.to(device),
            col=col.to(device, self.col.dtype),
            row_scale=self.col_scale,
            col_scale=self.row_scale,
            edge_weight=self.edge_weight,
            edge_id=names if self.edge_id is None else self.edge_id[names.long()],
            _checked=True,
        )
        return replace(self, reverse=reverse)

    def __repr__(self) -> str:
        parts = [f"{self.num_nodes:,} nodes, {self.num_edges:,} edges"]
        parts += [
            name
            for name in ("row_scale", "col_scale", "edge_weight", "edge_id", "reverse")
            if getattr(self, name) is not None
        ]
        return f"Adjacency({', '.join(parts)}, on {self.rowptr.device})"


def reverse_with_names(rowptr: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reverse every edge: (rowptr, col, edge ids int32 or int64 [E]), where ids are positions in the given ``col``."""
    from ..kernels.cpu import buckets  # imports Numba, which the ops import on first use only

    rowptr, col, names = buckets.edges_to_csr(
        None, col.contiguous(), rowptr.numel() - 1, rowptr=rowptr.contiguous(), sort=False, names=True
    )
    assert names is not None
    return rowptr, col, names
