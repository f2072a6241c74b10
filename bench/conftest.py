"""Shapes of the real size for --benchmark-only, tiny ones for --benchmark-disable; the report at the end."""

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from rest_triton.malloc import keep_freed_memory

from .measure import Report

_REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-freed-memory",
        action="store_true",
        help="benchmark with malloc set as the command lines set it, for all sides",
    )
    parser.addoption(
        "--graph", default="synthetic:arxiv", help="what whole epochs are measured on: a data set, or the path of an .npz"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--keep-freed-memory"):
        keep_freed_memory()
    config.stash[_REPORT] = Report()


@pytest.fixture
def tiny(request: pytest.FixtureRequest) -> bool:
    """Whether this is only a check that benchmarks run."""
    return bool(request.config.getoption("benchmark_disable"))


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[_REPORT]


def _processor() -> str:
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        return names[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        return platform.processor() or "unknown processor"


def _commit() -> str:
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return run.stdout.strip() or "no commit"


def machine() -> str:
    import numba

    threads = torch.get_num_threads()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{_processor()}, {threads} threads{gpu}; torch {torch.__version__}, numba {numba.__version__}; {_commit()}"


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    machine_info["summary"] = machine()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_REPORT].lines
    if lines:
        terminalreporter.section("against the alternatives (best of interleaved rounds)")
        terminalreporter.write_line(machine())
        kept = config.getoption("--keep-freed-memory")
        terminalreporter.write_line(f"malloc: {'freed memory kept, for all sides' if kept else 'as it comes'}")
        if config.getoption("benchmark_disable"):
            terminalreporter.write_line("tiny shapes: this only shows that the benchmarks run, the times mean nothing")
        for line in lines:
            terminalreporter.write_line(line)
