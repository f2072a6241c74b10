"""Forwards and backwards of a model by a method: training, refreshes on another stream, and exact inference."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..data.features import dense
from ..history.constant import Storage
from ..history.history import History
from ..history.streams import COMPUTE, REFRESH, Resource
from ..history.table import Rows
from ..nn.context import Context
from ..nn.features import Features, NodeRows
from ..nn.inference import Inference, inference
from ..nn.inputs import Inputs
from ..nn.model import HistoryGNN
from ..nn.norm import snapshot
from ..ops import Adjacency
from ..sampling.batch import Batch, PositionMaps
from ..sampling.reach import Reach
from .base import Method
from .loss import Loss
from .options import refuse_sparse_first

DEVICE = Storage()


class Engine:
    """Runs a model on batches of a graph.

    Args:
        model: computes the batches. method: reads their neighbours. adj: the normalised adjacency.
        x: features [N, F]. Sparse ones are made dense for a model without ``sparse_features``.
        history: the tables that the method needs.
        storage: of the features' aggregate. aggregated: the aggregate, where it is known.
        edge_dropout: share of edges that training forwards leave out. seed: of all dropout.
        history_dropout: see :class:`Inputs`.
        amp: run forwards under torch's autocast to bfloat16.
    """

    def __init__(
        self, model: HistoryGNN, method: Method, adj: Adjacency, x: NodeRows, history: History, *,
        storage: Storage = DEVICE, aggregated: Features | None = None, edge_dropout: float = 0.0, seed: int = 0,
        amp: bool = False, history_dropout: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.method, self.history, self.amp = model, method, history, amp
        if not isinstance(x, Features):
            x = Features(x if model.sparse_features else dense(x))
        if x.sparse and not model.encodes:
            refuse_sparse_first(method.config)
        self.inputs = Inputs(
            adj, x, history, storage=storage, _aggregated=aggregated, edge_dropout=edge_dropout, seed=seed,
            first_table=method.first_table(model), encodes=model.encodes, exact_first=method.config.first == "exact",
            history_dropout=history_dropout,
        )  # fmt: skip
        # Each stream has a pool of its own, so that no stream waits for a map of another.
        self.maps = {stream: PositionMaps(adj.num_nodes, self.inputs.device) for stream in (COMPUTE, REFRESH)}
        self.weights = Resource("weights")  # and the features' aggregate
        self._open: Context | None = None
        # Also where nothing is computed: the first refresh comes after the copies of weights and features.
        once = not (model.encodes or self.inputs.features.sparse)
        self.streams.submit(COMPUTE, lambda: self.inputs.aggregated() if once else None, writes=[self.weights])

    @property
    def streams(self) -> Any:
        return self.history.streams

    def with_history(self, history: History, method: Method | None = None) -> "Engine":
        """An engine for the same model and graph with other tables."""
        i = self.inputs
        return Engine(
            self.model, method or self.method, i.adj, i.features, history, storage=i.storage, aggregated=i._aggregated,
            edge_dropout=i.edge_dropout, seed=i.seed,
            amp=self.amp, history_dropout=i.history_dropout,
        )  # fmt: skip

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.inputs.device.type, torch.bfloat16) if self.amp else nullcontext()

    @contextmanager
    def _context(self, batch: Batch, stream: str, **options: Any) -> Iterator[Context]:
        ctx = self.method.context(self.inputs, batch, self.maps[stream], self.method, **options)
        try:
            yield ctx
        finally:
            ctx.close()

    @torch.no_grad()
    def refresh(
        self,
        batch: Batch,
        step: int,
        *,
        draw: int = 1,
        training: bool = True,
        running: bool = False,
        copies: Sequence[Rows | None] | None = None,
        copies_at: int = 0,
        backward: bool = False,
    ) -> None:
        """Compute the rows of a batch with the current weights and write them into the tables, on the refresh stream.

        running: normalise by running statistics, with dropout if ``training``.
        backward: also run backward, which writes tables of gradients. Gradients of weights are not computed.
        """
        if not self.history.all_tables:
            return
        options: dict[str, Any] = dict(step=step, draw=draw, training=training, running=running)
        options |= dict(refreshing=True, complete=backward or self.method.refreshes_last)
        options |= dict(copies=copies, copies_at=copies_at)

        def forward() -> None:
            prepared = self.method.prepare(self, batch, step, draw=draw, refreshing=True)
            # A training forward on the other stream may update the running statistics at the same time.
            targets = len(prepared) if prepared.counts is None else prepared.counts[-1]
            needs_running = running or not training or targets < 2
            statistics = snapshot(self.model, self.streams, self.inputs.statistics) if needs_running else None
            with (
                self._context(prepared, REFRESH, statistics=statistics, **options) as ctx,
                torch.set_grad_enabled(backward),
            ):
                with self._autocast():
                    logits = self.model(ctx)
                if ctx.differentiable is not None:
                    assert self.method.graph is not None, "a refresh with backward needs a method with a graph"
                    loss = self.method.loss(self.method.graph, batch, self.inputs.device)(logits.float())
                    if loss is not None:
                        torch.autograd.grad(loss, ctx.differentiable)

        inputs = [] if batch.nodes is None else [batch.nodes]
        inputs += [buffer.rows for buffer in copies or () if buffer is not None]
        self.streams.submit(REFRESH, forward, reads=[self.weights], inputs=inputs)

    def train(
        self,
        batch: Batch,
        step: int,
        loss_of: Loss,
        *,
        pulled: Sequence[Rows | None] | None = None,
        probe: Callable[[str, Tensor], None] | None = None,
    ) -> Tensor | None:
        """Run forward and backward of a batch, and add to the gradients. Returns the detached loss.

        Args:
            step: its number; rows are stamped with it.
            loss_of: returns the loss of the batch's result, None without a training node. The rows are written in any case.
            pulled: the halo's rows, where they are on the device already. probe: see :class:`Context`.
        """
        recording = bool(self.history.all_tables)
        with self._context(batch, COMPUTE, step=step, pulled=pulled, probe=probe, recording=recording) as ctx:
            with self._autocast():
                logits = self.model(ctx)
            loss = loss_of(logits.float())
            if loss is not None:
                loss.backward()
                self.method.after_backward(ctx)
        return None if loss is None else loss.detach()

    def forward(self, batch: Batch, step: int, *, pulled: Sequence[Rows | None] | None = None) -> Tensor:
        """[R, C]: the result of a training forward. Run backward before the next call."""
        self.leave()
        self._open = ctx = self.method.context(
            self.inputs,
            batch,
            self.maps[COMPUTE],
            self.method,
            step=step,
            pulled=pulled,
            recording=bool(self.history.all_tables),
        )
        with self._autocast():
            logits: Tensor = self.model(ctx)
        return logits.float()

    def leave(self) -> None:
        """End the last :meth:`forward` and free its position maps."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @torch.no_grad()
    def predict(self, batch: Batch, step: int) -> Tensor:
        """[R, C]: the result of a batch in eval mode, with histories. Nothing is written."""
        with self._context(batch, COMPUTE, step=step, training=False, recording=False) as ctx:
            logits: Tensor = self.model(ctx)
            return logits

    def gradients(
        self, batch: Batch, step: int, loss_of: Loss, *, training: bool = False, recording: bool = False,
        pulled: Sequence[Rows | None] | None = None,
    ) -> tuple[Tensor, Tensor] | None:  # fmt: skip
        """(gradient of a batch's loss for all weights as one vector, its result), in eval mode, with histories.

        ``grad`` of the weights does not change. Returns None for a batch without a training node.

        Args:
            training: in training mode. It moves running statistics. recording: write tables, as a training step does.
            pulled: see :meth:`train`.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        options: dict[str, Any] = dict(training=training, recording=recording and bool(self.history.all_tables))
        with self._context(batch, COMPUTE, step=step, pulled=pulled, **options) as ctx:
            logits = self.model(ctx)
            loss = loss_of(logits)
            if loss is None:
                return None
            used = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, used, strict=True)]
        return torch.cat([g.flatten() for g in gradients]), logits.detach()

    def update(self, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        """Update the weights after all forwards have read them. clip: the largest norm of the gradient; 0: no limit."""

        def move() -> None:
            if self.method.scale != 1.0:
                for p in self.model.parameters():
                    if p.grad is not None:
                        p.grad.mul_(self.method.scale)
            if clip > 0.0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            optimizer.step()

        self.streams.submit(COMPUTE, move, writes=[self.weights])

    def inference(self, *, record_at: int | None = None, reach: Reach | None = None) -> AbstractContextManager[Inference]:
        """An exact pass over scratch tables. With ``record_at`` it writes the run's tables, stamped with it.

        reach: of the nodes with a result. Default: all nodes.
        """
        return inference(
            self.inputs, self.model, self.maps[COMPUTE], self.method, record_at=record_at, reach=reach,
            context=self.method.layerwise,
        )  # fmt: skip

    def exact(self, *, record_at: int | None = None) -> Tensor:
        """[N, C]: the exact result for all nodes, in eval mode. ``record_at`` is that of :meth:`inference`."""
        with self.inference(record_at=record_at) as exact_pass:
            return exact_pass.collect()

    def fill(self, step: int = 0) -> None:
        """Write all rows of all tables by one exact pass."""
        if self.history.tables:
            with self.inference(record_at=step, reach=self.method.reach) as exact_pass:
                exact_pass.run()
