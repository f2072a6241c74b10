"""METIS: its input, its limits and its memory."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from rest_triton.data import child, metis

from ..clusters import planted


def test_metis_without_copies_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files have METIS's own integer type. pymetis would warn of a copy."""
    import pymetis

    graph = planted(nodes=200, edges=600).without_self_loops()
    monkeypatch.setattr(child, "CHUNK", 100)
    metis.write(tmp_path, graph.rowptr.numpy(), graph.col.numpy())
    assert np.array_equal(np.load(tmp_path / "col.npy"), graph.col.numpy())
    part_graph = pymetis.part_graph
    monkeypatch.setattr(pymetis, "part_graph", lambda *a, **k: part_graph(*a, **k, warn_on_copies=True))
    monkeypatch.setattr(child, "depend_on_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["", "4", "0"])
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metis.main()
    assert np.bincount(np.load("cluster.npy"), minlength=4).tolist() == pytest.approx([50] * 4, abs=5)


def test_limits_of_metis(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = 10**15
    monkeypatch.setattr(metis, "index_dtype", lambda: np.dtype(np.int32))
    assert metis.why_not(10**6, 2**31 - 1, plenty) is None
    why = metis.why_not(10**6, 2**31, plenty)
    assert why is not None and "32 bits, up to 2,147,483,647" in why and "2,147,483,648 edges" in why
    assert metis.why_not(2**31, 10, plenty) is not None
    half = metis.peak_bytes(10**7, 10**8)
    monkeypatch.setattr(metis, "index_dtype", lambda: np.dtype(np.int64))
    assert metis.why_not(10**6, 2**31, plenty) is None
    needed = metis.peak_bytes(10**7, 10**8)
    assert needed == 13 * 10**9 == 2 * half
    assert metis.why_not(10**7, 10**8, needed) is None
    why = metis.why_not(10**7, 10**8, 2**30)
    assert why == "it needs about 12.1 GiB of memory; 1.0 GiB are available"
    assert metis.why_not(10**7, 10**8, needed - 1) is not None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_peak_memory_of_metis(tmp_path: Path) -> None:
    """Measured on the worst case: a random graph, which merging neighbours hardly shrinks."""
    graph = planted(nodes=40_000, groups=1, edges=600_000).without_self_loops()
    metis.write(tmp_path, graph.rowptr.numpy(), graph.col.numpy())
    code = (
        "import re, sys; from rest_triton.data import metis; sys.argv = ['', '10', '0'];"
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
        "metis.index_dtype(); before = peak(); metis.main(); print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = metis.peak_bytes(graph.num_nodes, graph.num_edges)
    assert 0.6 * expected < int(ended.stdout) < expected
