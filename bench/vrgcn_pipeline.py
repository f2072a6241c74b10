"""VR-GCN's training of a GCN as its authors code it, out of plain torch parts: what epochs of ``vrgcn`` are compared with.

Each layer samples neighbours, relabels them, pulls histories, and computes two sparse products. One is over the sample, of
rows without their histories; the other is over all neighbours, of histories. The features' aggregate is computed once.

Where torch knows a faster way to the same result than the authors take, it is taken:

- All rows draw at once instead of one after the other.
- There is one product over the sample instead of two.
- Histories of all neighbours are multiplied where they are in the table, without relabelling and copying them.
- Each of the two products is the faster one that torch has.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.data.graph import Graph

from .pygas import PRODUCTS, Bipartite, Subgraphs, csr, faster
from .pygas_models import GCN


@dataclass
class Block:
    """What a layer reads.

    Args:
        nodes: int64[S], the rows of its input; the rows that it computes come first.
        sampled: rows that it computes, columns of its input. everything: csr, the same rows, a column for each node.
    """

    nodes: Tensor
    sampled: Bipartite
    everything: Tensor


class VRGCN:
    """Trains PyGAS's GCN on batches of training nodes.

    Args:
        graph: of the training. size: training nodes in a batch. model: with at least two layers. lr: of Adam.
        fanout: the most neighbours that a row samples. seed: of batches and samples; dropout uses torch's own generator.
        products: those over sampled and all neighbours, "matmul" or "reduce"; None times both and takes the faster.

    Example::

        trainer = VRGCN(graph, 1024, GCN(graph.num_features, 256, graph.num_classes, 3, dropout=0.5), lr=0.01, fanout=10)
        trainer.fill()
        losses = trainer.epoch(0)
    """

    def __init__(
        self, graph: Graph, size: int, model: GCN, lr: float, fanout: int, seed: int = 0,
        products: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        self.graph, self.size, self.model, self.fanout = Subgraphs(graph), size, model, fanout
        self.generator = torch.Generator().manual_seed(seed)
        self.training = torch.nonzero(self.graph.train_mask).squeeze(1)
        self.histories = [torch.zeros(graph.num_nodes, width) for width in model.widths]
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
        self.narrow = self.graph.col.int()
        self.whole = csr(self.graph.rowptr.int(), self.narrow, self.graph.value, graph.num_nodes, graph.num_nodes)
        self.aggregated = self.whole @ self.graph.x
        self.products = ("matmul", "matmul")
        self.products = self._faster(max(model.widths)) if products is None else products

    def _faster(self, width: int) -> tuple[str, str]:
        block = self.cut(self.training[: self.size])[0]
        parts = block.everything.crow_indices(), block.everything.col_indices(), block.everything.values()
        everything = Bipartite(*parts, block.everything.shape[1], "matmul")
        return faster(block.sampled, width), faster(everything, width, backward=False)

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(int64[R+1], int64[K]): row pointers of a uniform sample without replacement, and its edges of the graph.

        Floyd's algorithm: draw i is of the first ``degree - fanout + i + 1`` neighbours, the last of them if it was drawn.
        """
        begin = torch.take(self.graph.rowptr, rows)
        degree = torch.take(self.graph.rowptr, rows + 1) - begin
        draws = torch.arange(self.fanout)
        chosen = draws.expand(len(rows), self.fanout).clone()
        many = torch.nonzero(degree > self.fanout).squeeze(1)
        last = degree.index_select(0, many) - self.fanout + draws.unsqueeze(1)
        drawn = torch.rand(last.shape, generator=self.generator).mul_(last + 1).long().minimum(last)
        for i in range(1, self.fanout if many.numel() else 0):
            drawn[i] = torch.where((drawn[:i] == drawn[i]).any(0), last[i], drawn[i])
        chosen.index_copy_(0, many, drawn.t())
        rowptr = F.pad(degree.clamp(max=self.fanout).cumsum(0), (1, 0))
        return rowptr, chosen.add_(begin.unsqueeze(1))[draws < degree.unsqueeze(1)]

    def cut(self, targets: Tensor) -> list[Block]:
        """The blocks of all layers but the first, which reads the aggregate of the features."""
        rows, blocks = targets, list[Block]()
        for _ in self.histories:
            blocks.insert(0, self._block(rows))
            rows = blocks[0].nodes
        return blocks

    def _block(self, rows: Tensor) -> Block:
        graph, count = self.graph, len(rows)
        rowptr, edge = self.draw(rows)
        neighbour = torch.take(graph.col, edge)
        nodes = torch.cat([rows, graph.outside_of([rows], [neighbour])])
        graph.local.index_copy_(0, nodes, torch.arange(nodes.numel(), dtype=torch.int32))
        whole, edges = graph.edges_of(rows)
        taken = rowptr.diff()
        scale = torch.repeat_interleave(whole.diff() / taken, taken, output_size=edge.numel())
        value = torch.take(graph.value, edge).mul_(scale)
        sampled = Bipartite(rowptr.int(), torch.take(graph.local, neighbour), value, nodes.numel(), self.products[0])
        everything = csr(
            whole.int(), torch.take(self.narrow, edges), torch.take(graph.value, edges), count, graph.x.shape[0]
        )
        return Block(nodes, sampled, everything)

    def logits(self, blocks: Sequence[Block]) -> Tensor:
        """[T, classes]. The tables are read, and written at the end."""
        model, computed = self.model, list[Tensor]()
        product = PRODUCTS[self.products[1]]
        z = self.aggregated.index_select(0, blocks[0].nodes)
        for layer, (block, table) in enumerate(zip(blocks, self.histories, strict=True)):
            h = model.activate(layer, self._dense(layer, z))
            computed.append(h.detach())
            x = F.dropout(h, model.dropout, model.training)
            z = block.sampled @ (x - table.index_select(0, block.nodes))
            with torch.no_grad():
                z.add_(product(block.everything, table))
        result = self._dense(len(blocks), z)
        for block, table, rows in zip(blocks, self.histories, computed, strict=True):
            table.index_copy_(0, block.nodes, rows)
        return result

    def _dense(self, layer: int, z: Tensor) -> Tensor:
        conv: Any = self.model.convs[layer]
        return F.linear(z, conv.lin.weight, conv.bias)

    @torch.no_grad()
    def fill(self) -> None:
        """Write into all tables what the present weights give, without dropout and with running statistics."""
        training = self.model.training
        self.model.eval()
        z = self.aggregated
        for layer, table in enumerate(self.histories):
            table.copy_(self.model.activate(layer, self._dense(layer, z)))
            z = self.whole @ table
        self.model.train(training)

    def epoch(self, number: int) -> list[float]:
        """One step for each batch; the losses. number: ignored, each epoch draws anew."""
        self.model.train()
        order = torch.randperm(len(self.training), generator=self.generator)
        return [self.step(targets) for targets in self.training[order].split(self.size)]

    def step(self, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.logits(self.cut(targets)), self.graph.y[targets])
        loss.backward()
        self.optimizer.step()
        return loss.item()
