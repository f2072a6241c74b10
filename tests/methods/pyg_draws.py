"""What PyG's samplers draw, for test_pyg_samplers.py. It runs in an environment of its own: PYTHON pyg_draws.py FOLDER.

``options.json`` names the sampler. ``counts.npy`` is how often each was drawn: [hop, target, source] by NeighborLoader,
[node, node] by GraphSAINT, both in a subgraph.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import loader
from torch_geometric.data import Data


class Inverse:
    """The counts of a storage, inverted. PyG 2.6's edge sampler inverts 1 / degree again; with this it does not."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def colcount(self) -> Tensor:
        return 1.0 / self.storage.colcount()

    def rowcount(self) -> Tensor:
        return 1.0 / self.storage.rowcount()


def neighbours(data: Data, options: dict[str, Any]) -> Tensor:
    seeds, nodes = torch.tensor(options["seeds"]), data.num_nodes
    counts = torch.zeros(2, nodes, nodes)
    for batch in loader.NeighborLoader(
        data,
        options["fanouts"],
        input_nodes=seeds.repeat(options["draws"]),
        batch_size=len(seeds),
        replace=options["replace"],
    ):
        source, target = batch.edge_index
        counts.index_put_(
            ((target >= len(seeds)).long(), batch.n_id[target], batch.n_id[source]), torch.ones(()), accumulate=True
        )
    return counts


def dgl_neighbours(data: Data, options: dict[str, Any]) -> Tensor:
    """By DGL's NeighborSampler."""
    import dgl

    seeds, nodes = torch.tensor(options["seeds"]), data.num_nodes
    graph, counts = dgl.graph((data.edge_index[0], data.edge_index[1]), num_nodes=nodes), torch.zeros(2, nodes, nodes)
    sampler = dgl.dataloading.NeighborSampler(options["fanouts"][::-1])
    for _ in range(options["draws"]):
        for hop, block in enumerate(reversed(sampler.sample_blocks(graph, seeds)[2])):
            source, target = block.edges()
            new = (target >= len(seeds)) | (hop == 0)
            ends = block.dstdata[dgl.NID][target[new]], block.srcdata[dgl.NID][source[new]]
            counts[hop].index_put_(ends, torch.ones(()), accumulate=True)
    return counts


def subgraphs(data: Data, options: dict[str, Any]) -> Tensor:
    name, nodes, draws = options["sampler"], data.num_nodes, options["draws"]
    kind = {"node": "GraphSAINTNodeSampler", "edge": "GraphSAINTEdgeSampler", "walk": "GraphSAINTRandomWalkSampler"}[name]
    walk = dict(walk_length=options["walk_length"]) if name == "walk" else {}
    data.place = torch.arange(nodes)
    sampler = getattr(loader, kind)(data, batch_size=options["size"], num_steps=draws, log=False, **walk)
    if options.get("inverse"):
        sampler.adj.storage = Inverse(sampler.adj.storage)
    found = torch.zeros(draws, nodes)
    for number, batch in enumerate(sampler):
        found[number, batch.place] = 1
    return found.T @ found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    options = json.loads((folder / "options.json").read_text())
    rowptr, col = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("rowptr", "col"))
    row = torch.repeat_interleave(torch.arange(len(rowptr) - 1), rowptr.diff())
    data = Data(edge_index=torch.stack([col.long(), row]), num_nodes=len(rowptr) - 1)
    torch.manual_seed(0)
    draw = {"neighbours": neighbours, "dgl": dgl_neighbours}.get(options["sampler"], subgraphs)
    np.save(folder / "counts.npy", draw(data, options).numpy())
