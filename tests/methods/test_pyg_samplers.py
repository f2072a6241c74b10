"""What our samplers draw, against DGL's NeighborSampler and PyG's NeighborLoader and GraphSAINT samplers.

They need torch-sparse, so they run in an environment of their own. CONTRIBUTING.md says how to make it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.graph import Graph
from rest_triton.methods.baselines.saint import SAINT
from rest_triton.methods.registry import method_for
from rest_triton.sampling.batch import PositionMaps
from rest_triton.sampling.sample import fields

PYTHON = os.environ.get("REST_TRITON_PEERS")
needs_peers = pytest.mark.skipif(
    PYTHON is None, reason="REST_TRITON_PEERS does not name the Python of an environment with PyG's samplers"
)
NODES, SEEDS, DRAWS = 60, [3, 11, 19, 20, 42, 57], 4000
SIZES = {"node": 25, "edge": 12, "walk": 8}


def graph() -> Graph:
    """Connected, of uneven degrees; all nodes are training nodes."""
    g = torch.Generator().manual_seed(0)
    ring = torch.stack([torch.arange(NODES), torch.arange(1, NODES + 1) % NODES])
    some = (NODES * torch.rand(2, 150, generator=g) ** 2).long()
    mask = torch.ones(NODES, dtype=torch.bool)
    edges = torch.cat([ring, some[:, some[0] != some[1]]], 1)
    y = torch.zeros(NODES, dtype=torch.int64)
    return Graph.from_edges(edges, NODES, symmetrise=True, deduplicate=True, x=torch.ones(NODES, 1), y=y, train_mask=mask)


def pygs(folder: Path, rowptr: Tensor, col: Tensor, **options: Any) -> Tensor:
    """What PyG has drawn how often."""
    assert PYTHON is not None
    np.save(folder / "rowptr.npy", rowptr.numpy())
    np.save(folder / "col.npy", col.numpy())
    (folder / "options.json").write_text(json.dumps(options))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program = Path(__file__).with_name("pyg_draws.py")
    done = subprocess.run([PYTHON, str(program), str(folder)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(folder / "counts.npy"))


def same(ours: Tensor, theirs: Tensor, draws: int) -> bool:
    """Whether two counts of the same number of draws are of the same probabilities.

    The difference of an entry's two frequencies has the standard error ``sqrt(2 p (1 - p) / draws)``. In these units, the
    root mean square of all entries that vary is 1 and less than 1.25, and the largest is less than 5.
    """
    p = (ours + theirs).double() / (2 * draws)
    varies = (p > 0) & (p < 1)
    assert int(varies.sum()) >= 100 and ours.shape == theirs.shape
    z = (ours - theirs).double()[varies] / draws / (2 * p * (1 - p) / draws)[varies].sqrt()
    return float(z.square().mean().sqrt()) < 1.25 and float(z.abs().max()) < 5


def our_neighbours(fanouts: list[int], draws: int) -> Tensor:
    adj, seeds = graph().adjacency("gcn"), torch.tensor(SEEDS)
    maps, counts = PositionMaps(NODES), torch.zeros(2, NODES, NODES)
    for seed in range(draws):
        made = fields(adj, seeds, fanouts, maps, seed)
        assert made.samples is not None and made.counts is not None
        for hop, sample in enumerate(reversed(made.samples)):
            assert sample is not None
            source, rows = sample.by_node.col.long(), made.rows[: len(sample.by_node.rowptr) - 1]
            target = torch.repeat_interleave(torch.arange(len(rows)), sample.by_node.rowptr.diff())
            # In lower layers our targets sample anew, as DGL's do. PyG's sample once.
            new = (target >= len(SEEDS)) | (hop == 0)
            one = torch.ones(()).expand(int(new.sum()))
            counts[hop].index_put_((rows[target[new]], source[new]), one, accumulate=True)
    return counts


@needs_peers
def test_sampled_neighbours_are_those_of_dgl(tmp_path: Path) -> None:
    """Of targets, and of the nodes that they sample.

    PyG's NeighborLoader over torch-sparse 0.6.18 is no reference: its draws without replacement are not uniform. Draw j of
    Floyd's algorithm is there of the first j neighbours instead of the first j + 1. The comparison sees that.
    """
    adj = graph().adjacency("gcn")
    options: dict[str, Any] = dict(seeds=SEEDS, fanouts=[3, 2], draws=DRAWS)
    ours, theirs = our_neighbours([2, 3], DRAWS), pygs(tmp_path, adj.rowptr, adj.col, sampler="dgl", **options)
    assert same(ours, theirs, DRAWS) and float(ours.sum(2).max()) == float(theirs.sum(2).max()) == 3 * DRAWS
    assert not same(ours, pygs(tmp_path, adj.rowptr, adj.col, sampler="neighbours", replace=False, **options), DRAWS)


@needs_peers
def test_all_neighbours_are_those_of_neighbor_loader(tmp_path: Path) -> None:
    """Exactly: a batch that samples nothing away is determined."""
    adj = graph().adjacency("gcn")
    theirs = pygs(tmp_path, adj.rowptr, adj.col, sampler="neighbours", seeds=SEEDS, fanouts=[-1, -1], draws=1, replace=False)
    assert torch.equal(our_neighbours([NODES, NODES], 1), theirs)


def our_subgraphs(name: str, draws: int) -> Tensor:
    of = graph()
    config = Config(
        dataset="small", method=f"saint-{name}", subgraph_nodes=SIZES[name], walk_length=3, coverage=1.0, model="gcn"
    )
    method = method_for(config, torch.tensor([0, NODES]), "cpu", of)
    assert isinstance(method, SAINT) and isinstance(of.x, Tensor)
    method.bind(of.adjacency("gcn"), of.x)
    found = torch.zeros(draws, NODES)
    for seed in range(draws):
        found[seed, method._nodes(seed)] = 1
    return found.T @ found


@needs_peers
@pytest.mark.parametrize("name", SIZES)
def test_subgraphs_are_those_of_graph_saint(tmp_path: Path, name: str) -> None:
    """How often they hold each node, and each pair of nodes.

    A node is drawn by its degree with the self-loop of the normalisation; edges and walks use no self-loops. Our edges are
    drawn by 1 / degree of their ends, as in the paper. PyG 2.6 inverts twice, so by the degrees; corrected, it agrees.
    """
    of, ours = graph(), our_subgraphs(name, DRAWS)
    edges = of.adjacency("gcn") if name == "node" else of
    options: dict[str, Any] = dict(sampler=name, size=SIZES[name], walk_length=3, draws=DRAWS)
    theirs = pygs(tmp_path, edges.rowptr, edges.col, inverse=name == "edge", **options)
    assert same(ours.triu(), theirs.triu(), DRAWS)
    if name == "edge":
        assert not same(ours.triu(), pygs(tmp_path, edges.rowptr, edges.col, **options).triu(), DRAWS)
    one_less = our_subgraphs(name, DRAWS).roll(1, 0).roll(1, 1)  # other nodes
    assert not same(one_less.triu(), theirs.triu(), DRAWS)
