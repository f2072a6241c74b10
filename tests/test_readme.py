"""The README's code runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_a_model_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run(BLOCKS[0])
    data = names["data"]
    right = names["logits"].argmax(1) == data.y
    assert right[data.test_mask].float().mean() > 4 / data.num_classes  # after one epoch of five steps
    assert names["rest"].step == len(names["loader"]) == 5


def test_one_op() -> None:
    names = run(BLOCKS[1])
    assert names["z"].shape == (500, 128) and names["x"].grad.any()


def test_no_other_code_in_the_readme() -> None:
    assert len(BLOCKS) == 2


def test_commands_in_the_readme_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    found = re.findall(r"`make (\w+)`", README.read_text())
    assert {"train", "test", "bench"} <= set(found)
    for target in found:
        assert f"\n{target}:" in makefile, target


def test_length() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) < 130
    assert max(len(line) for line in lines if not line.startswith("|")) <= 100
