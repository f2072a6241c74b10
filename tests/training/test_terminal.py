"""The progress line and the table of a run on a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.training.logger import COLUMNS, LINES, Display
from rest_triton.utils.progress import Progress

from .commands import FEW, write_graph

WIDE = 120
# The command, with a progress line that is drawn often: a run of a second has many of them.
QUICK = "from rest_triton import train; from rest_triton.utils import progress; progress.INTERVAL = 0.005; train.main()"
RECORD: dict[str, Any] = dict(
    epoch=1, steps=4, loss=12.3456, age=123.4, train=1.0, val=1.0, test=1.0, memory=1023 << 20,
    time=dict(data=0.1, refresh=0.2, train=0.5, evaluation=12.34),
)  # fmt: skip


def on_a_terminal(command: list[str], cwd: Path, wide: int) -> tuple[int, str]:
    """(exit code, all output) of a child process with a terminal as its standard streams."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, wide, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    return_code, sent = None, b""
    with open(mine, "rb", buffering=0) as screen:
        try:
            while piece := screen.read(1 << 16):
                sent += piece
        except OSError:  # on Linux: the other end is closed
            pass
        return_code = child.wait(timeout=60)
    return return_code, sent.decode()


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Every line that the terminal has shown."""
    folder = tmp_path_factory.mktemp("terminal")
    write_graph(folder / "own.npz")
    arguments = ["--dataset", "own.npz", *FEW, "--epochs", "60", "--run-dir", "r"]
    code, sent = on_a_terminal([sys.executable, "-c", QUICK, *arguments], folder, WIDE)
    assert code == 0, sent
    yield [line for line in re.split(r"\r\x1b\[K|\r\n", sent) if line]


def test_the_progress_line(screen: list[str]) -> None:
    whole = (
        r"seed 0: epoch (\d+)/60, batch [123]/3, loss \d\.\d{4}, val \d+\.\d %, \d+\.\d{3} s/step, age \d\.\d, "
        r"\d+\.\d MiB  \d+ s"
    )
    epochs = [int(match[1]) for line in screen if (match := re.fullmatch(whole, line))]
    assert len(epochs) > 2 and epochs == sorted(epochs) and epochs[-1] > epochs[0], screen


def test_nothing_is_wider_than_the_terminal(screen: list[str]) -> None:
    assert max(map(len, screen)) <= WIDE
    assert not any("\x1b" in line or "\r" in line for line in screen)  # but for those that clear a line


def test_results_stay_above_the_progress_line(screen: list[str]) -> None:
    numbers = [int(line.split()[0]) for line in screen if re.match(r" +\d+ +\d+\.\d{4} ", line)]
    assert numbers == list(range(1, 61))
    assert screen[-1] == "report: r/report.html" and screen[-2].startswith("seed 0: best validation")


@pytest.mark.parametrize(
    ("wide", "last"), [(200, "memory"), (115, "memory"), (114, "eval"), (80, "s/step"), (60, "best val")]
)
def test_columns_that_fit(wide: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(wide))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Display(Config(dataset="x"), Progress("seed 0")).epoch(RECORD, RECORD)
    header, line = capsys.readouterr().out.splitlines()
    assert len(header) == len(line) < wide and header.endswith(f" {last}")
    assert all(name in header for name in list(COLUMNS)[: list(COLUMNS).index(last)])
    assert "12.3456" in line and ("12/25/62 %" in line) == (wide > 100)


def test_all_columns_in_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    Display(Config(dataset="x"), Progress("seed 0")).epoch(RECORD, RECORD)
    header = capsys.readouterr().out.splitlines()[0]
    assert all(name in header for name in COLUMNS)


@pytest.mark.parametrize(
    ("wide", "end"),
    [
        (160, ", 0.200 s/step, age 123.4, 1023.0 MiB"),
        (91, ", 0.200 s/step, age 123.4"),
        (90, ", 0.200 s/step"),
        (80, ", 0.200 s/step"),
        (79, ""),
    ],
)
def test_a_progress_line_that_fits(wide: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(wide))
    shown = Progress("seed 0")
    display = Display(Config(dataset="x", epochs=100), shown)
    display.last = dict(RECORD)
    display.batch(51, 2, 4, 0.5)
    assert (
        shown.line() == f"seed 0: epoch 51/100, batch 2/4, loss 0.5000, val 100.0 %{end}  0 s" and len(shown.line()) < wide
    )


def test_a_thousand_epochs_are_not_a_thousand_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Config(dataset="x", epochs=1003), Progress("seed 0"))
    for epoch in range(1, 1004):
        display.epoch(RECORD | {"epoch": epoch}, RECORD)
    lines = capsys.readouterr().out.splitlines()
    numbers = [int(line.split()[0]) for line in lines if not line.strip().startswith("epoch")]
    assert numbers[0] == 1 and numbers[-1] == 1003 and LINES <= len(numbers) <= LINES + 3
    assert len(lines) - len(numbers) == 2  # the header comes again
