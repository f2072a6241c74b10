"""The README's code runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_in_the_readme(block: str) -> None:
    names: dict = {}
    exec(block, names)
    assert names["x"].grad is not None and names["y"].shape == (500, 128)


def test_commands_in_the_readme_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README.read_text(), re.MULTILINE):
        assert f"\n{target}:" in makefile, target
