"""The error of a method's gradients: what is left of it on average, and what varies from batch to batch.

The weights stay as they are. A batch's gradient ``g`` is what the next step of the run would compute: refreshes, samples,
reads and writes of tables are the method's. It is multiplied so that its mean over an epoch's batches estimates ``G``, the
gradient of the mean loss of all training nodes by backpropagation through the whole graph:

    bias²   ‖E g - G‖² / ‖G‖²         noise²   E ‖g - E g‖² / ‖G‖²         error of a step: bias² + noise²

Both are measured in eval mode (running statistics, no dropout; refreshes as the run has them) and in training mode. There
``G`` is an expectation over dropout, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from ..data.graph import Graph
from ..methods.baselines.full import Full
from ..methods.engine import Engine
from ..methods.loss import mean_loss
from ..methods.refresh import Refresh
from ..sampling.batch import Batch
from ..utils.errors import UserError

APART = 1 << 20  # steps between the dropout of batches and that of the full batch, which must not be the same


@dataclass(frozen=True)
class Estimate:
    """How well the gradients of batches estimate ``G``, as shares of ``‖G‖``.

    Expectations are corrected for the finite number of draws.

    Args:
        bias: ``‖E g - G‖``. standard_error: of ``E g - G``, by which ``bias`` is corrected; a smaller bias is not seen.
        noise: the root of ``E ‖g - E g‖²``. norm: ``‖E g‖``.
        cosine: of the angle of ``E g`` and ``G``. batch_cosine: the mean one of ``g`` and ``G``.
    """

    bias: float
    standard_error: float
    noise: float
    norm: float
    cosine: float
    batch_cosine: float


class Mean:
    """The mean of vectors that are added one by one, in float64, and its error."""

    def __init__(self) -> None:
        self.number, self.total, self.squares = 0, torch.zeros(1, dtype=torch.float64), 0.0

    def add(self, vector: Tensor) -> None:
        vector = vector.double()
        self.number, self.total = self.number + 1, self.total.to(vector.device) + vector
        self.squares += float(vector.square().sum())

    @property
    def mean(self) -> Tensor:
        return self.total / max(1, self.number)

    @property
    def variance(self) -> float:
        """The unbiased estimate of ``E ‖vector - mean‖²``, 0 for a single vector."""
        spread = self.squares - self.number * float(self.mean.square().sum())
        return max(0.0, spread) / (self.number - 1) if self.number > 1 else 0.0


def full_gradients(engine: Engine, graph: Graph, steps: Sequence[int], *, training: bool) -> Iterator[Tensor]:
    """The gradient of the mean loss of all training nodes, [P], for each step. Steps differ in dropout alone."""
    method = Full(engine.method.config, engine.method.ptr, engine.method.device)
    history = engine.history.like([], torch.float32)
    try:
        full, (batch,) = engine.with_history(history, method), method.batches(0)
        for step in steps:
            with _statistics_kept(engine):
                found = full.gradients(batch, step, mean_loss(graph, batch, engine.inputs.device), training=training)
            assert found is not None, "a graph without training nodes is refused when it is loaded"
            yield found[0]
    finally:
        history.close()


def full_gradient(engine: Engine, graph: Graph) -> Tensor:
    """[P]: the gradient of the mean loss of all training nodes for all weights, in eval mode."""
    (found,) = full_gradients(engine, graph, [0], training=False)
    return found


def gradient_error(
    engine: Engine, graph: Graph, step: int, refresh: Refresh | None = None, *, training: bool = False, epochs: int = 2,
    most: int = 16, draws: int = 4,
) -> Estimate | None:  # fmt: skip
    """The error of the gradients of a method's batches, with the current weights and tables. Neither changes.

    None if the draws of the full batch's gradient do not tell it from zero. Memory holds all tables twice.

    Args:
        step: the run's last one. refresh: of the run. training: in training mode.
        epochs: at least 2, over which expectations are taken. most: of an epoch's batches.
        draws: of the full batch's gradient, in training mode.

    Example::

        error = gradient_error(trainer.engine, graph, trainer.step, trainer.refresh, training=True)
    """
    truth, means, all_batches, cosines = Mean(), Mean(), Mean(), 0.0
    for g in full_gradients(
        engine, graph, range(step + APART, step + APART + (draws if training else 1)), training=training
    ):
        truth.add(g)
    target = truth.mean
    numbers = count(step + 1)
    for epoch in range(epochs):
        of_epoch = Mean()
        for g in _gradients(engine, graph, refresh, engine.method.config.epochs + 1 + epoch, numbers, most, training):
            of_epoch.add(g)
            all_batches.add(g)
            cosines += _cosine(g.double(), target)
        means.add(of_epoch.mean)
    found, of_mean, of_truth = means.mean, means.variance / max(1, means.number), truth.variance / truth.number
    size = max(0.0, float(target.square().sum()) - of_truth)
    if size == 0.0:
        return None
    own = max(0.0, float(found.square().sum()) - of_mean)
    bias = max(0.0, float((found - target).square().sum()) - of_mean - of_truth)
    return Estimate(
        bias=(bias / size) ** 0.5, standard_error=((of_mean + of_truth) / size) ** 0.5,
        noise=(all_batches.variance / size) ** 0.5, norm=(own / size) ** 0.5,
        cosine=min(1.0, float(found @ target) / (own * size) ** 0.5) if own > 0 else 0.0,
        batch_cosine=cosines / max(1, all_batches.number),
    )  # fmt: skip


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def _gradients(
    engine: Engine, graph: Graph, refresh: Refresh | None, epoch: int, numbers: Iterator[int], most: int, training: bool
) -> Iterator[Tensor]:  # fmt: skip
    """The gradients [P] of an epoch's batches. The tables are the same for each."""
    method = engine.method
    schedule = None if refresh is None else refresh.state()
    state, batches = method.state(), method.draws(engine, epoch, most)
    shares = _shares(engine, graph, batches)
    with _tables_kept(engine) as restore, _statistics_kept(engine):
        try:
            for batch, share, step in zip(batches, shares, numbers, strict=False):
                yield share * _gradient(engine, graph, refresh, batch, step, training)
                restore()
        finally:
            method.load(state)
            if refresh is not None and schedule is not None:
                refresh.load(schedule)


