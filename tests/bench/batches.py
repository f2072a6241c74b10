"""Small batches that the benchmarks' parts are tested on."""

from pathlib import Path

import torch

from bench.cases import Case, Room
from bench.shapes import Batch, uniform


def room(folder: Path) -> Room:
    return Room(True, "synthetic:arxiv", str(folder), torch.device("cpu"))


def clustered(folder: Path, width: int = 5, dtype: str = "bfloat16") -> Batch:
    """Of clusters of a power-law graph with self-loops."""
    return room(folder).build(Case("arxiv", width, dtype))[1]


def scattered(width: int = 5) -> Batch:
    """Rows that do not lie side by side, of a directed graph without locality."""
    return uniform(40, 6, 150, width, 0.6)
