"""KaMinPar: its input, its limits, its memory, and that its results are repeated."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rest_triton.data import child
from rest_triton.data import kaminpar as program
from rest_triton.utils.machine import available_memory

from ..clusters import from_kind, planted


@pytest.mark.parametrize("kind", ["random", "star", "chain", "edgeless"])
def test_its_reader_finds_the_same_edges(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import kaminpar

    monkeypatch.setattr(child, "CHUNK", 7)
    graph = from_kind(kind).symmetrise()
    program.write(tmp_path, graph.rowptr.numpy(), graph.col.numpy())
    graph = graph.without_self_loops()
    for compress in (False, True):
        read = kaminpar.load_graph(str(tmp_path / "graph.parhip"), kaminpar.GraphFileFormat.PARHIP, compress)
        assert (read.n(), read.m()) == (graph.num_nodes, graph.num_edges)
        assert not read.is_node_weighted() and not read.is_edge_weighted()
        for g in range(graph.num_nodes):
            row = graph.col[graph.rowptr[g] : graph.rowptr[g + 1]].tolist()
            assert sorted(read.neighbors(g)) == [(c, 1) for c in row]


def test_one_seed_gives_one_result() -> None:
    graph = planted(nodes=20_000, groups=50, edges=200_000, mixed=0.5)
    first, again, other = (program.run(graph.rowptr.numpy(), graph.col.numpy(), 40, seed).cluster for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_limits_of_kaminpar(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = program.peak_bytes(10**7, 10**8)
    assert needed == 39 * 10**8 and program.why_not(10**7, 10**8, needed) is None
    assert program.why_not(10**7, 10**8, needed - 1) == "it needs about 3.6 GiB of memory; 3.6 GiB are available"
    why = program.why_not(2**32 + 1, 10, 10**15)
    assert why == "its input has at most 4,294,967,296 nodes; the graph has 4,294,967,297"
    assert program.why_not(2**32, 10, 10**15) is None
    monkeypatch.setattr(program, "installed", lambda: False)
    assert program.why_not(10, 10, available_memory()) == "its package is not installed (pip install kaminpar)"


def test_an_absent_package_is_noticed(tmp_path: Path) -> None:
    """In a process that does not find it."""
    code = "import sys; sys.modules['kaminpar'] = None; from rest_triton.data import kaminpar; print(kaminpar.installed())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(("nodes", "edges"), [(100_000, 1_500_000), (400_000, 1_600_000)])
def test_peak_memory_of_kaminpar(nodes: int, edges: int, tmp_path: Path) -> None:
    """Measured on the worst case: a random graph, which merging neighbours hardly shrinks."""
    graph = planted(nodes=nodes, groups=1, edges=edges).without_self_loops()
    program.write(tmp_path, graph.rowptr.numpy(), graph.col.numpy())
    code = (
        "import re, sys, kaminpar; from rest_triton.data import kaminpar as program; sys.argv = ['', '10', '0'];"
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
        "before = peak(); program.main(); print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = program.peak_bytes(graph.num_nodes, graph.num_edges)
    assert 0.6 * expected < int(ended.stdout) < expected
