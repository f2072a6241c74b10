"""Options, the ``bench`` fixture, and the table at the end of a session.

``--benchmark-only`` measures the real shapes; ``--benchmark-disable`` runs each benchmark once on tiny ones.
"""

from importlib.metadata import version
from typing import Any

import pytest
import torch

from rest_triton.utils.machine import processor
from rest_triton.utils.malloc import keep_freed_memory

from .harness import Bench

_LINES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-freed-memory",
        action="store_true",
        help="set malloc as the commands of rest_triton set it, for all variants",
    )
    parser.addoption(
        "--graph",
        default="synthetic:arxiv",
        help="what whole epochs are measured on, and the ops in the place of arxiv: a data set, or the path of an .npz",
    )
    parser.addoption(
        "--peers",
        metavar="PYTHON",
        help="the Python of an environment with DGL and PyG, to measure them, too; CONTRIBUTING.md has its packages",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--keep-freed-memory"):
        keep_freed_memory()
    config.stash[_LINES] = []


@pytest.fixture
def bench(request: pytest.FixtureRequest, benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    tiny = bool(request.config.getoption("benchmark_disable"))
    root = str(tmp_path_factory.getbasetemp()) if tiny else "data"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    option = request.config.getoption
    return Bench(
        benchmark, tiny, option("--graph"), root, device, request.config.stash[_LINES], peers=option("--peers"),
        keep_freed_memory=option("--keep-freed-memory"),
    )  # fmt: skip


def _machine(config: pytest.Config) -> dict[str, Any]:
    return {
        "processor": processor(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "malloc": "freed memory kept" if config.getoption("--keep-freed-memory") else "as it comes",
        "versions": {name: version(name) for name in ("torch", "numba", "numpy")},
    }  # fmt: skip


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    machine_info |= _machine(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_LINES]
    if not lines:
        return
    terminalreporter.section("time relative to ours, best of interleaved rounds; limit: what the machine needs at least")
    terminalreporter.write_line(", ".join(f"{name}: {value}" for name, value in _machine(config).items()))
    if config.getoption("benchmark_disable"):
        terminalreporter.write_line("Tiny shapes: the benchmarks run; their times mean nothing.")
    for line in lines:
        terminalreporter.write_line(line)
