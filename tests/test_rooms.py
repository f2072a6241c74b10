"""Imports point downwards, as in the picture in docs/design.md."""

import ast
from pathlib import Path

import rest_triton

PACKAGE = Path(rest_triton.__file__).parent
# From the bottom up. A room may import itself and the rooms before it.
ROOMS = ["utils", "config", "kernels", "ops", "data", "sampling", "history", "nn", "methods", "training", "lab", "commands"]
COMMANDS = {"train", "predict", "prepare", "plan", "doctor"}


def room(module: str) -> str:
    if module == "methods.options":  # settings, without torch: they are in the folder of what they are for
        return "config"
    first = module.split(".")[0]
    return "commands" if first in COMMANDS else first


def imported(path: Path) -> list[str]:
    """The package's modules that a file imports, relative to the package."""
    package = path.relative_to(PACKAGE).parent.parts
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names if alias.name != "__version__"]
            found += [".".join([*base, name]) for name in names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rest_triton."):
            found.append((node.module or "").removeprefix("rest_triton."))
    return found


def test_no_import_points_upwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        if name == "__init__":  # the public names, imported when they are used
            continue
        here = ROOMS.index(room(name))
        for module in imported(path):
            assert room(module) in ROOMS, f"{name} imports {module}, which is in no room"
            if ROOMS.index(room(module)) > here:
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_each_folder_is_a_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(ROOMS), folders - set(ROOMS)
    for folder in folders:
        files = list((PACKAGE / folder).glob("*.py"))
        assert len(files) <= 20, f"{folder} has {len(files)} files: one room, one purpose"
