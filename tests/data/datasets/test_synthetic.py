"""Synthetic graphs: the shape asked for, reproducible, and a task on which neighbours help."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.data.datasets import synthetic
from rest_triton.data.datasets.synthetic import SHAPES, Shape, generate, parse
from rest_triton.data.graph import Graph
from rest_triton.ops import history_spmm
from rest_triton.utils.errors import UserError


def test_names() -> None:
    assert parse("synthetic:products") == SHAPES["products"]
    tenth = parse("synthetic:products@0.1")
    assert (tenth.nodes, tenth.edges, tenth.features, tenth.classes) == (244_903, 12_371_828, 100, 47)
    assert parse("synthetic:arxiv@2,seed=5,classes=3").seed == 5
    assert parse("synthetic:nodes=1000,edges=5000") == Shape(1000, 5000)
    assert parse("synthetic:nodes=1000,edges=5000,features=8,train=0.1") == Shape(1000, 5000, 8, train=0.1)


BAD = {
    "synthetic:product": r"'synthetic:product' is not a known shape; did you mean 'products'\? known are: arxiv, products",
    "synthetic:": "is not a known shape; known are",
    "synthetic:products@x": "is scaled by 'x'; it must be a positive number, as in synthetic:products@0.1",
    "synthetic:products@-1": "is scaled by '-1'",
    "synthetic:products@inf": "is scaled by 'inf'",
    "synthetic:products,node=3": "has 'node'; did you mean 'nodes'",
    "synthetic:products,nodes=many": "has nodes='many'; it must be a number",
    "synthetic:edges=7": "lacks nodes",
    "synthetic:nodes=7": "lacks edges",
    "synthetic:nodes=1,edges=0": "has 1 nodes; there must be at least 2",
    "synthetic:nodes=10,edges=-2": "has -2 edges",
    "synthetic:nodes=10,edges=80": "has 80 edges among 10 nodes; at most 22",
    "synthetic:nodes=10,edges=8,train=0.9": "has shares train=0.9, val=0.2",
    "synthetic:papers100m@3": "below 2.31 and 2.32 can be drawn",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_names(name: str) -> None:
    with pytest.raises(UserError, match=BAD[name]):
        parse(name)


def test_too_large_for_memory() -> None:
    with pytest.raises(
        UserError, match=r"huge needs .* GiB of memory while it is generated, .* free; use a smaller shape, 0\.\d+ times"
    ):
        generate(Shape(100_000_000, 2_000_000_000, 10_000), "huge")


@pytest.mark.parametrize(
    "shape",
    [Shape(2, 0), Shape(2, 0, classes=5), Shape(50, 300, 3, 2), Shape(1000, 200_000), Shape(30_000, 450_000, 47, 11)],
)
def test_shape(shape: Shape) -> None:
    graph = generate(shape)
    graph = Graph(
        graph.rowptr, graph.col, graph.x, graph.y, graph.train_mask, graph.val_mask, graph.test_mask, directed=False
    )  # all checks
    assert graph.num_nodes == shape.nodes and graph.num_features == shape.features
    assert 0.97 * shape.edges <= graph.num_edges <= 1.01 * shape.edges + 20
    assert graph.without_self_loops().num_edges == graph.num_edges
    assert graph.deduplicate().num_edges == graph.num_edges
    assert graph.y is not None and int(graph.y.max()) < shape.classes
    masks = [m for m in (graph.train_mask, graph.val_mask, graph.test_mask) if m is not None]
    assert int(sum(m.sum() for m in masks)) == shape.nodes
    if shape.nodes > 1000:
        torch.testing.assert_close(
            torch.tensor([m.float().mean() for m in masks]), torch.tensor([0.5, 0.2, 0.3]), rtol=0.05, atol=0
        )


def test_same_on_any_number_of_threads_and_from_the_seed(threads: Callable[[int], None]) -> None:
    shape = Shape(5000, 60_000, 10, 7)
    threads(1)
    one = generate(shape)
    threads(3)
    for other, equal in ((generate(shape), True), (generate(Shape(5000, 60_000, 10, 7, seed=1)), False)):
        for name in ("rowptr", "col", "x", "y", "train_mask"):
            a, b = getattr(one, name), getattr(other, name)
            assert (a.shape == b.shape and torch.equal(a, b)) == equal, name


def test_degrees_follow_a_power_law() -> None:
    """The number of nodes of degree above d falls like d^(1 - 2.5): by 2.8 when d doubles."""
    degree = generate(Shape(50_000, 1_000_000, 1)).degree
    above = [int((degree > d).sum()) for d in (40, 80, 160)]
    assert all(2.0 < a / b < 3.8 for a, b in itertools.pairwise(above)), above
    assert int(degree.max()) > 30 * degree.float().mean()


def accuracy(graph: Graph, h: Tensor) -> float:
    """The test accuracy of a two-layer network on h."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(h.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, graph.num_classes or 0)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    assert graph.y is not None and graph.train_mask is not None and graph.test_mask is not None
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(net(h[graph.train_mask]), graph.y[graph.train_mask]).backward()
        optimizer.step()
    with torch.no_grad():
        return (net(h[graph.test_mask]).argmax(1) == graph.y[graph.test_mask]).float().mean().item()


