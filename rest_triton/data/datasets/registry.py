"""What is known about a data set before any of it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..graph import Graph
from ..prepared import Workspace


@dataclass(frozen=True)
class Dataset:
    """A named data set: how its graph is made, and how large that will be.

    Args:
        build: (root, split, workspace) -> the finished graph. Slow; the result is stored and not built again.
        nodes, edges, features, classes: as published, after preparation; edges are directed ones.
        package: what ``build`` imports.
        splits: how many ways of splitting the nodes there are.
        revision: raised when ``build`` comes to return something else: graphs stored before are then made again.
    """

    name: str
    build: Callable[[Path, int, Workspace], Graph]
    nodes: int
    edges: int
    features: int
    classes: int
    package: str
    splits: int = 1
    multilabel: bool = False
    directed: bool = False
    revision: int = 1
