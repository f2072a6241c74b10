"""What the ops are measured on: batches of clusters in the shapes of well-known graphs, and one with no locality.

The graphs are synthetic ones of published size and degree, scaled down until they fit this machine and a few seconds;
``@0.1`` in a name is that scale. ``--graph arxiv.npz`` puts a real one in its place. How many edges stay in the batch
and how large the halo is follows from the clusters and is printed with each table.
The batch's x is float32; the dtype of a case is that of its table.

Not every op meets every case, and the slower alternatives only some: the whole takes minutes, not an hour.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rest_triton.data.datasets import synthetic
from rest_triton.data.partition import Method
from rest_triton.utils.machine import available_memory

from .shapes import Batch, clustered, uniform

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Source:
    """A batch of ``batch_size`` of ``num_parts`` clusters of a graph.

    Args:
        scale, on_gpu: how much of the published graph there is, on a CPU and on a GPU.
        method: METIS where that takes seconds.
    """

    scale: float
    on_gpu: float
    num_parts: int
    batch_size: int
    method: Method


SOURCES = {
    "arxiv": Source(1.0, 1.0, 80, 40, "metis"),
    "products": Source(0.1, 1.0, 40, 5, "stream"),
    "reddit": Source(0.25, 1.0, 40, 10, "metis"),
    "papers100m": Source(0.01, 0.05, 40, 2, "stream"),
}
UNIFORM = "uniform"  # 60,000 rows of 50 neighbours, 70 % of them in-batch, of 600,000 nodes
TINY = "synthetic:nodes=1600,edges=16000,features=4"


@dataclass(frozen=True)
class Case:
    """A graph's name in ``SOURCES``, or ``UNIFORM``; the width of rows and the dtype of the table. ``thorough``: the slow
    alternatives take part, too."""

    graph: str
    width: int
    dtype: str = "float32"
    thorough: bool = False

    def __str__(self) -> str:
        return f"{self.graph}-{self.width}-{self.dtype}"


@dataclass(frozen=True)
class Room:
    """Where cases are built: for a check on tiny shapes or in full, which real graph is in arxiv's place, which device."""

    tiny: bool
    graph: str
    root: str
    device: torch.device

    @property
    def compiler(self) -> str:
        """Torch's for the real thing; for a check, one that compiles nothing and takes no seconds."""
        return "eager" if self.tiny else "inductor"

    def build(self, case: Case) -> tuple[str, Batch]:
        """The case's name, with its scale, and its batch."""
        width = min(case.width, 16) if self.tiny else case.width
        name, batch = self._uniform() if case.graph == UNIFORM else self._clustered(case)
        return f"{name}, width {width}, {case.dtype}", batch.with_rows(width, DTYPES[case.dtype])

    def _uniform(self) -> tuple[str, Batch]:
        rows, degree, nodes = (200, 10, 1_000) if self.tiny else (60_000, 50, 600_000)
        return f"{rows:,} x {degree} uniform of {nodes:,}", uniform(rows, degree, nodes, 1, 0.7).to(self.device)

    def _clustered(self, case: Case) -> tuple[str, Batch]:
        source = SOURCES[case.graph]
        if self.tiny:
            dataset, num_parts, batch_size = TINY, 8, 2
        else:
            dataset, num_parts, batch_size = self._dataset(case.graph, source), source.num_parts, source.batch_size
        name = f"{dataset.removeprefix('synthetic:').removesuffix(',features=1')}, {batch_size} of {num_parts} clusters"
        return name, clustered(dataset, self.root, num_parts, batch_size, source.method, self.device)

    def _dataset(self, graph: str, source: Source) -> str:
        if graph == "arxiv" and not self.graph.startswith("synthetic:"):
            return self.graph
        scale = source.on_gpu if self.device.type == "cuda" else source.scale
        scale = fitting(synthetic.SHAPES[graph], scale, available_memory())
        # Features are not looked at: tables are drawn at the width of the case.
        return f"synthetic:{graph}@{scale:g},features=1"


def fitting(shape: synthetic.Shape, scale: float, memory: int) -> float:
    """The scale, halved until a fifth of the memory suffices to make the graph: tables and alternatives need the rest."""
    while shape.scaled(scale).bytes_needed > memory / 5:
        scale /= 2
    return scale


def of_graphs(width: int) -> Iterator[Case]:
    """One case on each graph."""
    return (Case(graph, width) for graph in SOURCES)


#: Every graph at widths 47 (classes of products, and no whole number of vectors) and 128, and each of 256 and the half
#: dtypes where it weighs most.
AGGREGATES = [
    Case(UNIFORM, 128, thorough=True),
    Case("arxiv", 47, thorough=True),
    Case("products", 47, thorough=True),
    Case("reddit", 47),
    Case("papers100m", 47),
    *of_graphs(128),
    Case("arxiv", 256),
    Case("arxiv", 128, "bfloat16"),
    Case("products", 256, "bfloat16"),
    Case("reddit", 256, "float16"),
    Case("papers100m", 128, "float16"),
]