def test_neighbours_help() -> None:
    graph = generate(parse("synthetic:arxiv@0.1"))
    assert isinstance(graph.x, Tensor) and graph.y is not None
    adj, nodes = graph.adjacency("gcn"), torch.arange(graph.num_nodes)
    h, outside = graph.x, ~nodes.int()
    for _ in range(2):
        h = history_spmm(adj, nodes, outside, None, h)
    mlp, gnn = accuracy(graph, graph.x), accuracy(graph, h)
    commonest = torch.bincount(graph.y).max().item() / graph.num_nodes
    assert commonest < 0.12
    assert 0.2 < mlp < 0.5 and 0.65 < gnn < 0.9 and gnn > mlp + 0.3, (mlp, gnn)
    target = torch.repeat_interleave(nodes, graph.degree)
    assert 0.4 < (graph.y[target] == graph.y[graph.col.long()]).float().mean() < 0.7  # homophily


def test_the_same_name_is_the_same_graph_for_good() -> None:
    """Stored graphs, partitions and results are filed under the name. A change must raise REVISION."""
    assert synthetic.REVISION == 1
    graph = generate(Shape(3000, 200_000, 4, 5))  # with hubs
    assert isinstance(graph.x, Tensor) and graph.y is not None
    assert (graph.fingerprint, int(graph.y.sum())) == ("59adb4642a29e7691e295c2d77e123a3", 3505)
    assert float(graph.x.double().sum()) == pytest.approx(1383.6905, abs=1e-3)


def test_scrambled() -> None:
    """Nodes with close ids are not in one block, so that a partitioner has work to do."""
    graph = generate(Shape(20_000, 200_000, 1))
    target = torch.repeat_interleave(torch.arange(20_000), graph.degree)
    assert ((target - graph.col.long()).abs() < 500).float().mean() < 0.2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the high-water mark of memory from /proc")
def test_memory_while_it_is_made() -> None:
    """``bytes_needed``, which is compared with the free memory, is the measured peak."""
    code = """
import torch
from rest_triton.data.datasets.synthetic import Shape, generate
generate(Shape(1000, 4000))
status = lambda name: int(next(l for l in open("/proc/self/status") if l.startswith(name)).split()[1]) * 1024
for shape in (Shape(400_000, 16_000_000, 5), Shape(400_000, 2_000_000, 150)):
    open("/proc/self/clear_refs", "w").write("5")  # reset the high-water mark
    before = status("VmRSS")
    generate(shape)
    print((status("VmHWM") - before) / shape.bytes_needed)
"""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # freed memory is returned at once
    run = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert all(0.8 < float(share) < 1.05 for share in run.stdout.split()), run.stdout
