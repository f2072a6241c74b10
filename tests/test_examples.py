"""Each example runs, and the package's names are imported when they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHORT = {
    "pyg_layer": "--dataset synthetic:arxiv@0.02 --num-parts 8 --batch-size 2 --method gas+rest --epochs 1 --num-layers 2"
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 40, f"{path.name} has {len(lines)} lines"
    done = subprocess.run(
        [sys.executable, str(path), *SHORT.get(path.stem, "").split()], cwd=tmp_path, capture_output=True, text=True,
        env=_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    if path.stem == "own_model":
        assert float(done.stdout.split()[-1]) > 0.8, done.stdout


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_import_is_lazy() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import rest_triton as rt; s = time.perf_counter() - t; "
        "assert s < 0.1, s; assert 'torch' not in sys.modules and 'numba' not in sys.modules; "
        "assert all(getattr(rt, name) is not None for name in rt.__all__); print(len(rt.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_unknown_name_lists_the_known_ones() -> None:
    import rest_triton

    with pytest.raises(AttributeError, match="it offers APPNP, GAT"):
        _ = rest_triton.GTC
