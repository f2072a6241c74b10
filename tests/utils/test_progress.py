"""The progress line on a terminal, and its absence elsewhere."""

import io
import re
import time

import pytest

from rest_triton.utils import progress as module
from rest_triton.utils.errors import did_you_mean
from rest_triton.utils.machine import available_memory, readable
from rest_triton.utils.progress import notice, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(text: str) -> list[str]:
    """The texts of a terminal's lines, in order."""
    return [part for part in re.split(r"\r\x1b\[K|\n", text) if part]


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    with progress("outer"):
        time.sleep(0.05)
        with progress("inner") as inner:
            inner.say("half")
            time.sleep(0.05)
            notice("hear this")
            time.sleep(0.05)
        time.sleep(0.05)
    said = screen(terminal.getvalue())
    order = list(dict.fromkeys(re.sub(r"  \d+ s", "", line) for line in said))
    assert order == ["outer", "inner: half", "hear this"]
    assert said[-1] == "outer  0 s" and terminal.getvalue().endswith("\r\x1b[K")  # the line is clear again
    inside = [line for line in said[said.index("inner: half  0 s") :] if line != "hear this"]
    assert inside.index("outer  0 s") == inside.count("inner: half  0 s")  # one line at a time, no flicker


def test_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("outer") as shown:
        shown.say("half")
        notice("hear this")
    assert capsys.readouterr().err == "hear this\n"


def test_the_line_ends_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with pytest.raises(KeyError), progress("work"):
        raise KeyError
    assert terminal.getvalue() == "\r\x1b[K" and module._under_way == []


def test_memory_that_a_container_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4000 kB\n"}
    monkeypatch.setattr("rest_triton.utils.machine._read", lambda path: files.get(path, ""))
    assert available_memory() == 4000 * 1024
    files |= {"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "5\n"}
    assert available_memory() == 4000 * 1024
    files |= {"/sys/fs/cgroup/memory.max": "3000000\n", "/sys/fs/cgroup/memory.current": "1000000\n"}
    assert available_memory() == 2_000_000
    files["/sys/fs/cgroup/memory.stat"] = "active_file 7\ninactive_file 500000\n"
    assert available_memory() == 2_500_000


def test_sizes_and_names_for_people() -> None:
    assert [readable(s) for s in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
    assert 1 << 20 < available_memory() < 1 << 50
    assert did_you_mean("Product", ["arxiv", "products"]) == "did you mean 'products'? known are: arxiv, products"
    assert did_you_mean("xyz", ["arxiv", "products"]) == "known are: arxiv, products"
