"""The README's code runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_ops() -> None:
    names = run(BLOCKS[0])
    assert names["x"].grad is not None and names["y"].shape == (500, 128)


def test_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(BLOCKS[1] + "import torch\n" + BLOCKS[2])  # one goes on where the other ends
    assert names["accuracy"] > 0.1 and names["store"].ages(0, names["step"]).never == 0
    assert names["clusters"].num_clusters == 20 and names["z"].shape == (len(names["batch"]), 128)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"prepared", "partitions"}


def test_no_other_code_in_the_readme() -> None:
    assert len(BLOCKS) == 3


def test_commands_in_the_readme_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README.read_text(), re.MULTILINE):
        assert f"\n{target}:" in makefile, target
