"""The table of partitioners."""

from pathlib import Path

import pytest

from bench import partitioners
from rest_triton.data import kaminpar
from rest_triton.data.child import PartitionerFailedError
from rest_triton.data.datasets import load
from rest_triton.data.partition import partition
from rest_triton.ops import Adjacency
from rest_triton.sampling.halo_rows import halo_per_row

NAME = "synthetic:nodes=3000,edges=20000"
FLAGS = ["--dataset", NAME, "--num-parts", "8", "--batch-size", "2"]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both partitioners, with the figures of the partitions that training gets."""
    partitioners.main([*FLAGS, "--root", str(tmp_path), "--seeds", "2"])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines[0] == list(partitioners.HEADINGS)
    assert [line[:2] for line in lines[2:]] == [[name, seed] for seed in "01" for name in ("KaMinPar", "METIS")]
    graph = load(NAME, tmp_path)
    for name, seed, cut, balance, around, seconds, memory in lines[2:]:
        made = partition(graph, 8, method=name.lower(), seed=int(seed))
        permuted = made.apply(graph)
        expected = halo_per_row(Adjacency(permuted.rowptr, permuted.col), made.ptr, 2)
        assert (cut, balance, around) == (f"{100 * made.cut:.1f} %", f"{made.balance:.3f}", f"{expected:.2f}")
        assert float(seconds) > 0 and memory.endswith("MiB")


def test_one_that_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory for one of them, a failure of the other."""

    def fail(*_: object) -> None:
        raise PartitionerFailedError("it was killed")

    monkeypatch.setattr(partitioners, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(kaminpar, "run", fail)
    partitioners.main([*FLAGS, "--root", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines[0] == "| KaMinPar | 0 | it was killed |" and lines[1].startswith("| METIS | 0 | it needs about ")
    with pytest.raises(SystemExit):
        partitioners.main([*FLAGS, "--root", str(tmp_path), "--batch-size", "9"])
    assert "batch-size is 9 and num-parts 8" in capsys.readouterr().err
