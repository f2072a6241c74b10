"""Every partitioner on every kind of graph, and the kernels of the streaming one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.data import metis as metis_worker
from rest_triton.data import partition as module
from rest_triton.data.graph import Graph
from rest_triton.data.partition import PARTITIONERS, Partition, partition
from rest_triton.kernels.cpu import partition as kernels
from rest_triton.utils.errors import UserError

from ..clusters import assert_good, cluster_of, cut_of, from_kind, planted, same
from ..ops import graphs


@pytest.mark.parametrize("num_parts", [1, 2, 7, 39, 40])
@pytest.mark.parametrize("kind", graphs.KINDS)
@pytest.mark.parametrize("method", ["stream", "random"])
def test_every_kind_of_graph(method: Any, kind: str, num_parts: int, capfd: pytest.CaptureFixture[str]) -> None:
    graph = from_kind(kind)
    made = partition(graph, num_parts, method=method)
    assert_good(made, graph, num_parts)
    assert made.method == method and capfd.readouterr().err == ""


@pytest.mark.parametrize(("kind", "num_parts"), [("random", 7), ("star", 8), ("star", 39), ("chain", 3), ("edgeless", 7)])
def test_every_kind_of_graph_by_metis(kind: str, num_parts: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Directed with self-loops, duplicates and isolated nodes; a star, on which METIS leaves clusters empty; no edges."""
    graph = from_kind(kind)
    made = partition(graph, num_parts)
    assert_good(made, graph, num_parts)
    assert made.method == "metis" and capfd.readouterr().err == ""


def test_disconnected_groups_are_found() -> None:
    apart = planted(nodes=400, groups=4, edges=4000, mixed=0.0)
    assert partition(apart, 4).cut == 0.0


@pytest.mark.parametrize("method", PARTITIONERS)
def test_one_part_and_one_node_need_no_method(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis_worker, "run", None)
    graph = from_kind("random")
    made = partition(graph, 1, method=method)
    assert_good(made, graph, 1)
    assert made.cut == 0.0 and made.balance == 1.0
    alone = Graph.from_edges(torch.zeros(2, 1, dtype=torch.int64), 1)
    assert_good(partition(alone, 1, method=method), alone, 1)


