"""GraphSAINT (Zeng et al., 2020): subgraphs of sampled nodes, with weights that make loss and aggregates unbiased."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..config import Config
from ..data.graph import Graph
from ..kernels._hash import mix64
from ..nn.model import HistoryGNN
from ..ops import Adjacency, edges_inside
from ..sampling.batch import Batch, Lazy
from .base import Method
from .engine import Engine

COUNTED, DRAWN = 0x5A17, 0xD2A3  # make the draws of counting and of training differ


class SAINT(Method):
    """Subgraphs of the nodes that a sampler draws, with all edges between them.

    Before training, subgraphs are drawn until they hold each node ``coverage`` times on average. With the counts C of nodes
    and edges in K of them, an edge from u to v weighs ``C_v / C_vu`` times as much as in the graph, and the loss of a node
    ``K / (C_v n)`` for n training nodes. So aggregates and loss are those of the whole graph on average.

    An epoch has as many subgraphs as hold all nodes once. Evaluation is of the whole graph.
    """

    fills = False

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        if graph is None or graph.train_mask is None:
            raise ValueError(f"{config.base} weighs training nodes: make it with a graph that has a training mask")
        super().__init__(config, ptr, device, graph)
        self.num_nodes, self.training = graph.num_nodes, torch.nonzero(graph.train_mask).squeeze(1)

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """int64[R]: nodes of a subgraph, with repetitions."""

    def bind(self, adj: Adjacency, x: Tensor) -> Tensor:
        """Count nodes and edges in subgraphs, and weigh them."""
        self.rowptr, self.col = adj.rowptr.cpu(), adj.col.cpu()
        row = torch.repeat_interleave(torch.arange(self.num_nodes), self.rowptr.diff())
        self.others = self.rowptr.diff() - torch.bincount(row[row == self.col], minlength=self.num_nodes)
        edges = Adjacency(self.rowptr, self.col, _checked=True)
        position = torch.full((self.num_nodes,), -1, dtype=torch.int32)
        of_node, of_edge = torch.zeros(self.num_nodes), torch.zeros(self.col.numel())
        count = held = 0
        while held < self.config.coverage * self.num_nodes:
            nodes = self._nodes(mix64(self.config.seed + COUNTED) + count)
            position[nodes] = 0
            _, inside = edges_inside(edges, nodes, position)
            position[nodes] = -1
            of_node[nodes] += 1
            of_edge[inside] += 1
            count, held = count + 1, held + nodes.numel()
        self.size = max(1, held // max(1, count))
        # What was never counted has the weight of what was counted once.
        self.weight = count / (of_node.clamp(min=1) * max(1, len(self.training)))
        factor = of_node.clamp(min=1)[row] / of_edge.clamp(min=1)
        self.adj = replace(adj, edge_weight=factor.to(adj.col.device), reverse=None).with_reverse()
        return x

    def _nodes(self, seed: int) -> Tensor:
        return self.sample(torch.Generator().manual_seed(mix64(seed) >> 1)).unique()

    def begin(self, engine: Engine, step: int) -> None:
        """There are no tables."""

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        return {}

    def batches(self, epoch: int) -> Sequence[Batch]:
        count = -(-self.num_nodes // self.size)
        most = self.config.max_steps * self.config.accumulate or count
        seed = mix64(mix64(self.config.seed + DRAWN) + epoch)
        return Lazy(lambda index: self.draw(seed + index), min(count, most))

    def draw(self, seed: int) -> Batch:
        nodes = self._nodes(seed)
        return Batch(self.num_nodes, nodes=nodes, closed=True, weight=self.weight[nodes]).on(self.device)

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        return replace(batch, adj=self.adj)

    def cover(self) -> Sequence[Batch]:
        return self.refresh_batches(1, 0).epoch(0)

    def _neighbours(self, nodes: Tensor, generator: torch.Generator) -> Tensor:
        """A uniform neighbour of each node other than itself; the node where it has none."""
        last = self.rowptr[nodes + 1] - 1
        choices = self.others[nodes]
        drawn = (torch.rand(len(nodes), generator=generator, dtype=torch.float64) * choices).long()
        found = self.col[(self.rowptr[nodes] + drawn).clamp(max=self.col.numel() - 1)].long()
        # The last edge is not drawn where there is a self-loop: it takes the loop's place.
        found = torch.where(found == nodes, self.col[last.clamp(min=0)].long(), found)
        return torch.where(choices > 0, found, nodes)


class NodeSAINT(SAINT):
    """``subgraph_nodes`` draws of nodes with replacement, by degree."""

    def sample(self, generator: torch.Generator) -> Tensor:
        degree = self.rowptr.diff().double().cumsum(0)
        drawn = torch.rand(self.config.subgraph_nodes, generator=generator, dtype=torch.float64) * degree[-1]
        return torch.searchsorted(degree, drawn, right=True).clamp(max=self.num_nodes - 1)


class EdgeSAINT(SAINT):
    """``subgraph_nodes`` draws of an edge: each with probability ``1 / degree`` of one end, plus that of the other.

    A uniform node and a uniform neighbour of it are such an edge.
    """

    def sample(self, generator: torch.Generator) -> Tensor:
        first = torch.randint(self.num_nodes, (self.config.subgraph_nodes,), generator=generator)
        return torch.cat([first, self._neighbours(first, generator)])


class WalkSAINT(SAINT):
    """``subgraph_nodes`` random walks of ``walk_length`` steps from uniform training nodes."""

    def sample(self, generator: torch.Generator) -> Tensor:
        roots = self.training[torch.randint(len(self.training), (self.config.subgraph_nodes,), generator=generator)]
        walks = [roots]
        for _ in range(self.config.walk_length):
            walks.append(self._neighbours(walks[-1], generator))
        return torch.cat(walks)
