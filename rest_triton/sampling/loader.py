"""A loader of cluster batches for custom training loops."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from ..data.graph import Graph
from ..data.partition import partition
from .batch import Batch, ClusterBatches


@dataclass(frozen=True, eq=False)
class DataBatch(Batch):
    """A batch with the labels and masks of its rows.

    Args:
        graph: with the nodes in the order of the clusters. order: int64[N]; its node i is node ``order[i]`` of the data.
    """

    graph: Graph | None = None
    order: Tensor | None = None

    def _of(self, name: str) -> Tensor:
        per_node = getattr(self.graph, name)
        if per_node is None:
            raise AttributeError(f"the graph has no {name}")
        rows: Tensor = self.take(per_node)
        return rows

    @property
    def y(self) -> Tensor:
        """The labels of the rows."""
        return self._of("y")

    @property
    def train_mask(self) -> Tensor:
        """bool[R]"""
        return self._of("train_mask")

    @property
    def val_mask(self) -> Tensor:
        """bool[R]"""
        return self._of("val_mask")

    @property
    def test_mask(self) -> Tensor:
        """bool[R]"""
        return self._of("test_mask")

    @property
    def n_id(self) -> Tensor:
        """int64[R]: the rows' node ids in the loader's ``data``."""
        assert self.order is not None
        return self.take(self.order)


class ClusterLoader:
    """Batches of clusters that hold every node once per epoch.

    Args:
        data: the graph, by :func:`rest_triton.load` or :func:`rest_triton.from_pyg`.
        num_parts: clusters that it is divided into. batch_size: clusters in a batch.
        shuffle: whether each epoch has another order. seed: of the order.
        device: of the batches' rows. root: a folder that stores the clusters for the next call.

    Example::

        for batch in ClusterLoader(data, num_parts=200, batch_size=20):
            ...
    """

    def __init__(
        self, data: Graph, num_parts: int, batch_size: int = 1, *, shuffle: bool = True, seed: int = 0,
        device: torch.device | str = "cpu", root: Path | str | None = None,
    ) -> None:  # fmt: skip
        if num_parts < 1 or num_parts > data.num_nodes:
            raise ValueError(
                f"num_parts is {num_parts}; the graph has {data.num_nodes} nodes, so give 1 to {data.num_nodes}"
            )
        clusters = partition(data, num_parts, root=root)
        self.graph, self.ptr, self.order = clusters.apply(data), clusters.ptr, clusters.order
        self.shuffle, self.epoch = shuffle, 0
        self.batches = ClusterBatches(clusters.ptr, batch_size, seed=seed, device=device)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[DataBatch]:
        if self.shuffle:
            batches = self.batches.epoch(self.epoch)
            self.epoch += 1
        else:
            size, count = self.batches.batch_size, self.batches.num_clusters
            batches = [self.batches.batch(range(at, min(at + size, count))) for at in range(0, count, size)]
        for batch in batches:
            values = {f.name: getattr(batch, f.name) for f in fields(Batch)}
            yield DataBatch(**values, graph=self.graph, order=self.order)