def test_more_parts_than_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    graph = from_kind("random")
    made = partition(graph, 41)
    assert_good(made, graph, 40)
    assert "random has 40 nodes for 41 clusters" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(num_parts=0), UserError, "num_parts is 0; it must be at least 1"),
        (dict(num_parts=2.0), TypeError, r"num_parts is 2\.0; it must be an int"),
        (dict(num_parts=True), TypeError, "num_parts is True"),
        (dict(num_parts=2, method="metsi"), ValueError, "method is 'metsi'; it must be one of metis, stream, random"),
        (dict(num_parts=2, seed=-1), UserError, "seed is -1; it must be from 0 to 2147483647"),
        (dict(num_parts=2, seed=2**31), UserError, "seed is 2147483648"),
        (dict(num_parts=2, seed=0.5), TypeError, r"seed is 0\.5"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        partition(from_kind("random"), **arguments, root=tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_graph_without_nodes() -> None:
    nothing = Graph(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), name="nothing")
    with pytest.raises(UserError, match="nothing has no nodes"):
        partition(nothing, 2)


def test_metis_and_stream_find_planted_groups() -> None:
    """The groups cut 9 % of the edges (a tenth is mixed, of which a tenth stays inside by chance)."""
    graph = planted()
    cut = {method: partition(graph, 10, method=method).cut for method in PARTITIONERS}
    assert cut["random"] > 0.85
    assert cut["metis"] < 0.12
    assert cut["stream"] < 0.15


@pytest.mark.parametrize(("kind", "num_parts"), [("planted", 10), ("planted", 300), ("star", 7), ("chain", 6)])
def test_stream_respects_its_capacity(kind: str, num_parts: int) -> None:
    graph = planted() if kind == "planted" else from_kind(kind)
    assert partition(graph, num_parts, method="stream").ptr.diff().max() <= -(-105 * graph.num_nodes // (100 * num_parts))


def test_stream_on_a_lattice_follows_the_neighbours() -> None:
    """Breadth first: on a long cycle with its ids shuffled, a stream by id would cut near half of the edges."""
    n = 4000
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    ring = Graph.from_edges(torch.stack([shuffled, shuffled.roll(1)]), n, symmetrise=True)
    assert partition(ring, 10, method="stream").cut < 0.2


def test_stream_stops_when_a_pass_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    place = kernels.Greedy.place

    def counted(self: kernels.Greedy, order: torch.Tensor | None = None) -> None:
        passes.append(order is None)
        place(self, order)

    monkeypatch.setattr(kernels.Greedy, "place", counted)
    partition(from_kind("edgeless"), 4, method="stream")
    assert passes == [False, True]
    passes.clear()
    partition(planted(), 10, method="stream")
    assert 3 <= len(passes) <= 10 and passes == [False] + [True] * (len(passes) - 1)

    def passes_until(cuts: list[int]) -> int:
        passes.clear()
        monkeypatch.setattr(module, "cut_edges", lambda *_: cuts[len(passes) - 1])
        partition(planted(), 10, method="stream")
        return len(passes)

    assert passes_until([10_000, 9900, 9801, 9704, 5000]) == 4  # 97 of 9801 are less than a hundredth
    assert passes_until([2**i for i in range(20, 0, -1)]) == 1 + module.MOST_PASSES


def test_stream_keeps_the_better_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    after: list[torch.Tensor] = []
    place = kernels.Greedy.place

    def spoiling(self: kernels.Greedy, order: torch.Tensor | None = None) -> None:
        place(self, order)
        if after:
            self.cluster.copy_(torch.arange(3000) % 7)
        after.append(self.cluster.clone())

    monkeypatch.setattr(kernels.Greedy, "place", spoiling)
    made = partition(planted(), 10, method="stream")
    assert len(after) == 2 and torch.equal(cluster_of(made), after[0].long())


def test_random_is_balanced() -> None:
    sizes = partition(planted(nodes=1003, edges=3000), 10, method="random").ptr.diff()
    assert sizes.max() - sizes.min() == 1


@pytest.mark.parametrize("method", PARTITIONERS)
def test_the_seed_decides(method: Any, threads: Callable[[int], None]) -> None:
    graph = planted(mixed=0.6)
    threads(1)
    first = partition(graph, 7, method=method, seed=5)
    threads(2)
    again, other = (partition(graph, 7, method=method, seed=seed) for seed in (5, 6))
    assert same(first, again) and first.cut == again.cut
    assert not same(first, other)


@pytest.mark.parametrize("method", ["metis", "stream"])
def test_directions_duplicates_and_loops_do_not_matter(method: Any) -> None:
    """Edges in one direction, duplicated, with self-loops, or in 64 bits give the same clusters."""
    graph = planted()
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.degree)
    edges = torch.stack([graph.col.long(), row])
    once = edges[:, edges[0] < edges[1]]
    loops = torch.arange(0, graph.num_nodes, 3).expand(2, -1)
    messy = Graph.from_edges(torch.cat([once, once[:, ::2], loops], 1), graph.num_nodes)
    plain = Graph(graph.rowptr, graph.col.long()).without_self_loops()
    a, b = partition(messy, 6, method=method), partition(plain, 6, method=method)
    assert torch.equal(cluster_of(a), cluster_of(b))
    assert_good(a, messy, 6)


def test_rows_of_a_cluster_go_from_high_to_low_degree() -> None:
    graph = planted()
    made = partition(graph, 10, method="stream")
    degree = graph.degree
    for begin, end in zip(made.ptr[:-1].tolist(), made.ptr[1:].tolist(), strict=True):
        rows = made.order[begin:end].tolist()
        assert rows == sorted(rows, key=lambda g: (-int(degree[g]), g))


def test_apply() -> None:
    graph = planted(nodes=300, edges=1000)
    made = partition(graph, 5, method="stream")
    permuted = made.apply(graph)
    assert torch.equal(permuted.degree, graph.degree[made.order])
    in_place = Partition(made.ptr, torch.arange(300), "stream", 0.0, 1.0)
    assert cut_of(permuted, cluster_of(in_place)) == pytest.approx(made.cut)
    assert in_place.apply(graph).fingerprint == graph.fingerprint  # without a fingerprint only the size is compared
    with pytest.raises(ValueError, match="made for another graph of 300 nodes; planted has 290"):
        made.apply(planted(nodes=290, edges=1000))
    with pytest.raises(ValueError, match="made for another graph"):
        made.apply(planted(nodes=300, edges=1000, seed=1))


def test_describe() -> None:
    made = Partition(torch.tensor([0, 3, 4]), torch.arange(4), "metis", 0.1234, 1.5)
    assert made.describe() == "2 clusters by metis: 12.3 % of edges cut, balance 1.50"
    assert repr(made) == f"Partition({made.describe()})"
    assert Partition(torch.tensor([0, 4]), torch.arange(4), "random", 0.0, 1.0).describe().startswith("1 cluster by")
    instead = Partition(made.ptr, made.order, "stream", 0.1234, 1.5, asked="metis", fallback="it failed")
    assert instead.describe() == "2 clusters by stream: 12.3 % of edges cut, balance 1.50 (instead of metis: it failed)"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clusters", [2, 5, 33])
@pytest.mark.parametrize("kind", graphs.KINDS)
def test_every_placement_is_the_best_one(kind: str, clusters: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every placement of two passes is compared with the scores of all clusters."""
    graph = from_kind(kind).symmetrise().without_self_loops()
    capacity = -(-graph.num_nodes // clusters)  # no slack: clusters fill up
    greedy = kernels.Greedy(graph.rowptr, graph.col, clusters, capacity)
    task, order = kernels.place_task, torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    placed: list[int] = []

    class Watched:
        def launch(self, *block: Any) -> None:
            begin = block[7]
            g = begin if block[6] is None else int(order[begin])
            cluster = greedy.cluster.clone()
            cluster[g] = -1
            task.launch(*block)
            size = torch.bincount(cluster[cluster >= 0], minlength=clusters)
            near = cluster[graph.col[graph.rowptr[g] : graph.rowptr[g + 1]].long()]
            room = capacity - size
            score = torch.bincount(near[near >= 0], minlength=clusters) * room
            new = int(greedy.cluster[g])
            assert score[new] == score.max() and room[new] == room[score == score.max()].max() > 0
            cluster[g] = new
            assert torch.equal(greedy.cluster, cluster)
            placed.append(g)

    monkeypatch.setattr(kernels, "place_task", Watched())
    monkeypatch.setattr(kernels, "NODES_PER_LAUNCH", 1)
    greedy.place(order)
    greedy.place()
    assert placed == order.tolist() + list(range(graph.num_nodes))


def test_a_pass_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = planted()
    whole, chunks = (kernels.Greedy(graph.rowptr, graph.col, 10, 310) for _ in range(2))
    whole.place()
    monkeypatch.setattr(kernels, "NODES_PER_LAUNCH", 7)
    chunks.place()
    assert torch.equal(whole.cluster, chunks.cluster) and torch.equal(whole.size, torch.bincount(whole.cluster))


def test_clusters_too_small_for_the_graph() -> None:
    graph = from_kind("chain")
    with pytest.raises(ValueError, match="4 clusters of 9 cannot hold 40 nodes"):
        kernels.Greedy(graph.rowptr, graph.col, 4, 9)


def test_breadth_first() -> None:
    """0-1-2-3 and 4-5, and 6 alone."""
    edges = torch.tensor([[0, 1, 2, 4], [1, 2, 3, 5]])
    graph = Graph.from_edges(edges, 7, symmetrise=True)
    order = kernels.breadth_first(graph.rowptr, graph.col, torch.tensor([2, 6, 0, 5, 1, 3, 4]))
    assert order.tolist() == [2, 1, 3, 0, 6, 5, 4]


@pytest.mark.parametrize("col", [torch.int32, torch.int64])
def test_cut_on_any_number_of_threads(col: torch.dtype, threads: Callable[[int], None]) -> None:
    rowptr, neighbours = graphs.random(5000, 40_000)
    cluster = torch.randint(0, 4, (5000,), dtype=torch.int32)
    row = torch.repeat_interleave(torch.arange(5000), rowptr.diff())
    for count in (1, 2, 3):
        threads(count)
        assert kernels.cut_edges(rowptr, neighbours.to(col), cluster) == int((cluster[row] != cluster[neighbours]).sum())
