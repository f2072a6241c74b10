"""Shapes of the real size for --benchmark-only, tiny ones for --benchmark-disable; the report at the end."""

from pathlib import Path
from typing import Any

import pytest

from rest_triton.utils.malloc import keep_freed_memory

from .cases import Room
from .device import bench_device
from .measure import Report
from .results import LATEST, about, write

_REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-freed-memory",
        action="store_true",
        help="benchmark with malloc set as the command lines set it, for all sides",
    )
    parser.addoption(
        "--graph",
        default="synthetic:arxiv",
        help="what whole epochs are measured on, and the ops in the place of arxiv: a data set, or the path of an .npz",
    )
    parser.addoption(
        "--results", default="", help="where records are written, as .json and .csv (default: bench/results/latest)"
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
def room(request: pytest.FixtureRequest, tiny: bool, tmp_path_factory: pytest.TempPathFactory) -> Room:
    """Where the cases of the ops are built."""
    root = str(tmp_path_factory.getbasetemp()) if tiny else "data"
    return Room(tiny, request.config.getoption("--graph"), root, bench_device())


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[_REPORT]


def summary(machine: dict[str, Any]) -> str:
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    packages = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{machine['processor']}, {machine['threads']} threads{gpu}; {packages}; {machine['commit']}"


def _about(config: pytest.Config) -> dict[str, Any]:
    kept = config.getoption("--keep-freed-memory")
    malloc = "freed memory kept, for all sides" if kept else "as it comes"
    return about(malloc=malloc, tiny=bool(config.getoption("benchmark_disable")))


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    machine_info["summary"] = summary(_about(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report, tiny = config.stash[_REPORT], config.getoption("benchmark_disable")
    if not report.lines and not report.records:
        return
    machine = _about(config)
    terminalreporter.section("against the alternatives (best of interleaved rounds)")
    terminalreporter.write_line(summary(machine))
    terminalreporter.write_line(f"malloc: {machine['malloc']}")
    if tiny:
        terminalreporter.write_line("tiny shapes: this only shows that the benchmarks run, the times mean nothing")
    for line in report.lines:
        terminalreporter.write_line(line)
    if report.wrong:
        terminalreporter.write_line(f"\n{len(report.wrong)} results are wrong and have no times:", red=True)
    for record in report.wrong:
        terminalreporter.write_line(
            f"  {record.bench} | {record.case} | {record.what} | {record.mode}: {record.note}", red=True
        )
    results = config.getoption("--results")
    if report.records and (results or not tiny):
        written = write(Path(results or LATEST), machine, report.records)
        terminalreporter.write_line(f"\n{len(report.records)} records in {' and '.join(map(str, written))}")
