"""GNNAutoScale's training as its code, PyGAS, does it, out of plain torch parts: what whole epochs are compared with.

A batch's rows of the adjacency are cut out and relabelled, features of its rows and of their halo are copied, halo rows of
hidden layers are pulled from the tables and concatenated. Where torch knows a faster way to the same result than the one
that PyGAS takes, the faster one is taken here: vectorised relabelling instead of one thread with a hash map, whole ranges
instead of rows, 32-bit columns, one map for all batches, the faster of torch's sparse products on this machine.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from rest_triton.data.graph import Graph
from rest_triton.sampling.batch import Batch, ClusterBatches

PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": torch.matmul,  # MKL's
    "reduce": lambda matrix, x: torch.sparse.mm(matrix, x, "sum"),  # torch's own
}


class Bipartite:
    """A batch's rows of the adjacency: rows are those of the batch, columns those of the batch and then those of its halo.

    ``adj @ x`` has a gradient for x.

    Args:
        rowptr: int32[R+1]. col: int32[E]. value: float32[E]. columns: how many there are. product: one of ``PRODUCTS``.
        symmetric: whether the matrix is square and its own transpose.
    """

    def __init__(
        self, rowptr: Tensor, col: Tensor, value: Tensor, columns: int, product: str, symmetric: bool = False
    ) -> None:
        self.rows, self.columns, self.product = rowptr.numel() - 1, columns, PRODUCTS[product]
        self.rowptr, self.col, self.value, self.symmetric = rowptr, col, value, symmetric
        self.matrix = csr(rowptr, col, value, self.rows, columns)

    @cached_property
    def transposed(self) -> Tensor:
        """For backward: made once, and kept for all layers."""
        if self.symmetric:
            return self.matrix
        # 32-bit keys take a radix sort half the passes, and MKL takes no other index without converting it at each call.
        column, order = torch.sort(self.col, stable=True)
        row = torch.repeat_interleave(
            torch.arange(self.rows, dtype=torch.int32), self.rowptr.diff(), output_size=self.col.numel()
        )
        rowptr = torch._convert_indices_from_coo_to_csr(column, self.columns, out_int32=True)
        return csr(rowptr, torch.take(row, order), torch.take(self.value, order), self.columns, self.rows)

    def __matmul__(self, x: Tensor) -> Tensor:
        result: Tensor = _Product.apply(x, self)
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Bipartite) -> Tensor:
        ctx.adj = adj
        return adj.product(adj.matrix, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.product(ctx.adj.transposed, grads[0].contiguous()), None


def csr(rowptr: Tensor, col: Tensor, value: Tensor, rows: int, columns: int) -> Tensor:
    """A matrix for the products, without a check of its indices."""
    return torch.sparse_csr_tensor(rowptr, col, value, size=(rows, columns), check_invariants=False)


def faster(adj: Bipartite, width: int, backward: bool = True) -> str:
    """The product that is faster, there and back."""
    x, grad = torch.rand(adj.columns, width), torch.rand(adj.rows, width)
    times: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    for _ in range(3):
        for name, product in PRODUCTS.items():
            begin = time.perf_counter()
            product(adj.matrix, x)
            if backward:
                product(adj.transposed, grad)
            times[name].append(time.perf_counter() - begin)
    return min(times, key=lambda name: min(times[name]))


def push(table: Tensor, ranges: Sequence[tuple[int, int]], rows: Tensor) -> None:
    """Write rows into these ranges of a table."""
    at = 0
    for begin, end in ranges:
        table[begin:end] = rows[at : at + end - begin]
        at += end - begin


@dataclass
class Subgraph:
    """What a step needs of the graph.

    Args:
        ranges: of the batch's rows. halo: int64[H], ascending. adj: rows of the batch, columns of batch and halo.
        x: features of batch and halo, float32 [R + H, D]. y: labels of the batch. train: bool[R], the training nodes.
    """

    ranges: tuple[tuple[int, int], ...]
    halo: Tensor
    adj: Bipartite
    x: Tensor
    y: Tensor
    train: Tensor


class Subgraphs:
    """Cuts batches out of a graph that is normalised once, as a whole; values are kept with the edges."""

    def __init__(self, graph: Graph) -> None:
        assert isinstance(graph.x, Tensor) and graph.y is not None and graph.train_mask is not None
        self.x, self.y, self.train_mask = graph.x.float(), graph.y, graph.train_mask
        adj = graph.adjacency("gcn")
        assert adj.row_scale is not None and adj.col_scale is not None
        self.rowptr, self.col = adj.rowptr, adj.col.long()  # torch indexes by int64 only: others are converted each time
        self.value = torch.repeat_interleave(adj.row_scale, adj.rowptr.diff()).mul_(torch.take(adj.col_scale, self.col))
        self.local = torch.zeros(graph.num_nodes, dtype=torch.int32)
        self.outside = torch.zeros(graph.num_nodes, dtype=torch.bool)  # False again after each cut

    def cut(self, batch: Batch, product: str) -> Subgraph:
        assert batch.ranges is not None
        # Rows of a range lie side by side, and so do their edges: views, where PyGAS goes from row to row.
        edges = [slice(int(self.rowptr[begin]), int(self.rowptr[end])) for begin, end in batch.ranges]
        columns = [self.col[piece] for piece in edges]
        halo = self.outside_of([slice(begin, end) for begin, end in batch.ranges], columns)
        n_id = torch.cat([batch.rows, halo])
        # What earlier batches left in the map is not read: every column is of the batch or of its halo.
        self.local.index_copy_(0, n_id, torch.arange(n_id.numel(), dtype=torch.int32))
        col = torch.empty(sum(c.numel() for c in columns), dtype=torch.int32)
        assert col.numel() < 2**31
        rowptr = torch.zeros(len(batch) + 1, dtype=torch.int32)
        row = edge = 0
        for (begin, end), piece, column in zip(batch.ranges, edges, columns, strict=True):
            # take works on all threads, index_select of a vector on one.
            torch.take(self.local, column, out=col[edge : edge + column.numel()])
            rowptr[row + 1 : row + 1 + end - begin] = self.rowptr[begin + 1 : end + 1] - (piece.start - edge)
            row, edge = row + end - begin, edge + column.numel()
        value = self.value[edges[0]] if len(edges) == 1 else torch.cat([self.value[piece] for piece in edges])
        return Subgraph(
            ranges=batch.ranges,
            halo=halo,
            adj=Bipartite(rowptr, col, value, n_id.numel(), product),
            x=self.x.index_select(0, n_id),
            y=batch.take(self.y),
            train=batch.take(self.train_mask),
        )

    def outside_of(self, inside: Sequence[slice | Tensor], columns: Sequence[Tensor]) -> Tensor:
        """int64[H], ascending: the nodes in ``columns`` that are not inside.

        They are marked in a map of bytes and read off it: no sort.
        """
        for column in columns:
            self.outside.index_fill_(0, column, True)
        for nodes in inside:
            self.outside[nodes] = False
        found = torch.nonzero(self.outside).view(-1)
        self.outside.index_fill_(0, found, False)
        return found

    def edges_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(int64[R+1], int64[E]): row pointers of any rows, and their edges: places in ``col`` and ``value``."""
        begin = torch.take(self.rowptr, rows)
        degree = torch.take(self.rowptr, rows + 1) - begin
        rowptr = F.pad(degree.cumsum(0), (1, 0))
        edges = int(rowptr[-1])
        first = torch.repeat_interleave(begin - rowptr[:-1], degree, output_size=edges)
        return rowptr, first.add_(torch.arange(edges))


