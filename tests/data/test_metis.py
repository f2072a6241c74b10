"""METIS in its child process: its input, its limits and its failures."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton.data import metis as metis_worker
from rest_triton.data import partition as module
from rest_triton.data.partition import partition

from ..clusters import from_kind, planted, same


@pytest.fixture
def broken_metis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Run a line of shell instead of METIS."""

    def replace(line: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return replace


def test_metis_without_copies_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files have METIS's own integer type. pymetis would warn of a copy."""
    graph = planted(nodes=200, edges=600).without_self_loops()
    metis_worker._write(tmp_path / "rowptr.npy", graph.rowptr.numpy())
    monkeypatch.setattr(metis_worker, "CHUNK_ROWS", 100)
    metis_worker._write(tmp_path / "col.npy", graph.col.numpy())
    assert np.array_equal(np.load(tmp_path / "col.npy"), graph.col.numpy())
    part_graph = metis_worker.pymetis.part_graph
    monkeypatch.setattr(metis_worker.pymetis, "part_graph", lambda *a, **k: part_graph(*a, **k, warn_on_copies=True))
    monkeypatch.setattr(metis_worker, "_depend_on_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["", "4", "0"])
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metis_worker.main()
    assert np.bincount(np.load("cluster.npy"), minlength=4).tolist() == pytest.approx([50] * 4, abs=5)


def test_the_child_starts_light() -> None:
    code = "import sys, rest_triton.data.metis; print(sorted({'torch', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_child_finds_what_this_process_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child has this process's search path, whatever is in the working folder."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    graph = from_kind("random").symmetrise().without_self_loops()
    assert metis_worker.run(graph.rowptr.numpy(), graph.col.numpy(), 3, 0).shape == (40,)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "pymetis.py").write_text("raise SystemExit('another pymetis')")
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    with pytest.raises(metis_worker.MetisFailedError, match="code 1: another pymetis"):
        metis_worker.run(graph.rowptr.numpy(), graph.col.numpy(), 3, 0)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kill -SEGV $$", "its process ended by SIGSEGV"),
        ("kill -KILL $$", "its process was killed, probably because memory ran out"),
        ("echo no way >&2; exit 3", "its process ended with code 3: no way"),
        ("exit 0", "its files could not be written or read: .*cluster.npy"),
    ],
)
def test_a_failure_of_metis(
    line: str, why: str, broken_metis: Callable[[str], None], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph = planted()
    broken_metis(line)
    made = partition(graph, 10, root=tmp_path)
    said = capfd.readouterr().err
    assert made.method == "stream" and same(made, partition(graph, 10, method="stream"))
    assert said.startswith("METIS cannot divide planted: ") and said.endswith("The streaming partitioner runs instead\n")
    assert re.search(why, said)
    assert [p.suffix for p in (tmp_path / "partitions").iterdir()] == [".npz"]  # nothing of METIS's is left

    assert re.search(why, str(made.fallback)) and made.asked == "metis"

    assert partition(graph, 10, root=tmp_path).fallback == made.fallback
    assert f"planted was divided by stream: {made.fallback}. To try metis again, remove" in capfd.readouterr().err


def test_no_room_for_the_files(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metis_worker, "_write", full)
    assert partition(planted(), 10).method == "stream"
    assert "No space left on device" in capfd.readouterr().err


def test_interrupting_metis(broken_metis: Callable[[str], None], tmp_path: Path) -> None:
    """Ctrl-C ends the child and removes its files."""
    pid = tmp_path / "pid"
    broken_metis(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")

    meanwhile: list[str] = []

    def interrupt() -> None:
        while not pid.exists():
            time.sleep(0.01)
        meanwhile.extend(path.name for path in (tmp_path / "partitions").iterdir())
        time.sleep(0.3)  # until the child is being waited for
        os.kill(os.getpid(), signal.SIGINT)

    begin = time.monotonic()
    sender = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            partition(planted(), 10, root=tmp_path)
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert time.monotonic() - begin < 30
    assert len(meanwhile) == 1 and not any((tmp_path / "partitions").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_the_child_ends_with_its_parent() -> None:
    child = (
        "import time; from rest_triton.data import metis as metis_worker; metis_worker._depend_on_parent();"
        "print(open('/proc/self/oom_score_adj').read().strip(), flush=True); time.sleep(30)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        score = parent.stdout.readline().strip()
        begin = time.monotonic()
        parent.kill()
        assert parent.stdout.read() == ""  # the pipe ends when the child does
    assert score == "1000" and time.monotonic() - begin < 20


def test_limits_of_metis() -> None:
    int32, int64, plenty = np.dtype(np.int32), np.dtype(np.int64), 10**15
    assert metis_worker.why_not(10**6, 2**31 - 1, int32, plenty) is None
    assert metis_worker.why_not(10**6, 2**31, int64, plenty) is None
    why = metis_worker.why_not(10**6, 2**31, int32, plenty)
    assert why is not None and "32 bits, up to 2,147,483,647" in why and "2,147,483,648 edges" in why
    assert metis_worker.why_not(2**31, 10, int32, plenty) is not None
    needed = metis_worker.peak_bytes(10**7, 10**8, 8)
    assert needed == 13 * 10**9 == 2 * metis_worker.peak_bytes(10**7, 10**8, 4)
    assert metis_worker.why_not(10**7, 10**8, int64, needed) is None
    why = metis_worker.why_not(10**7, 10**8, int64, 2**30)
    assert why == "it needs about 12.1 GiB of memory; 1.0 GiB are available"
    assert metis_worker.why_not(10**7, 10**8, int64, needed - 1) is not None


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        (module, "available_memory", 2**20, "MiB of memory; 1.0 MiB are available. The streaming partitioner runs instead"),
        (metis_worker, "index_dtype", np.dtype(np.int8), "its integers have 8 bits, up to 127; the graph has 3,000 nodes"),
    ],
)
def test_too_large_for_metis(
    place: Any, name: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place, name, lambda: value)
    monkeypatch.setattr(metis_worker, "run", None)
    assert partition(planted(), 10).method == "stream"
    assert said in capfd.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_peak_memory_of_metis(tmp_path: Path) -> None:
    """Measured on the worst case: a random graph, which merging neighbours hardly shrinks."""
    graph = planted(nodes=40_000, groups=1, edges=600_000).without_self_loops()
    metis_worker._write(tmp_path / "rowptr.npy", graph.rowptr.numpy())
    metis_worker._write(tmp_path / "col.npy", graph.col.numpy())
    code = (
        "import re, sys; from rest_triton.data import metis; sys.argv = ['', '10', '0'];"
        "peak = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
        "before = peak(); metis.main(); print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = metis_worker.peak_bytes(graph.num_nodes, graph.num_edges, metis_worker.index_dtype().itemsize)
    assert 0.6 * expected < int(ended.stdout) < expected
