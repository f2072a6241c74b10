"""Runs of refresh for tests, whose batches and gradients are watched."""

from typing import Any

import torch
from torch import Tensor

from rest_triton.nn import Context
from rest_triton.sampling.batch import Batch

from ..history.runs import NODES, Run

MODELS = ["gcn", "appnp", "gcnii"]
CACHE: dict[str, Any] = dict(method="refresh", fanout="3", batch_nodes=12, gradient_quantile=0.7, stale_steps=6)
ALL: dict[str, Any] = CACHE | dict(fanout=str(NODES), gradient_quantile=1.0, dropout=0.0, lr=0.0)
EVERYONE = torch.arange(NODES)


class Watched:
    """The prepared batches of a run's steps, and the norms of gradients in each."""

    def __init__(self, run: Run) -> None:
        self.run, self.method = run, run.trainer.method
        self.batches, self.kept = list[Batch](), list[dict[str, Tensor]]()
        prepare, after = self.method.prepare, self.method.after_backward

        def watched(*args: Any, refreshing: bool = False, **options: Any) -> Batch:
            batch = prepare(*args, refreshing=refreshing, **options)
            if not refreshing:
                self.batches.append(batch)
            return batch

        def after_backward(ctx: Context) -> None:
            self.kept.append({name: norms.clone() for name, norms in ctx.kept.items()})
            after(ctx)

        self.method.prepare = watched  # type: ignore[method-assign]
        self.method.after_backward = after_backward  # type: ignore[method-assign]

    def step(self) -> tuple[Batch, dict[str, Tensor]]:
        self.run.step()
        return self.batches[-1], self.kept[-1]


def stamps(run: Run) -> Tensor:
    return run.history.tables[0].stamp.clone()


def hits(batch: Batch) -> Tensor:
    assert batch.samples is not None and batch.samples[-1] is not None and batch.samples[-1].outside is not None
    return batch.samples[-1].outside


def inputs(batch: Batch) -> Tensor:
    """The rows of the last layer's input that the batch computes."""
    assert batch.counts is not None
    return batch.rows[: batch.counts[-2]]
