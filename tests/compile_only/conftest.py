"""Compiling every kernel takes minutes of one core: it begins with the session, beside other tests, and these come last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILING = pytest.StashKey[subprocess.Popen]()


def start_report(*arguments: str, interpret: bool = False) -> subprocess.Popen:
    """In a process of its own, because tests share theirs with Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "rest_triton.kernels.report", *arguments]
    return subprocess.Popen(
        command, cwd=HERE.parents[1], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_collection_finish(session: pytest.Session) -> None:
    ours = [item for item in session.items if HERE in item.path.parents]
    if any("binaries" in getattr(item, "fixturenames", ()) for item in ours) and not session.config.option.collectonly:
        alone = len(ours) == len(session.items)
        session.config.stash[COMPILING] = start_report("--json", "--jobs", "2" if alone else "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    if COMPILING in config.stash:
        config.stash[COMPILING].terminate()


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> dict[tuple, dict]:
    """What the report says of each kernel, variant, width and target."""
    process = pytestconfig.stash[COMPILING]
    out, said = process.communicate()
    assert process.returncode in (0, 1), said
    return {(row["kernel"], row["variant"], row["width"], row["target"]): row for row in json.loads(out)}
