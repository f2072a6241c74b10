"""Ways to get at the package: from a checkout, installed editable, from a wheel, from a source archive.

Each way gets a new environment. What the package needs (torch alone is minutes of download) is lent to it by the environment
that runs the tests: a ``.pth`` file names its site-packages. Python adds such a folder to ``sys.path`` but does not read the
``.pth`` files in it, and those are how an editable install is found. So the new environment sees torch, and does not see the
rest_triton under development, whichever way that was installed. Nothing is fetched: the package is built by the setuptools
that is here, and installed without its dependencies.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.install

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "rest_triton", "tests", "bench")  # the last two so that they would be packed, if anything packs them
IMPORT_SECONDS = 0.5  # beyond torch's own import: 0.03 on an idle machine, and 3 if torch._dynamo came along

# What a user does first, and what there is afterwards. Runs in the new environments.
FIRST_USE = """
import importlib.metadata, importlib.util, json, sys, time
import torch
begin = time.perf_counter()
import rest_triton.ops
seconds = time.perf_counter() - begin
eager = sorted({"numba", "triton"} & set(sys.modules))
rows = rest_triton.ops.gather_rows(torch.arange(6.0).view(3, 2), torch.tensor([2, 0])).tolist()
import rest_triton.kernels.cpu
kernels = importlib.util.find_spec("kernels")
print(json.dumps(dict(
    seconds=seconds, eager=eager, rows=rows, package=rest_triton.__file__, kernels=rest_triton.kernels.__file__,
    top_level=kernels and str(kernels.origin), loaded=[m for m in sys.modules if m.split(".")[-2:] == ["kernels", "cpu"]],
    ops=[op for op in torch._C._dispatch_get_all_op_names() if op.split("::")[1] == "gather_rows"],
    registered=[line for line in torch._C._dispatch_dump("rest_triton::gather_rows").splitlines() if line.startswith("CPU")],
)))
"""


class Environment:
    """A new environment that borrows the packages of this one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder, self.bin = folder, folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        lent = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        (self.site / "lent.pth").write_text("\n".join(lent) + "\n")
        self.elsewhere = folder / "elsewhere"  # an unrelated folder to run from
        self.elsewhere.mkdir()
        # Nothing of the caller's settings for Python or Triton; kernels are compiled anew, into this folder.
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRITON", "REST_TRITON"))}
        self.variables |= {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        done = subprocess.run(command, cwd=cwd or self.elsewhere, env=self.variables, text=True, capture_output=True)
        assert done.returncode == 0, f"{' '.join(map(str, command))[:200]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        return self.run(self.bin / "python", *arguments, cwd=cwd)

    def pip(self, *arguments: str | Path) -> None:
        # The pip that is lent: it works on the environment of the Python that runs it. --ignore-installed because it sees
        # the lent packages as well, and would want to remove the rest_triton among them.
        offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
        if arguments[0] == "install":
            offline.append("--ignore-installed")
        self.python("-m", "pip", arguments[0], *offline, *arguments[1:])

    def first_use(self, cwd: Path | None = None) -> dict[str, Any]:
        return json.loads(self.python("-c", FIRST_USE, cwd=cwd))


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Environment]:
    return lambda: Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in: what an earlier build left in the checkout must not get in, nor this one's leavings stay there."""
    copy = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "results"))
    return copy


@pytest.fixture(scope="module")
def builder(new_environment: Callable[[], Environment]) -> Environment:
    return new_environment()


