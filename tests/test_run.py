"""tests/run.sh, which `make test` and `make quick` call: nothing is left out, and every exit code counts."""

import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
case "$(basename "$0") $*" in *{failing}*) echo broken; exit 3;; esac
echo fine
"""


def run(folder: Path, what: str, failing: str = "nothing") -> tuple[int, str, list[str]]:
    """Runs it with stubs in the place of python, ruff and mypy: its exit code, what it printed, and what it called."""
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    for name in ("python", "ruff", "mypy"):
        (folder / name).write_text(STUB.format(calls=calls, failing=failing))
        (folder / name).chmod(0o755)
    done = subprocess.run(["bash", TESTS / "run.sh", folder, what], capture_output=True, text=True)
    return done.returncode, done.stdout, calls.read_text().splitlines()


def test_everything_is_called_once(tmp_path: Path) -> None:
    status, out, calls = run(tmp_path, "all")
    assert status == 0 and "FAILED" not in out
    assert {"ruff check", "ruff format --check", "mypy "} <= set(calls)
    paths = [word for call in calls if "pytest" in call for word in call.split(" -q ")[1].split()]
    folders = {f"tests/{path.parent.relative_to(TESTS).parts[0]}" for path in TESTS.glob("*/**/test_*.py")}
    files = {f"tests/{path.name}" for path in TESTS.glob("test_*.py")}
    assert sorted(paths) == sorted([*folders, *files, "bench", "--benchmark-disable"])


@pytest.mark.parametrize("what", ["all", "quick"])
@pytest.mark.parametrize("failing", ["mypy", "tests/history", "tests/ops", "ruff"])
def test_every_exit_code_counts(what: str, failing: str, tmp_path: Path) -> None:
    status, out, calls = run(tmp_path, what, failing)
    assert status == 1 and "broken" in out
    if failing == "ruff":
        assert calls == ["ruff check"]
    else:
        assert out.count("FAILED (3)") == 1 and len(calls) > 4  # the others went on
