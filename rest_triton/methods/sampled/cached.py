"""Refresh (Huang et al., 2023, FreshGNN): sampled neighbours, and a cache of embeddings with small gradients."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...config import Config
from ...data.graph import Graph
from ...history.age import NEVER
from ...history.slots import NONE, Slots
from ...nn.context import Context
from ...nn.model import HistoryGNN
from ...ops import history_spmm
from ...sampling.batch import Batch
from ..engine import Engine
from .base import SampledMethod

NORMS, HITS = "gradient norms of the computed rows", "gradient norms of the cached rows"


class Cached(SampledMethod):
    """The inputs of the last layer are cached. A cached neighbour is neither computed nor are its neighbours sampled.

    The cache is a table. A row is in it if it was written, by a step at most ``stale_steps`` ago. After backward, the
    ``gradient_quantile`` of the norms of the gradients of all rows that the last layer has read is a limit. Computed rows
    below it are written. Rows that are not below it are not in the cache afterwards. Targets are always computed.

    With ``cache_rows`` the table has so many rows, which nodes get in turn (:class:`Slots`). If a step has more rows to
    write, it writes those with the smallest gradients.

    REST recomputes the oldest rows of the cache, as many as a batch has nodes. REST-IS recomputes those that a batch reads.
    """

    records_late, fills = True, False
    ahead = False  # a sample depends on the cache

    def __init__(self, config: Config, ptr: Tensor, device: str, graph: Graph | None = None) -> None:
        super().__init__(config, ptr, device, graph)
        self.slots: Slots | None = None
        self._empty()

    def _empty(self) -> None:
        if self.table_rows is not None:
            self.slots = Slots(self.num_nodes, self.table_rows, self.device)

    @property
    def table_rows(self) -> int | None:
        rows = min(self.config.cache_rows, self.num_nodes)
        return rows or None

    def begin(self, engine: Engine, step: int) -> None:
        """The cache is empty at first."""
        self._empty()

    def first_table(self, model: HistoryGNN) -> int:
        return max(super().first_table(model), model.num_layers - 1)

    def prepare(self, engine: Engine, batch: Batch, step: int, *, draw: int = 0, refreshing: bool = False) -> Batch:
        if refreshing:
            batch = self._oldest(engine, batch, step) if batch.clusters else batch
            return self.sampled(engine, batch, step, draw=draw, refreshing=True)
        known = partial(self._kept, engine, step)
        made, slots = self.sampled(engine, batch, step, draw=draw, refreshing=False, known=known), self.slots
        sample = None if made.samples is None else made.samples[-1]
        if slots is None or made.samples is None or sample is None or sample.outside is None:
            return made
        return replace(made, samples=(*made.samples[:-1], replace(sample, slots=slots.of(sample.outside))))

    def _kept(self, engine: Engine, step: int, nodes: Tensor) -> Tensor:
        """bool[K]: whether nodes are in the cache at a step."""
        if not engine.history.tables or self.config.stale_steps == 0:
            return torch.zeros_like(nodes, dtype=torch.bool)
        if (slots := self.slots) is None:
            return self._valid(engine.history.stamp(0, nodes), step)
        places = slots.of(nodes)
        return (places != NONE) & self._valid(engine.history.stamp(0, places.clamp(min=0)), step)

    def _valid(self, stamp: Tensor, step: int) -> Tensor:
        return (stamp != NEVER) & (step - stamp <= self.config.stale_steps)

    def _oldest(self, engine: Engine, batch: Batch, step: int) -> Batch:
        """The cached rows with the oldest stamps before this step's, as many as the batch has nodes."""
        if not engine.history.tables:
            return Batch(self.num_nodes, nodes=batch.rows[:0], device=batch.rows.device)
        stamp = engine.history.stamp(0).to(batch.rows.device)
        kept = torch.nonzero(self._valid(stamp, step) & (stamp < step)).squeeze(1)
        kept = kept[stamp[kept].argsort(stable=True)[: len(batch)]]
        if (slots := self.slots) is not None:
            kept = slots.node_of[kept]
        return Batch(self.num_nodes, nodes=kept, device=kept.device)

    def aggregate(self, ctx: Context, **mix: Any) -> Tensor:
        sample, x, z = ctx.sample, ctx._input(), ctx.aggregate(**mix)
        if sample is None or sample.outside is None or not x.requires_grad or not ctx.recording:
            return z  # not the last layer, or without backward
        reverse, hits = sample.adj.reverse, sample.outside.numel()
        scale = 1.0 - mix.get("alpha", 0.0) * (mix.get("residual") is not None)

        def of_computed(grad: Tensor) -> None:
            ctx.kept[NORMS] = grad.norm(dim=1)

        def of_cached(grad: Tensor) -> None:
            assert reverse is not None, "a sample for training has its reverse"
            rows = torch.arange(reverse.num_nodes - hits, reverse.num_nodes, device=grad.device)
            ctx.kept[HITS] = scale * history_spmm(reverse, rows, sample.row_position, grad.contiguous()).norm(dim=1)

        x.register_hook(of_computed)  # which sees the sum over all uses of x
        if hits:
            z.register_hook(of_cached)
        return z

    def after_forward(self, ctx: Context) -> None:
        if not ctx.refreshing:
            return
        if (slots := self.slots) is None:
            return ctx.record_all()
        for _, rows, h in ctx.unrecorded:
            places = slots.of(rows.rows)
            self._push(ctx, places[places != NONE], h[places != NONE])
        ctx.unrecorded = []

    def after_backward(self, ctx: Context) -> None:
        if NORMS not in ctx.kept or not ctx.unrecorded or ctx.batch.samples is None:
            return
        (_, rows, h), sample, computed = ctx.unrecorded[-1], ctx.batch.samples[-1], ctx.kept[NORMS]
        cached = ctx.kept.get(HITS, computed[:0])
        limit = _quantile(torch.cat([computed, cached]), self.config.gradient_quantile)
        admitted, evicted = torch.nonzero(computed < limit).squeeze(1), rows.rows[~(computed < limit)]
        assert sample is not None and sample.outside is not None, "norms are of a sampled layer"
        if cached.numel():
            evicted = torch.cat([evicted, sample.outside[cached >= limit]])
        if (slots := self.slots) is None:
            self._push(ctx, rows.rows[admitted], h[admitted])
            return self._evict(ctx, evicted)
        if admitted.numel() > len(slots):
            admitted = admitted[computed[admitted].argsort(stable=True)[: len(slots)]]
        freed, places = slots.free(evicted), slots.claim(rows.rows[admitted])
        self._push(ctx, places, h[admitted])
        self._evict(ctx, freed[~torch.isin(freed, places)])

    def _push(self, ctx: Context, places: Tensor, h: Tensor) -> None:
        ctx.history.push(0, Batch(len(ctx.history.tables[0].rows), nodes=places, device=places.device), h, ctx.step)

    def _evict(self, ctx: Context, places: Tensor) -> None:
        table = ctx.history.tables[0]
        ctx.streams.submit(
            ctx.streams.current, lambda: table.stamp.index_fill_(0, places.to(table.stamp.device), NEVER),
            writes=[table.resource],
        )  # fmt: skip

    def reads(self, engine: Engine, batch: Batch) -> Tensor:
        """The cached rows that the batch reads."""
        sample = None if batch.samples is None else batch.samples[-1]
        return batch.rows[:0] if sample is None or sample.outside is None else sample.outside

    def state(self) -> dict[str, Any]:
        return {} if self.slots is None else self.slots.state()

    def load(self, state: dict[str, Any]) -> None:
        if self.slots is not None:
            self.slots.load(state)


def _quantile(values: Tensor, share: float) -> float:
    """The value that a share of the values is below. Infinite for 1, and then all values are."""
    count = round(share * values.numel())
    if count >= values.numel():
        return float("inf")
    return float(values.kthvalue(count + 1).values)
