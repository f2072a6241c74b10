"""Every partitioner on every kind of graph, what auto takes, and the edge cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.data import kaminpar, metis, partitioners
from rest_triton.data.graph import Graph
from rest_triton.data.partition import Partition, partition
from rest_triton.data.partitioners import PARTITIONERS
from rest_triton.kernels.cpu import partition as kernels
from rest_triton.utils.errors import UserError

from ..clusters import assert_good, cluster_of, cut_of, from_kind, planted, same
from ..ops import graphs

MULTILEVEL = ["kaminpar", "metis"]


@pytest.mark.parametrize("num_parts", [1, 2, 7, 39, 40])
@pytest.mark.parametrize("kind", graphs.KINDS)
def test_every_kind_of_graph(kind: str, num_parts: int, capfd: pytest.CaptureFixture[str]) -> None:
    graph = from_kind(kind)
    made = partition(graph, num_parts, method="random")
    assert_good(made, graph, num_parts)
    assert made.method == "random" and capfd.readouterr().err == ""


@pytest.mark.parametrize("method", MULTILEVEL)
@pytest.mark.parametrize(
    ("kind", "num_parts"), [("random", 2), ("random", 7), ("star", 8), ("star", 39), ("chain", 3), ("edgeless", 7)]
)
def test_every_kind_of_graph_in_a_child(method: Any, kind: str, num_parts: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Directed with self-loops, duplicates and isolated nodes; a star, on which clusters are left empty; no edges."""
    graph = from_kind(kind)
    made = partition(graph, num_parts, method=method)
    assert_good(made, graph, num_parts)
    assert made.method == made.asked == method and capfd.readouterr().err == ""


@pytest.mark.parametrize("method", MULTILEVEL)
def test_isolated_nodes_are_shared_out(method: Any) -> None:
    """Three quarters of the nodes have no edges. Sizes stay within 3 % and one node of the mean."""
    inner = planted(nodes=500, edges=3000)
    rowptr = torch.nn.functional.pad(inner.rowptr, (0, 1500), value=inner.num_edges)
    graph = Graph(rowptr, inner.col)
    made = partition(graph, 8, method=method)
    assert_good(made, graph, 8)
    assert int(made.ptr.diff().max()) <= 1.03 * 250 + 1


def test_kaminpar_keeps_its_bound() -> None:
    for num_parts in (3, 10, 170):
        made = partition(planted(), num_parts, method="kaminpar")
        assert int(made.ptr.diff().max()) <= 1.03 * 3000 / num_parts + 1


def test_disconnected_groups_are_found() -> None:
    apart = planted(nodes=400, groups=4, edges=4000, mixed=0.0)
    assert partition(apart, 4, method="metis").cut == partition(apart, 4, method="kaminpar").cut == 0.0


@pytest.mark.parametrize("method", PARTITIONERS)
def test_one_part_and_one_node_need_no_method(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "CHILDREN", None)
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
        (
            dict(num_parts=2, method="metsi"),
            ValueError,
            "method is 'metsi'; it must be one of auto, kaminpar, metis, random",
        ),
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


def test_planted_groups_are_found() -> None:
    """The groups cut 9 % of the edges (a tenth is mixed, of which a tenth stays inside by chance)."""
    graph = planted()
    cut = {method: partition(graph, 10, method=method).cut for method in PARTITIONERS}
    assert cut["random"] > 0.85
    assert max(cut["kaminpar"], cut["metis"], cut["auto"]) < 0.12


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


@pytest.mark.parametrize("method", MULTILEVEL)
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
    made = partition(graph, 10, method="random")
    degree = graph.degree
    for begin, end in zip(made.ptr[:-1].tolist(), made.ptr[1:].tolist(), strict=True):
        rows = made.order[begin:end].tolist()
        assert rows == sorted(rows, key=lambda g: (-int(degree[g]), g))


def test_apply() -> None:
    graph = planted(nodes=300, edges=1000)
    made = partition(graph, 5, method="random")
    permuted = made.apply(graph)
    assert torch.equal(permuted.degree, graph.degree[made.order])
    in_place = Partition(made.ptr, torch.arange(300), "random", 0.0, 1.0)
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
    second = Partition(made.ptr, made.order, "metis", 0.1234, 1.5, asked="auto", fallback="KaMinPar failed")
    assert second.describe() == "2 clusters by metis: 12.3 % of edges cut, balance 1.50 (KaMinPar failed)"


def test_auto_takes_the_first_that_can(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    graph = planted()
    first = partition(graph, 10)
    assert (first.asked, first.method, first.fallback) == ("auto", partitioners.AUTO[0], None)
    assert same(first, partition(graph, 10, method=partitioners.AUTO[0])) and capfd.readouterr().err == ""
    monkeypatch.setattr(partitioners, "AUTO", ("kaminpar", "metis"))
    monkeypatch.setattr(kaminpar, "installed", lambda: False)
    made = partition(graph, 10)
    why = "KaMinPar cannot divide planted: its package is not installed (pip install kaminpar)"
    assert (made.asked, made.method, made.fallback) == ("auto", "metis", why)
    assert same(made, partition(graph, 10, method="metis"))
    assert capfd.readouterr().err == f"{why}. METIS is tried instead\n"


def test_nothing_that_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kaminpar, "installed", lambda: False)
    monkeypatch.setattr(metis, "installed", lambda: False)
    for method, message in {
        "auto": r"\(pip install kaminpar\); .*\(pip install pymetis\); mend that, or give --partition random",
        "kaminpar": r"KaMinPar .*\(pip install kaminpar\); mend that, or give --partition metis or --partition random",
        "metis": r"METIS .*\(pip install pymetis\); mend that, or give --partition kaminpar or --partition random",
    }.items():
        with pytest.raises(UserError, match=f"^.*{message}$"):
            partition(planted(), 10, method=method, root=tmp_path)
    assert not any((tmp_path / "partitions").iterdir())
    assert partition(planted(), 10, method="random").num_clusters == 10


@pytest.mark.parametrize("method", MULTILEVEL)
def test_a_graph_beyond_memory(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "available_memory", lambda: 2**20)
    with pytest.raises(UserError, match=r"it needs about \d.* of memory; 1.0 MiB are available; mend that, or give"):
        partition(planted(), 10, method=method)


def test_the_smallest_peak_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of METIS and KaMinPar, of the one, of neither."""
    sizes = 10**6, 10**7
    assert partitioners.peak_bytes("auto", *sizes) == partitioners.peak_bytes("kaminpar", *sizes)
    assert partitioners.peak_bytes("kaminpar", *sizes) == ("KaMinPar", kaminpar.peak_bytes(*sizes))
    monkeypatch.setattr(kaminpar, "installed", lambda: False)
    assert partitioners.peak_bytes("auto", *sizes) == ("METIS", metis.peak_bytes(*sizes))
    assert partitioners.peak_bytes("random", *sizes) == partitioners.peak_bytes("stream", *sizes) == ("", 0)


@pytest.mark.parametrize("col", [torch.int32, torch.int64])
def test_cut_on_any_number_of_threads(col: torch.dtype, threads: Callable[[int], None]) -> None:
    rowptr, neighbours = graphs.random(5000, 40_000)
    cluster = torch.randint(0, 4, (5000,), dtype=torch.int32)
    row = torch.repeat_interleave(torch.arange(5000), rowptr.diff())
    for count in (1, 2, 3):
        threads(count)
        assert kernels.cut_edges(rowptr, neighbours.to(col), cluster) == int((cluster[row] != cluster[neighbours]).sum())
