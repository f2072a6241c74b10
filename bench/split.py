"""What an epoch is spent on: every op that torch dispatches is timed and counted where it belongs.

    data        forming batches, cutting subgraphs out, copying features and labels
    aggregate   neighbours' rows added up, and its backward
    dense       matrix products
    activate    normalisation, ReLU, dropout
    history     rows out of and into tables
    refresh     all of REST's forwards, whatever they do
    optimizer
    other       the rest: the loss, elementwise ops, Python

Timing an op costs some microseconds, so the whole is a little more than an epoch without; what is reported are shares of an
epoch that was measured without.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PARTS = ("data", "aggregate", "dense", "activate", "history", "refresh", "optimizer", "other")
# By the beginning of an op's name, without its namespace; the first that fits counts.
OPS = {
    "history_spmm": "aggregate", "halo_spmm": "aggregate", "edge_grad": "aggregate", "_sparse_mm": "aggregate",
    "activate": "activate", "column_moments": "activate", "native_batch_norm": "activate", "relu": "activate",
    "threshold_backward": "activate", "native_dropout": "activate", "bernoulli": "activate",
    "gather_rows": "history", "scatter_rows": "history", "halo": "data",
    "mm": "dense", "addmm": "dense", "_addmm": "dense",
}  # fmt: skip
# What these do depends on who calls them: PyGAS's pipeline pulls rows with them between its layers.
MOVING = ("index_select", "cat", "copy_", "index_put", "slice_backward")


class Split(TorchDispatchMode):
    """Seconds by part while it is entered.

    Args:
        moving: where ops that move rows about belong.
    """

    def __init__(self, moving: str = "other") -> None:
        super().__init__()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.moving = moving
        self._within: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if self._within is None:  # else who is around it counts
            self.seconds[self._part(func, args)] += time.perf_counter() - begin
        return result

    def _part(self, func: Any, args: Any) -> str:
        name = func._schema.name.partition("::")[2]
        if any(isinstance(arg, Tensor) and arg.layout == torch.sparse_csr for arg in args):
            return "aggregate"
        for start, part in OPS.items():
            if name == start or name.startswith(f"{start}_") or (start[0] == "_" and name.startswith(start)):
                return part
        return self.moving if name.startswith(MOVING) else "other"

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """All that happens in the block is of this part, Python too."""
        outer, self._within = self._within, part
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._within = outer
            if outer is None:
                self.seconds[part] += time.perf_counter() - begin

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted as a part."""

        def counted(*args: Any, **options: Any) -> Any:
            with self.within(part):
                return function(*args, **options)

        return counted

    def shares(self, run: Callable[[], object]) -> dict[str, float]:
        """Run it, and say which share of its time each part took; they add up to one."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        begin = time.perf_counter()
        with self:
            run()
        whole = time.perf_counter() - begin
        self.seconds["other"] += whole - sum(self.seconds.values())
        return {part: seconds / whole for part, seconds in self.seconds.items()}
