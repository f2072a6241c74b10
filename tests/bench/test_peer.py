"""Programs in another environment: rounds on request, what they count, and how they fail."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench import bench_baselines, peer
from bench.harness import Bench
from bench.peer import Peer, hand_over

PROGRAM = """
import os
from protocol import serve

def counting(given):
    rounds = iter(range(100))
    def run():
        number = next(rounds)
        print("libraries print, too")
        if number == given.fails:
            raise ValueError("the round failed")
        return dict(edges=int(given.col.sum()), rows=number, threads=int(os.environ["OMP_NUM_THREADS"]))
    return run

if __name__ == "__main__":
    serve({"counting": counting})
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Peer]:
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    for made in (programs, folder):
        made.mkdir()
    shutil.copy(peer.PROGRAMS / "protocol.py", programs)
    (programs / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(peer, "PROGRAMS", programs)

    def started(fails: int = -1, variant: str = "counting") -> Peer:
        hand_over(folder, dict(col=torch.arange(5, dtype=torch.int32)), dict(fails=fails))
        return Peer(sys.executable, folder, "program", variant)

    return started


def test_rounds_on_request(start: Callable[..., Peer]) -> None:
    made = start()
    counted = [made.counts]
    for _ in range(2):
        made()
        counted.append(made.counts)
    threads = torch.get_num_threads()
    assert counted == [dict(edges=10, rows=number, threads=threads) for number in range(3)]  # the first one warms up
    made.close()
    assert made.process.returncode == 0


def test_failures_say_why(start: Callable[..., Peer]) -> None:
    with pytest.raises(RuntimeError, match="program, counting: ValueError: the round failed"):
        start(fails=0)
    with pytest.raises(RuntimeError, match="program, other: KeyError: 'other'"):
        start(variant="other")
    made = start(fails=1)
    with pytest.raises(RuntimeError, match="program, counting: ValueError: the round failed"):
        made()
    made.close()


@pytest.mark.parametrize("python", [None, sys.executable])
def test_what_is_left_out_has_a_line(tmp_path: Path, python: str | None) -> None:
    """Without the option, and in an environment that lacks the libraries, as this one lacks DGL."""
    bench = Bench(None, True, "", str(tmp_path), torch.device("cpu"), peers=python)
    trainer = bench_baselines.trainer_of(bench)
    with bench_baselines.started(bench, trainer, [(bench_baselines.DGL, "sampling")]) as (running, failed):
        assert running == {}
    if python is None:
        assert failed == {} and bench.lines == [bench_baselines.WITHOUT] and "--peers PYTHON" in bench.lines[0]
    else:
        assert failed == {"dgl: sampling": "not run: dgl_rounds, sampling: ModuleNotFoundError: No module named 'dgl'"}


def test_ours_counts_what_it_samples(tmp_path: Path) -> None:
    """All edges, where the fan-out is larger than every degree and a batch holds all targets."""
    bench = Bench(None, True, "", str(tmp_path), torch.device("cpu"))
    trainer = bench_baselines.trainer_of(bench)
    trainer.config = trainer.config.changed(fanout="1000", batch_nodes=1000)
    trainer.method.config = trainer.config
    adj, rows = trainer.loaded.adj, torch.nonzero(trainer.loaded.graph.train_mask).squeeze(1)
    edges = computed = 0
    for _ in range(3):
        edges, computed = edges + int((adj.rowptr[rows + 1] - adj.rowptr[rows]).sum()), computed + len(rows)
        inside = torch.zeros(adj.num_nodes, dtype=torch.bool)
        inside[rows] = True
        for row in rows.tolist():
            inside[adj.col[adj.rowptr[row] : adj.rowptr[row + 1]].long()] = True
        rows = torch.nonzero(inside).squeeze(1)
    for gradients in (True, False):
        ours = bench_baselines.Sampling(trainer, gradients=gradients)
        ours()
        assert ours.counts == dict(edges=edges, rows=computed)
