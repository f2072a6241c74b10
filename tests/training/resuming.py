"""Small runs that are stopped and resumed, for tests."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData, load_data
from rest_triton.training import checkpoint
from rest_triton.training import run as session

NODES, CLASSES, FEATURES = 120, 5, 6
# What differs from one try to the next: where and how fast it ran.
OF_THE_MACHINE = {"seconds", "time", "memory"}


def write_graph(path: Path, seed: int = 0) -> Path:
    """A graph with learnable labels: the best validation score changes every few epochs."""
    draw = np.random.default_rng(seed)
    y = np.sort(draw.integers(0, CLASSES, NODES))  # most neighbours, which have near ids, are of the same class
    x = draw.normal(size=(NODES, FEATURES)) + np.eye(CLASSES, FEATURES)[y]
    part = draw.integers(0, 3, NODES)
    masks = {f"{name}_mask": part == i for i, name in enumerate(("train", "val", "test"))}
    source = draw.integers(0, NODES, 400)
    edges = np.stack([source, (source + draw.integers(1, 20, 400)) % NODES])
    np.savez(path, edge_index=edges, x=x.astype(np.float32), y=y, **masks)
    return path


@dataclass(frozen=True)
class Data:
    """A graph on disk and in memory."""

    folder: Path
    loaded: ClusterData

    @classmethod
    def make(cls, folder: Path, seed: int = 0, **settings: Any) -> "Data":
        write_graph(folder / "tiny.npz", seed)
        return cls(folder, load_data(config_in(folder, **settings)))

    def config(self, **changes: Any) -> Config:
        return config_in(self.folder, **changes)

    def run(self, config: Config, path: Path, resume: Path | None = None, **more: Any) -> session.Run:
        """A finished run."""
        made = session.Run(config, self.loaded, path, resume=resume, **more)
        made.run()
        return made


def config_in(folder: Path, **changes: Any) -> Config:
    settings: dict[str, Any] = dict(
        dataset=str(folder / "tiny.npz"), root=str(folder / "data"), partition="metis", num_parts=6, batch_size=2,
        device="cpu", num_layers=3, hidden_channels=8, dropout=0.3, lr=0.02, epochs=6, method="gas+rest", save_history=True,
    )  # fmt: skip
    return Config(**(settings | changes))


def records(path: Path) -> list[dict[str, Any]]:
    """The epochs of metrics.jsonl without times and memory. Floats are compared exactly."""
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in OF_THE_MACHINE} for line in lines]


def losses(path: Path) -> dict[int, float]:
    found = [(record["epoch"], record["loss"]) for record in records(path)]
    assert len(dict(found)) == len(found), "an epoch is there twice"
    return dict(found)


def newest(path: Path) -> Path:
    return checkpoint.epochs(path / "checkpoints")[-1]


def state_in(path: Path) -> dict[str, Any]:
    """The last checkpoint's content, but for its seconds, and the bytes of its tables."""
    state = checkpoint.read(newest(path))[0]
    assert state.pop("seconds") > 0
    tables = checkpoint.tables_path(newest(path))
    return state | {"name": newest(path).name, "tables": tables.read_bytes() if tables.exists() else b""}


def same(a: Any, b: Any) -> bool:
    """Whether two nested values are bitwise equal."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