@pytest.fixture(scope="module")
def wheel(builder: Environment, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    builder.pip("wheel", "-w", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def from_wheel(new_environment: Callable[[], Environment], wheel: Path) -> Environment:
    environment = new_environment()
    environment.pip("install", wheel)
    return environment


@pytest.fixture(scope="module")
def used_from_wheel(from_wheel: Environment) -> dict[str, Any]:
    return from_wheel.first_use()


def names_in(wheel: Path) -> list[str]:
    return sorted(zipfile.ZipFile(wheel).namelist())


def assert_works(seen: dict[str, Any], package: Path, ours: Path) -> None:
    """An op runs, out of ``package``; it and its kernels are there once, and no package ``kernels`` came from ``ours``."""
    assert seen["rows"] == [[4.0, 5.0], [0.0, 1.0]]
    assert Path(seen["package"]).parent == package
    assert Path(seen["kernels"]).parent == package / "kernels"
    assert seen["loaded"] == ["rest_triton.kernels.cpu"]
    assert seen["ops"] == ["rest_triton::gather_rows"]
    assert len(seen["registered"]) == 1, seen["registered"]
    # There may be one: another project's, lent to the environment.
    assert seen["top_level"] is None or not Path(seen["top_level"]).is_relative_to(ours), seen["top_level"]


def test_the_checkout_links_its_kernels() -> None:
    assert (ROOT / "rest_triton/kernels").is_symlink(), "make it one: ln -s ../kernels rest_triton/kernels"
    assert os.readlink(ROOT / "rest_triton/kernels") == "../kernels"
    assert (ROOT / "kernels").is_dir() and not (ROOT / "kernels").is_symlink()


def test_a_checkout_runs_without_installation(builder: Environment) -> None:
    find = "import importlib.util as u; s = u.find_spec('rest_triton'); print(s.origin if s else '')"
    found = builder.python("-c", find).strip()
    assert not found or not Path(found).is_relative_to(ROOT), "the new environment sees the checkout from anywhere"
    seen = builder.first_use(cwd=ROOT)
    # From its root a checkout does have a folder `kernels` that can be imported; the hook in .pre-commit-config.yaml and
    # `loaded` guard against code that does so.
    assert_works(seen | {"top_level": None}, ROOT / "rest_triton", ROOT)


def test_editable_install(new_environment: Callable[[], Environment], source: Path) -> None:
    environment = new_environment()
    environment.pip("install", "-e", source)
    assert_works(environment.first_use(), source / "rest_triton", source)
    assert (environment.bin / "rest-triton").exists()


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rest_triton"}, "only rest_triton/ and its .dist-info"
    kernels = [p.relative_to(ROOT).as_posix() for p in (ROOT / "kernels").rglob("*.py")]
    assert {f"rest_triton/{name}" for name in kernels} <= set(names)
    assert {"rest_triton/py.typed", "rest_triton/kernels/gpu/__init__.py"} <= set(names)


def test_installed_wheel_works(from_wheel: Environment, used_from_wheel: dict[str, Any]) -> None:
    package = from_wheel.site / "rest_triton"
    assert_works(used_from_wheel, package, from_wheel.folder)
    kernels = package / "kernels"
    assert not kernels.is_symlink()
    assert (kernels / "cpu").is_dir() and (kernels / "gpu").is_dir()
    assert (package / "py.typed").is_file()
    assert not (from_wheel.site / "kernels").exists()


def test_commands_are_installed(from_wheel: Environment) -> None:
    entries = (
        "import importlib.metadata as m\n"
        "for e in m.distribution('rest_triton').entry_points: print(e.name, callable(e.load()))"
    )
    found = from_wheel.python("-c", entries).split("\n")
    names = ("doctor", "lab", "plan", "predict", "prepare")
    commands = ["rest-triton", *(f"rest-triton-{name}" for name in names)]
    assert sorted(filter(None, found)) == [f"{command} True" for command in commands]
    assert (from_wheel.bin / "rest-triton").exists()


def test_importing_the_ops_is_cheap(from_wheel: Environment, used_from_wheel: dict[str, Any]) -> None:
    assert used_from_wheel["eager"] == [], "kernels are imported when an op first needs them"
    if used_from_wheel["seconds"] >= IMPORT_SECONDS:  # another process may have had the cores: a slow import stays slow
        assert from_wheel.first_use()["seconds"] < IMPORT_SECONDS


def test_the_wheel_of_a_source_archive_is_the_same(builder: Environment, source: Path, wheel: Path, tmp_path: Path) -> None:
    build = "import sys, setuptools.build_meta as b; sys.argv = ['']; print(b.build_sdist({!r}))"
    name = builder.python("-c", build.format(str(tmp_path)), cwd=source).strip().splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        assert not [member.name for member in archive if member.issym()], "a link in the archive may lead nowhere"
    builder.pip("wheel", "-w", tmp_path, tmp_path / name)
    (again,) = tmp_path.glob("*.whl")
    assert names_in(again) == names_in(wheel)
