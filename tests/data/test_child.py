"""Partitioners in their child processes: what they are given, and how they fail."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rest_triton.data import child, kaminpar, metis, partitioners
from rest_triton.data.graph import Graph
from rest_triton.data.partition import partition
from rest_triton.utils.errors import UserError

from ..clusters import from_kind, planted, same

PROGRAMS: dict[str, Any] = {"kaminpar": kaminpar, "metis": metis}
PACKAGES = {"kaminpar": "kaminpar", "metis": "pymetis"}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Run a line of shell instead of the partitioner."""

    def replace(line: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return replace


def loopless(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    graph = graph.symmetrise().without_self_loops()
    return graph.rowptr.numpy(), graph.col.numpy()


@pytest.mark.parametrize("chunk", [1, 3, 64, 1 << 20])
@pytest.mark.parametrize("kind", ["random", "star", "chain", "edgeless", "loops", "hub"])
def test_edges_in_pieces(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without self-loops, as from a graph without them. A row can be longer than a piece."""
    monkeypatch.setattr(child, "CHUNK", chunk)
    n = 40
    every, hub = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    if kind == "loops":  # of every node, with no other edge
        graph = Graph.from_edges(torch.stack([every, every]), n)
    elif kind == "hub":
        graph = Graph.from_edges(torch.stack([hub, every]), n, symmetrise=True)
    else:
        graph = from_kind(kind).symmetrise()
    expected_rowptr, expected_col = loopless(graph)
    edges = child.Edges(graph.rowptr.numpy(), graph.col.numpy())
    assert (edges.num_nodes, edges.num_edges) == (n, expected_col.size)
    rowptr, col = list(edges.rowptr()), list(edges.col())
    assert max(len(piece) for piece in (*rowptr, *col, [])) <= chunk
    assert np.array_equal(np.concatenate(rowptr), expected_rowptr)
    assert np.array_equal(np.concatenate([*col, np.zeros(0, np.int32)]), expected_col)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_child_starts_light(name: str) -> None:
    code = f"import sys, rest_triton.data.{name}; print(sorted({{'torch', 'numba'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_child_finds_what_this_process_finds(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child has this process's search path, whatever is in the working folder."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    rowptr, col = loopless(from_kind("random"))
    metis.index_dtype()  # so that this process has the package already
    assert PROGRAMS[name].run(rowptr, col, 3, 0).cluster.shape == (40,)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{PACKAGES[name]}.py").write_text("raise SystemExit('another package')")
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    with pytest.raises(child.PartitionerFailedError, match="code 1: another package"):
        PROGRAMS[name].run(rowptr, col, 3, 0)


FAILURES = [
    ("kill -SEGV $$", "its process ended by SIGSEGV"),
    ("kill -KILL $$", "its process was killed, probably because memory ran out"),
    ("echo no way >&2; exit 3", "its process ended with code 3: no way"),
    ("exit 0", "its files could not be written or read: .*cluster.npy"),
]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("line", "why"), FAILURES)
def test_a_failure(line: str, why: str, name: Any, broken: Callable[[str], None], tmp_path: Path) -> None:
    """The error has the reason and the ways out. Nothing is left below the root."""
    broken(line)
    other = {"kaminpar": "metis", "metis": "kaminpar"}[name]
    with pytest.raises(UserError, match=f"^{PROGRAMS[name].TITLE} cannot divide planted: {why}") as caught:
        partition(planted(), 10, method=name, root=tmp_path)
    assert str(caught.value).endswith(f"; mend that, or give --partition {other} or --partition random")
    assert not any((tmp_path / "partitions").iterdir())


def test_auto_after_a_failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The next one runs. Its file has the reason, which is not one of those that ask for this partitioner."""
    monkeypatch.setattr(partitioners, "AUTO", ("kaminpar", "metis"))

    def fail(*_: object) -> None:
        raise child.PartitionerFailedError("it was killed")

    graph = planted()
    monkeypatch.setattr(kaminpar, "run", fail)
    made = partition(graph, 10, root=tmp_path)
    why = "KaMinPar cannot divide planted: it was killed"
    assert (made.asked, made.method, made.fallback) == ("auto", "metis", why)
    assert capfd.readouterr().err == f"{why}. METIS is tried instead\n"
    (path,) = (tmp_path / "partitions").iterdir()
    assert path.name == f"{graph.fingerprint}-metis-10-0.npz"
    monkeypatch.setattr(metis, "run", fail)
    again = partition(graph, 10, root=tmp_path)
    assert same(again, made) and again.summary() == made.summary()
    assert capfd.readouterr().err == f"planted was divided by metis: {why}. To try again, remove {path}\n"
    asked = partition(graph, 10, method="metis", root=tmp_path)
    assert same(asked, made) and (asked.asked, asked.fallback) == ("metis", None) and capfd.readouterr().err == ""
    with pytest.raises(UserError, match=r"^KaMinPar .* killed; METIS .* killed; mend that, or give --partition random$"):
        partition(graph, 9, root=tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_room_for_the_files(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(child.Edges, "col", full)
    with pytest.raises(UserError, match=r"its files could not be written or read: .*No space left on device"):
        partition(planted(), 10, method=name)


def test_interrupting_a_partitioner(broken: Callable[[str], None], tmp_path: Path) -> None:
    """Ctrl-C ends the child and removes its files."""
    pid = tmp_path / "pid"
    broken(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")

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
    program = (
        "import time; from rest_triton.data import child; child.depend_on_parent();"
        "print(open('/proc/self/oom_score_adj').read().strip(), flush=True); time.sleep(30)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        score = parent.stdout.readline().strip()
        begin = time.monotonic()
        parent.kill()
        assert parent.stdout.read() == ""  # the pipe ends when the child does
    assert score == "1000" and time.monotonic() - begin < 20
