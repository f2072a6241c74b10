"""Command lines on small graphs, in processes of their own or in this one."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SMALL = "synthetic:nodes=600,edges=5000,features=16,classes=4"
FEW = ["--recipe", "none", "--num-parts", "6", "--batch-size", "2", "--hidden-channels", "16"]
NODES, CLASSES, LABELS = 600, 4, 5

Result = subprocess.CompletedProcess[str]


def run(*arguments: str, cwd: Path) -> Result:
    """Run ``python`` with these arguments and without input."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def begun(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """``python`` with these arguments, to be interrupted. It does not ignore SIGINT as a background process does."""
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, *arguments], cwd=cwd, preexec_fn=heeding, **pipes)


def here(main: Callable[..., Any], *arguments: str, cwd: Path, **more: Any) -> Result:
    """``main`` in this process, which saves the start of Python. An exception that is not SystemExit is passed on."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        for name in ("train", "predict", "prepare"):
            patch.setattr(f"rest_triton.{name}.keep_freed_memory", lambda: True)
        try:
            main(arguments, **more)
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(arguments, code, out.getvalue(), err.getvalue())


def flags(*arguments: str, dataset: str = SMALL, epochs: int = 3) -> list[str]:
    """Of a small training run."""
    return ["--dataset", dataset, *FEW, "--epochs", str(epochs), *arguments]


def side_by_side(**commands: Any) -> dict[str, Result]:
    """The results of calls, two at a time, as a small run spends most of its time on the start of Python."""
    with ThreadPoolExecutor(2) as pool:
        begun = {name: pool.submit(command) for name, command in commands.items()}
    return {name: result.result() for name, result in begun.items()}


def folder_in(result: Result, cwd: Path) -> Path:
    """The folder of results in a run's output."""
    assert result.returncode == 0, result.stderr
    return cwd / next(line for line in result.stdout.splitlines() if line.startswith("results in ")).split(" ", 2)[2]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def write_graph(path: Path, *, several: bool = False) -> dict[str, Any]:
    """An .npz with learnable labels, in random order. Some labels of test nodes are unknown."""
    draw = np.random.default_rng(0)
    kind = draw.integers(0, CLASSES, NODES)
    of_kind = [np.flatnonzero(kind == c) for c in range(CLASSES)]
    source = draw.integers(0, NODES, 3000)
    target = np.array([draw.choice(of_kind[kind[s]]) if draw.random() < 0.8 else draw.integers(NODES) for s in source])
    part = draw.permutation(NODES) % 3
    if several:
        y = (draw.random((CLASSES, LABELS)) < 0.4).astype(np.int8)[kind] ^ (draw.random((NODES, LABELS)) < 0.05)
    else:
        y = kind.copy()
    y = y.astype(np.int8 if several else np.int64)
    y[np.flatnonzero(part == 2)[:7]] = -1
    arrays = dict(
        edge_index=np.stack([source, target]), y=y,
        x=(draw.normal(size=(NODES, 16)) + 2 * np.eye(CLASSES, 16)[kind]).astype(np.float32),
        **{f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))},
    )  # fmt: skip
    np.savez(path, **arrays)
    return arrays


def refusal(main: Callable[[Sequence[str]], None], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line, here in this process, says on standard error: one line, with exit code 1. Nothing is touched in
    the current folder, but for what is prepared of data."""

    def dates() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in Path().rglob("*") if p.is_file() and p.parts[0] != "data"}

    before = dates()
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 1 and said.count("\n") == 1, said
    assert dates() == before
    return said.strip()
