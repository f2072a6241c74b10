"""The other commands in a process."""

import signal
import time
from pathlib import Path

import pytest

from rest_triton.prepare import main

from .commands import begun, here

SMALL = "synthetic:nodes=1500,edges=12000,features=16,classes=4"


def test_prepare(tmp_path: Path) -> None:
    arguments = ["--dataset", SMALL, "--num-parts", "6", "--partition", "kaminpar"]
    first = here(main, *arguments, cwd=tmp_path)
    assert first.returncode == 0 and first.stderr == ""
    assert (
        "1,500 nodes, 1" in first.stdout and "degree: mean 8.0" in first.stdout and "6 clusters by kaminpar" in first.stdout
    )
    assert (tmp_path / "data" / "prepared").is_dir() and len(list((tmp_path / "data" / "partitions").iterdir())) == 1
    again = here(main, *arguments, cwd=tmp_path)
    old_flag = here(main, *arguments[:-2], "--method", "kaminpar", cwd=tmp_path)
    lines = [[line for line in r.stdout.splitlines() if "ready after" not in line] for r in (first, again, old_flag)]
    assert lines[0] == lines[1] == lines[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", SMALL, "--parts", "6"], "--parts is --num-parts now"),
        (["--dataset", "product"], "'product' is not a data set: did you mean 'products'?"),
        (["--dataset", "nothing.npz"], "nothing.npz does not exist"),
        (["--dataset", SMALL, "--num-parts", "0"], "num_parts is 0; it must be at least 1"),
        (["--dataset", SMALL, "--split", "7"], "split is 7"),
        (["--dataset", SMALL, "--partition", "stream"], "partition is 'stream', which is gone; give --partition kaminpar\n"),
        (["--dataset", SMALL, "--method", "metsi"], "partition is 'metsi': did you mean 'metis'? known are: auto, kaminpar"),
    ],
)
def test_errors_without_traceback(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = here(main, *arguments, cwd=tmp_path)
    assert result.returncode == (2 if "--parts" in arguments else 1)
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_ctrl_c(tmp_path: Path) -> None:
    """An interrupt after the graph is prepared, before the clusters are: no traceback, and the graph stays."""
    command = ["rest_triton.prepare", "--dataset", "synthetic:nodes=60000,edges=4000000,features=2", "--num-parts", "40"]
    child = begun("-m", *command, cwd=tmp_path)
    folder = tmp_path / "data" / "partitions"
    deadline = time.monotonic() + 60
    while not folder.exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130 and said == "\ninterrupted; what was finished is kept\n"
    assert list(folder.iterdir()) == [] and len(list((tmp_path / "data" / "prepared").iterdir())) == 1
