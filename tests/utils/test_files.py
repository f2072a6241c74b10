"""Atomic replacement of files."""

import os
import subprocess
import sys
from pathlib import Path

from rest_triton.utils.files import is_alive, replacing


def test_only_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """Two processes may write the same file at the same time."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        other = tmp_path / f"file.partial-{running.pid}"
        other.write_text("half")
        with replacing(tmp_path / "file") as file:
            file.write(b"whole")
        assert other.exists() and is_alive(running.pid)
    with replacing(tmp_path / "file") as file:
        file.write(b"whole again")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and not is_alive(running.pid)
    assert (tmp_path / "file").read_bytes() == b"whole again" and is_alive(os.getpid())
