"""The staleness of histories: the distance of rows, results and gradients from exact ones.

All comparisons use the same weights, in eval mode: no dropout, running statistics. The run's tables and statistics do not
change.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..history.age import NEVER
from ..history.history import INPUT, History
from ..history.streams import COMPUTE
from ..history.table import Table
from ..methods.baselines.full import Full
from ..methods.engine import Engine
from ..methods.gas import GAS
from ..methods.sampled.graphfm_ib import AGGREGATE
from ..nn.inference import Inference
from ..ops import history_spmm
from ..sampling.batch import Batch
from ..utils.errors import UserError
from .metrics import Scores

CHUNK_ROWS = 1 << 15  # rows that are compared at a time
LossFor = Callable[[Batch], Callable[[Tensor], Tensor | None]]


@contextmanager
def exact_engine(engine: Engine, scores: Scores | None = None) -> Iterator[tuple[Engine, Inference]]:
    """(an engine with exact activations in its tables, the pass that filled them: it has the results of any batch).

    One exact pass fills a second set of float32 tables in the same place. They are freed when the block ends.

    Args:
        scores: counts the results of the pass.
    """
    history = engine.history.like(engine.history.widths, torch.float32)
    try:
        fresh = engine.with_history(history)
        with fresh.inference(record_at=0) as exact:
            exact.run() if scores is None else exact.run(scores.add)
            yield fresh, exact
    finally:
        history.close()


def compared(
    engine: Engine, exact: Inference, batches: Sequence[Batch], step: int
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Yield (a batch, its results computed with histories [R, C], its exact results [R, C]).

    exact: by :func:`exact_engine`.
    """
    for batch in batches:
        yield batch, engine.predict(batch, step), exact.result(batch)


@torch.no_grad()
def mean_distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """(mean over rows of ``‖ours - exact‖``, mean over rows of ``‖exact‖``), of pairs of ours and exact.

    Both are [R, D], of any dtype. The approximation error is the first value, for :func:`compared`.
    """
    distance, norm, count = 0.0, 0.0, 0
    for ours, exact in pairs:
        for a, b in zip(ours.split(CHUNK_ROWS), exact.split(CHUNK_ROWS), strict=True):
            truth = b.float()
            distance += float((a.to(truth.device).float() - truth).norm(dim=1).double().sum())
            norm += float(truth.norm(dim=1).double().sum())
        count += exact.shape[0]
    return distance / max(1, count), norm / max(1, count)


def table_staleness(store: History, exact: History) -> tuple[list[float], list[float]]:
    """(mean over nodes of ``‖row - exact activation‖``, its ratio to the mean norm of exact activations), for each table.

    exact: by :func:`exact_engine`.
    """
    store.streams.finish()
    both = [mean_distance([(a.rows, b.rows)]) for a, b in zip(store.tables, exact.tables, strict=True)]
    return [distance for distance, _ in both], [distance / norm if norm > 0 else 0.0 for distance, norm in both]


@torch.no_grad()
def history_error(engine: Engine) -> float | None:
    """The mean over tables of ``‖row - exact row‖`` as a share of ``‖exact row‖``, None without tables.

    Rows that were never written are left out. A table of aggregates is compared with aggregates of exact activations.
    """
    history, shares = engine.history, list[float]()
    history.streams.finish()
    aggregates = history.kinds.get(AGGREGATE)
    method = engine.method
    if aggregates is not None:
        method = GAS(method.config, method.ptr, method.device)
    exact = history.like(method.tables(engine.model)[INPUT] if history.all_tables else [], torch.float32)
    try:
        fresh = engine.with_history(exact, method)
        if exact.tables:
            fresh.fill()
        for ours, theirs in zip(aggregates or history.tables, exact.tables, strict=True):
            written = torch.nonzero(ours.stamp != NEVER).squeeze(1).split(CHUNK_ROWS)

            def pair(rows: Tensor, ours: Table = ours, theirs: Table = theirs) -> tuple[Tensor, Tensor]:
                if aggregates is not None:
                    truth = history_spmm(engine.inputs.adj, rows, engine.inputs.outside(), None, theirs.rows)
                else:
                    truth = theirs.rows[rows.to(theirs.rows.device)]
                return ours.rows[rows.to(ours.rows.device)], truth

            distance, norm = mean_distance(map(pair, written))
            shares += [distance / norm] if norm > 0 else []
    finally:
        exact.close()
    return sum(shares) / len(shares) if shares else None


