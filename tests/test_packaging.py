"""The package as it is delivered: a source archive, the wheel that is built from it, and that wheel installed.

The wheel is installed into a new environment. What the package needs (torch alone is minutes of download) is lent to it by
the environment that runs the tests: a ``.pth`` file names its site-packages. Python adds such a folder to ``sys.path`` but
does not read the ``.pth`` files in it, and those are how an editable install is found. So the new environment sees torch,
and does not see the rest_triton under development. Nothing is fetched: the setuptools that is here builds the package, and
the wheel is installed without its dependencies.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.install, pytest.mark.thorough]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "rest_triton", "tests", "bench")  # the last two so that they would be packed, if anything packs them
IMPORT_SECONDS = 0.5  # of processor time, beyond torch's own import: 0.03, and 3 if torch._dynamo came along
COMMANDS = ["rest-triton", *(f"rest-triton-{name}" for name in ("doctor", "lab", "plan", "predict", "prepare"))]

BUILD = "import sys, setuptools.build_meta as build; out, sys.argv = sys.argv[1], ['']; build.build_{step}(out)"

# What a user does first, and what there is afterwards. Runs in the new environment.
FIRST_USE = """
import importlib.metadata, importlib.util, json, sys, time
import rest_triton
early = "torch" in sys.modules
import torch
begin = time.process_time()
import rest_triton.ops
seconds = time.process_time() - begin
eager = sorted({"numba", "triton"} & set(sys.modules))
rows = rest_triton.ops.gather_rows(torch.arange(6.0).view(3, 2), torch.tensor([2, 0])).tolist()
import rest_triton.kernels.cpu
kernels = importlib.util.find_spec("kernels")
print(json.dumps(dict(
    early=early, seconds=seconds, eager=eager, rows=rows, package=rest_triton.__file__, kernels=rest_triton.kernels.__file__,
    top_level=kernels and str(kernels.origin), loaded=[m for m in sys.modules if m.split(".")[-2:] == ["kernels", "cpu"]],
    ops=[op for op in torch._C._dispatch_get_all_op_names() if op.split("::")[1] == "gather_rows"],
    registered=[line for line in torch._C._dispatch_dump("rest_triton::gather_rows").splitlines() if line.startswith("CPU")],
    commands=[e.name for e in importlib.metadata.distribution("rest_triton").entry_points if callable(e.load())],
)))
"""


class Environment:
    """A new environment that sees the packages of this one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder, self.bin = folder, folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        lent = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        (self.site / "lent.pth").write_text("\n".join(lent) + "\n")
        # Nothing of the caller's settings for Python or Triton.
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRITON", "REST_TRITON"))}
        self.variables |= {"PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        done = subprocess.run(command, cwd=cwd or self.folder, env=self.variables, text=True, capture_output=True)
        assert done.returncode == 0, f"{' '.join(map(str, command))[:200]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        return self.run(self.bin / "python", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def archive(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy: what an earlier build left in the checkout must not get in, nor this one's leavings stay there."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("archive")
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "results"))
    environment.python("-c", BUILD.format(step="sdist"), out, cwd=copy)
    (built,) = out.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(environment: Environment, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(archive, source)
    (top,) = source.iterdir()
    environment.python("-c", BUILD.format(step="wheel"), out, cwd=top)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(environment: Environment, wheel: Path) -> Environment:
    # The pip that is lent: it works on the environment of the Python that runs it. --ignore-installed because it sees
    # the lent packages as well, and would want to remove the rest_triton among them.
    options = ["--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check", "--no-compile", "-q"]
    environment.python("-m", "pip", "install", *options, wheel)
    return environment


def test_the_checkout_links_its_kernels() -> None:
    assert (ROOT / "rest_triton/kernels").is_symlink(), "make it one: ln -s ../kernels rest_triton/kernels"
    assert os.readlink(ROOT / "rest_triton/kernels") == "../kernels"
    assert (ROOT / "kernels").is_dir() and not (ROOT / "kernels").is_symlink()


def test_the_archive_has_no_links(archive: Path) -> None:
    with tarfile.open(archive) as members:
        assert not [member.name for member in members if member.issym()], "a link in the archive may lead nowhere"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rest_triton"}, "only rest_triton/ and its .dist-info"
    package = [*(ROOT / "rest_triton").rglob("*.py"), *(ROOT / "rest_triton/recipes").glob("*.yaml")]
    expected = {path.relative_to(ROOT).as_posix() for path in package}
    expected |= {f"rest_triton/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "kernels").rglob("*.py")}
    assert expected | {"rest_triton/py.typed"} <= names
    assert "rest_triton/kernels/gpu/__init__.py" in expected


def test_the_installed_wheel_works(installed: Environment) -> None:
    """An op runs out of the package; it and its kernels are there once, and there is no package ``kernels`` of ours."""
    seen: dict[str, Any] = json.loads(installed.python("-c", FIRST_USE))
    package = installed.site / "rest_triton"
    assert seen["rows"] == [[4.0, 5.0], [0.0, 1.0]]
    assert Path(seen["package"]).parent == package and Path(seen["kernels"]).parent == package / "kernels"
    assert seen["loaded"] == ["rest_triton.kernels.cpu"] and seen["ops"] == ["rest_triton::gather_rows"]
    assert len(seen["registered"]) == 1, seen["registered"]
    # There may be a top-level ``kernels``: another project's, lent to the environment.
    assert seen["top_level"] is None or not Path(seen["top_level"]).is_relative_to(installed.folder), seen["top_level"]
    assert not (package / "kernels").is_symlink() and not (installed.site / "kernels").exists()
    assert not seen["early"], "import rest_triton alone imports torch"
    assert seen["eager"] == [], "kernels are imported when an op first needs them"
    assert seen["seconds"] < IMPORT_SECONDS
    assert sorted(seen["commands"]) == COMMANDS
    for command in COMMANDS:
        assert os.access(installed.bin / command, os.X_OK), command
