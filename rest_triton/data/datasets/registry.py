"""The description of a data set, known without reading it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..graph import Graph
from ..prepared import Workspace


@dataclass(frozen=True)
class Dataset:
    """A named data set: how its graph is built, and its sizes.

    Args:
        build: (root, split, workspace) -> the finished graph. Slow; the result is stored.
        nodes, edges, features, classes: as published, after preparation; ``edges`` counts directed edges.
        splits: the number of splits.
        revision: raise it when ``build`` returns another graph, so that stored graphs are prepared again.
    """

    name: str
    build: Callable[[Path, int, Workspace], Graph]
    nodes: int
    edges: int
    features: int
    classes: int
    splits: int = 1
    multilabel: bool = False
    revision: int = 1