@dataclass(frozen=True)
class GradientError:
    """The error of one batch's gradient for all weights, computed with histories, against the exact gradient.

    The gradient has two errors. Rows of histories are stale. Gradients do not flow through nodes outside of the batch, also
    if rows are fresh. With ``g(stale)``, ``g(fresh)`` and ``g(exact)`` of the same nodes' loss:

    Args:
        norm: ``‖g(exact)‖``, over the whole graph. error: ``‖g(stale) - g(exact)‖``.
        stale: ``‖g(stale) - g(fresh)‖``: zero with fresh rows. cut: ``‖g(fresh) - g(exact)‖``: independent of the rows.
        output: ``‖h̃ - h‖``, of the results of all rows of the batch as one vector.
        aggregate: for each table ``‖Â (h̄ - h)‖`` over the rows of the batch, with neighbours outside of it only.
        farthest, mean: for each table the largest and the mean ``‖h̄_u - h_u‖`` over the batch's halo.
    """

    norm: float
    error: float
    stale: float
    cut: float
    output: float
    aggregate: list[float]
    farthest: list[float]
    mean: list[float]

    @property
    def relative(self) -> float:
        return self.error / self.norm if self.norm > 0 else 0.0


def gradient_errors(
    engine: Engine, batches: Sequence[Batch], loss_for: LossFor, step: int
) -> Iterator[tuple[Batch, GradientError]]:
    """Yield the gradient errors of every batch that has a training node.

    Memory holds exact counterparts of all tables and a difference as large as one table. Each batch takes a forward and
    backward over the whole graph.

    Args:
        loss_for: returns the loss function of a batch's logits. That function returns None without a training node.

    Example::

        for batch, error in gradient_errors(engine, method.cover(), partial(loss_for, graph, device=device), step):
            print(error.stale / error.norm)
    """
    history = engine.history
    if history.folder is not None:
        raise UserError("history is disk, but gradients are compared with tables in memory; give --history device")
    method = Full(engine.method.config, engine.method.ptr, engine.method.device)
    full = engine.with_history(history.like([], torch.float32), method)
    all_nodes = Batch(history.num_nodes, ranges=((0, history.num_nodes),), device=engine.inputs.device)
    with exact_engine(engine) as (fresh, exact):
        for batch in batches:
            loss_of = loss_for(batch)
            stale = engine.gradients(batch, step, loss_of)
            if stale is None:
                continue
            same_rows = fresh.gradients(batch, step, loss_of)

            def of_batch(logits: Tensor, batch: Batch = batch, loss_of: Any = loss_of) -> Tensor | None:
                return loss_of(batch.take(logits))

            truth = full.gradients(all_nodes, step, of_batch)
            assert same_rows is not None and truth is not None
            aggregate, farthest, mean = _outside(engine, fresh.history, batch)
            yield batch, GradientError(
                norm=float(truth[0].norm()), error=float((stale[0] - truth[0]).norm()),
                stale=float((stale[0] - same_rows[0]).norm()), cut=float((same_rows[0] - truth[0]).norm()),
                output=float((stale[1] - exact.result(batch)).norm()),
                aggregate=aggregate, farthest=farthest, mean=mean,
            )  # fmt: skip


@torch.no_grad()
def _outside(engine: Engine, exact: History, batch: Batch) -> tuple[list[float], list[float], list[float]]:
    """``aggregate``, ``farthest`` and ``mean`` of :class:`GradientError`."""
    adj = engine.inputs.adj
    halo = batch.halo(adj)
    aggregate, farthest, mean = [], [], []
    for ours, theirs in zip(engine.history.tables, exact.tables, strict=True):
        difference = (ours.rows.float() - theirs.rows).to(engine.inputs.device)
        nothing = difference.new_zeros(len(batch), difference.shape[1])
        with engine.maps[COMPUTE].enter(batch) as position:
            aggregate.append(float(history_spmm(adj, batch.rows, position, nothing, difference).norm()))
        norms = difference[halo].norm(dim=1)
        farthest.append(float(norms.max()) if norms.numel() else 0.0)
        mean.append(float(norms.mean()) if norms.numel() else 0.0)
    return aggregate, farthest, mean