def _gradient(
    engine: Engine, graph: Graph, refresh: Refresh | None, batch: Batch, step: int, training: bool
) -> Tensor:  # fmt: skip
    """[P]: as in :meth:`Trainer.update`. Zero for a batch without a training node."""
    loss_of = engine.method.loss(graph, batch, engine.inputs.device)
    batch = engine.method.prepare(engine, batch, step)
    batch, pulled = (batch, None) if refresh is None else refresh.before(engine, batch, step)
    found = engine.gradients(batch, step, loss_of, training=training, recording=True, pulled=pulled)
    if found is not None:
        return found[0]
    return torch.zeros(sum(p.numel() for p in engine.model.parameters() if p.requires_grad), device=engine.inputs.device)


def _shares(engine: Engine, graph: Graph, batches: Sequence[Batch]) -> list[float]:
    """What multiplies the gradient of each batch. A mean over its training nodes counts as often as it has such nodes."""
    assert graph.train_mask is not None
    if engine.method.scale != 1.0:
        return [engine.method.scale] * len(batches)
    nodes = [int(batch.take(graph.train_mask).sum()) for batch in batches]
    return [
        1.0 if batch.weight is not None else one * len(batches) / max(1, sum(nodes))
        for batch, one in zip(batches, nodes, strict=True)
    ]


@contextmanager
def _statistics_kept(engine: Engine) -> Iterator[None]:
    """Running statistics after the block are those before it."""
    kept = [(buffer, buffer.clone()) for buffer in engine.model.buffers()]
    try:
        yield
    finally:
        engine.streams.finish()
        for buffer, before in kept:
            buffer.copy_(before)


@contextmanager
def _tables_kept(engine: Engine) -> Iterator["Restore"]:
    restore = Restore(engine)
    try:
        yield restore
    finally:
        restore()


class Restore:
    """Restores all tables to what they were when it was made."""

    def __init__(self, engine: Engine) -> None:
        if engine.history.folder is not None:
            raise UserError("history is disk, but gradients are measured with tables in memory; give --history device")
        engine.streams.finish()
        self.engine = engine
        self.kept = [(table, table.rows.clone(), table.stamp.clone()) for table in engine.history.all_tables]

    def __call__(self) -> None:
        self.engine.streams.finish()
        for table, rows, stamp in self.kept:
            if self.engine.method.keeps_inputs:  # it also writes rows without a stamp
                table.rows.copy_(rows)
            else:
                moved = torch.nonzero(table.stamp != stamp).squeeze(1).to(rows.device)
                table.rows[moved] = rows[moved]
            table.stamp.copy_(stamp)
