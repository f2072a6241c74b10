"""GraphSAINT (Zeng et al., 2020): subgraphs of sampled nodes, with weights that make loss and aggregates unbiased."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...config import Config
from ...data.graph import Graph
from ...kernels._hash import mix64
from ...nn.features import NodeRows
from ...nn.model import HistoryGNN
from ...ops import Adjacency, edges_inside
from ...sampling.batch import Batch, Lazy
from ..base import Method
from ..engine import Engine
from .cluster_gcn import subgraph

COUNTED, DRAWN = 0x5A17, 0xD2A3  # make the draws of counting and of training differ
TRIED = 8  # subgraphs that are drawn for their mean size, where none are counted


class SAINT(Method):
    """Subgraphs of the nodes that a sampler draws, with all edges between them.

    Before training, subgraphs are drawn until they hold each node ``coverage`` times on average. With the counts C of nodes
    and edges in K of them, an edge from u to v weighs ``C_v / C_vu`` times as much as in the graph, and the loss of a node
    ``K / (C_v n)`` for n training nodes. So aggregates and loss are those of the whole graph on average.

    With ``coverage`` 0 there are no weights: the subgraph is normalised anew, and its loss is a mean, as in Cluster-GCN. The
    weights of rare edges are large, and so is the variance of what they make unbiased.

    An epoch has as many subgraphs as hold all nodes once. Evaluation is of the whole graph.
    """

    fills = False
    ahead = True

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        if graph is None or graph.train_mask is None or not graph.train_mask.any():
            raise ValueError(f"{config.base} weighs training nodes: make it with a graph that has some")
        super().__init__(config, ptr, device, graph)
        self.weight: Tensor | None = None
        self.num_nodes, self.training = graph.num_nodes, torch.nonzero(graph.train_mask).squeeze(1)
        others = graph.without_self_loops()
        self.rowptr, self.col = others.rowptr, others.col

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """int64[R]: nodes of a subgraph, with repetitions."""

    def bind(self, adj: Adjacency, x: NodeRows) -> NodeRows:
        """Count nodes and edges in subgraphs, and weigh them."""
        self.adj, self.weight = adj, None
        self.degrees = adj.rowptr[1:].cpu().double()  # cumulated
        if self.config.coverage == 0:
            self.size = (
                sum(self._nodes(mix64(self.config.seed + COUNTED) + count).numel() for count in range(TRIED)) // TRIED
            )
            return x
        edges = Adjacency(adj.rowptr.cpu(), adj.col.cpu(), _checked=True)
        position = torch.full((self.num_nodes,), -1, dtype=torch.int32)
        of_node, of_edge = torch.zeros(self.num_nodes), torch.zeros(edges.num_edges)
        count = held = 0
        while held < self.config.coverage * self.num_nodes:
            nodes = self._nodes(mix64(self.config.seed + COUNTED) + count)
            position[nodes] = 0
            _, inside = edges_inside(edges, nodes, position)
            position[nodes] = -1
            of_node[nodes] += 1
            of_edge[inside] += 1
            count, held = count + 1, held + nodes.numel()
        self.size = held // count
        # What was never counted has the weight of what was counted once.
        of_node.clamp_(min=1)
        self.weight = count / (of_node * len(self.training))
        factor = torch.repeat_interleave(of_node, edges.rowptr.diff()).div_(of_edge.clamp_(min=1))
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
        weight = None if self.weight is None else self.weight[nodes]
        return Batch(self.num_nodes, nodes=nodes, closed=True, weight=weight).on(self.device)

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        return subgraph(engine, batch) if self.weight is None else replace(batch, adj=self.adj)

    def cover(self) -> Sequence[Batch]:
        return self.refresh_batches(1, 0).epoch(0)

    def _neighbours(self, nodes: Tensor, generator: torch.Generator) -> Tensor:
        """A uniform neighbour of each node other than itself; the node where it has none."""
        begin, degree = self.rowptr[nodes], self.rowptr[nodes + 1] - self.rowptr[nodes]
        drawn = (torch.rand(len(nodes), generator=generator, dtype=torch.float64) * degree).long()
        found, some = nodes.clone(), degree > 0
        found[some] = self.col[(begin + drawn)[some]].long()
        return found


class NodeSAINT(SAINT):
    """``subgraph_nodes`` draws of nodes with replacement, by degree; the self-loops of the normalisation count."""

    def sample(self, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(self.config.subgraph_nodes, generator=generator, dtype=torch.float64) * self.degrees[-1]
        return torch.searchsorted(self.degrees, drawn, right=True)


class EdgeSAINT(SAINT):
    """``subgraph_nodes`` draws of an edge: each with probability ``1 / degree`` of one end, plus that of the other.

    A uniform node and a uniform neighbour of it are such an edge. In a directed graph they are an edge that is drawn by the
    in-degree of its target alone. A node without neighbours is drawn by itself.
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