class PyGAS:
    """Trains a model of :mod:`bench.pygas_models` on batches of clusters.

    ``cuts`` is the class that cuts out batches.

    Args:
        graph: with clusters side by side (``graph.permute(partition.order)``). ptr: int64[K+1], their bounds.
        batch_size: clusters in a batch.
        model: called with features, adjacency and a function that pushes and pulls; ``widths`` are those of its tables.
        lr: of Adam. seed: of the order of batches; dropout uses torch's own generator.
        product: "matmul" or "reduce"; None times both on one batch and takes the faster.

    Example::

        trainer = PyGAS(graph, ptr, 5, GCN(graph.num_features, 256, graph.num_classes, 3, dropout=0.5), lr=0.01, seed=0)
        trainer.fill()
        losses = trainer.epoch(0)
    """

    cuts: type[Subgraphs] = Subgraphs

    def __init__(
        self, graph: Graph, ptr: Tensor, batch_size: int, model: Module, lr: float, seed: int = 0, product: str | None = None
    ) -> None:
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        self.subgraphs, self.batches = self.cuts(graph), ClusterBatches(ptr, batch_size, seed)
        self.model = model
        widths: Any = model.widths
        self.histories = [torch.zeros(graph.num_nodes, width) for width in widths]
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
        if product is None:
            product = faster(self.subgraphs.cut(self.batches.epoch(0)[0], "matmul").adj, max(widths, default=1))
        self.product = product

    def subgraph(self, batch: Batch) -> Subgraph:
        return self.subgraphs.cut(batch, self.product)

    def logits(self, subgraph: Subgraph) -> Tensor:
        """[R, classes]; the tables are read and written on the way."""
        logits: Tensor = self.model(subgraph.x, subgraph.adj, partial(self._push_and_pull, subgraph))
        return logits

    def _push_and_pull(self, subgraph: Subgraph, layer: int, x: Tensor) -> Tensor:
        """[R + H, D]: the rows of the batch, written into the table, and below them those of its halo, read from it."""
        history = self.histories[layer]
        push(history, subgraph.ranges, x.detach())
        return torch.cat([x, history.index_select(0, subgraph.halo)])

    @torch.no_grad()
    def fill(self) -> None:
        """Write into all tables what the present weights give, without dropout and with running statistics."""
        training = self.model.training
        self.model.eval()
        # The first layer reads features only: after n passes, n tables are exact.
        for _ in self.histories:
            for batch in self.batches.epoch(0):
                if len(batch) > 0:
                    self.logits(self.subgraph(batch))
        self.model.train(training)

    def epoch(self, number: int) -> list[float]:
        """One step for each batch that has training nodes; the losses."""
        self.model.train()
        chosen = (b for b in self.batches.epoch(number) if bool(b.take(self.subgraphs.train_mask).any()))
        return [self.step(self.subgraph(batch)) for batch in chosen]

    def step(self, subgraph: Subgraph) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.logits(subgraph)[subgraph.train], subgraph.y[subgraph.train])
        loss.backward()
        self.optimizer.step()
        return loss.item()
