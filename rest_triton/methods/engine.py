"""One step of history-based training: refreshes, forward, backward, on streams that run beside each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..history.history import Staged
from ..history.streams import COMPUTE, REFRESH, Resource
from ..nn.context import View
from ..nn.inference import PIECE, Inference
from ..nn.scene import Scene
from ..sampling.batch import Batch, PositionMaps


def tables_of(model: Module, exact_input: bool = False) -> list[int]:
    """The widths of the tables that a model needs: what it starts with has none where that is computed anew."""
    widths: list[int] = list(model.widths)  # type: ignore[arg-type]
    return widths[1:] if exact_input else widths


class Engine:
    """Runs a model on batches of a graph.

    Args:
        scene: the graph, its features and the tables. model: called with a :class:`View`.
        amp: forwards in bfloat16 where torch's autocast says that it is safe.

    Example::

        engine = Engine(scene, model)
        engine.fill(step=0)
        loss = engine.step(batch, 1, lambda logits: loss_of(logits, batch), optimizer, refresh=[another])
    """

    def __init__(self, scene: Scene, model: Module, *, amp: bool = False) -> None:
        self.scene, self.model, self.amp = scene, model, amp
        self.store, self.streams = scene.store, scene.store.streams
        first = getattr(model, "starts_with_aggregate", False)
        if first and scene.exact_input:
            raise ValueError(f"{type(model).__name__} reads features in its first layer: exact_input means nothing to it")
        # A pool for each stream: a map never leaves its stream, so nobody waits for one.
        self.maps = {stream: PositionMaps(scene.adj.num_nodes, scene.x.device) for stream in (COMPUTE, REFRESH)}
        self.weights = Resource("weights")  # and whatever else all forwards read
        if first:
            self.streams.submit(COMPUTE, scene.aggregated, writes=[self.weights])

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.scene.x.device.type, torch.bfloat16) if self.amp else nullcontext()

    @contextmanager
    def _entered(self, batch: Batch, halo: Tensor | None) -> Iterator[Tensor]:
        """The batch in a map of its own, and the slots of its halo, if rows are staged, until the block ends."""
        maps = self.maps[self.streams.current]
        position = maps.take()
        try:
            batch.write_positions(position)
            if halo is not None:
                position[halo] = ~torch.arange(halo.numel(), dtype=position.dtype, device=position.device)
            yield position
        finally:
            batch.restore_positions(position)
            if halo is not None:
                position[halo] = ~halo.to(position.dtype)
            maps.give_back(position)

    def _halo(self, batch: Batch) -> Tensor | None:
        return batch.found if self.store.direct else batch.halo(self.scene.adj)

    def _of_nodes(self, nodes: Tensor) -> Batch:
        return Batch(self.store.num_nodes, nodes=nodes, device=nodes.device)

    @torch.no_grad()
    def refresh(
        self,
        batch: Batch,
        step: int,
        *,
        draw: int = 1,
        training: bool = True,
        keep: list[Staged] | None = None,
        keep_at: int = 0,
    ) -> None:
        """Write the rows of a batch as the weights of now would have them, without gradients, on the refresh stream."""

        def forward() -> None:
            halo = self._halo(batch)
            with self._entered(batch, None if self.store.direct else halo) as position:
                view = View(
                    self.scene, batch, position, self.maps[REFRESH], step=step, draw=draw, training=training,
                    refreshing=True, halo=halo, keep=keep, keep_at=keep_at,
                )  # fmt: skip
                try:
                    with self._autocast():
                        self.model(view)
                finally:
                    view.close()

        handed = [] if batch.nodes is None else [batch.nodes]
        handed += [] if keep is None else [kept.rows for kept in keep]
        self.streams.submit(REFRESH, forward, reads=[self.weights], inputs=handed)

    def refresh_halo(
        self, batch: Batch, pieces: int, step: int, *, training: bool = True
    ) -> tuple[Batch, list[Staged] | None]:
        """REST-IS: the batch's halo in pieces, one after the other. Returns the batch with its halo and, where rows are
        staged, the refreshed ones: they stay on the device as what :meth:`train` reads, and are not fetched again."""
        batch = batch.with_halo(self.scene.adj)
        halo = batch.halo(self.scene.adj)
        held: list[Staged] | None = None
        if not self.store.direct:
            held = [self.store.buffer(2 + t, halo.numel(), w) for t, w in enumerate(self.store.widths)]
        at = 0
        for i, piece in enumerate(halo.chunk(pieces)):
            self.refresh(self._of_nodes(piece), step, draw=i + 1, training=training, keep=held, keep_at=at)
            at += piece.numel()
        return batch, held

    def train(
        self,
        batch: Batch,
        step: int,
        loss_of: Callable[[Tensor], Tensor | None],
        *,
        staged: list[Staged] | None = None,
        watch: Callable[[str, Tensor], None] | None = None,
    ) -> Tensor | None:
        """Forward and backward of a batch; gradients are added to what is there. Returns the loss, without its graph.

        Args:
            step: its number; rows are stamped with it.
            loss_of: the loss of the batch's logits, or None if it has no node to learn from; its rows are written anyway.
            staged: the halo's rows, from :meth:`refresh_halo`. watch: see :class:`View`.
        """
        halo = self._halo(batch)
        with self._entered(batch, None if self.store.direct else halo) as position:
            view = View(
                self.scene, batch, position, self.maps[COMPUTE], step=step, halo=halo, staged=staged, watch=watch,
                recording=bool(self.store.tables),
            )  # fmt: skip
            try:
                with self._autocast():
                    logits = self.model(view)
                loss = loss_of(logits.float())
                if loss is not None:
                    loss.backward()
            finally:
                view.close()
        return None if loss is None else loss.detach()

    @torch.no_grad()
    def predict(self, batch: Batch, step: int) -> Tensor:
        """[R, C]: the result of a batch in eval mode, with histories; nothing is written."""
        halo = self._halo(batch)
        with self._entered(batch, None if self.store.direct else halo) as position:
            view = View(
                self.scene, batch, position, self.maps[COMPUTE], step=step, training=False, recording=False, halo=halo
            )
            try:
                return self.model(view)
            finally:
                view.close()

    def gradients(self, batch: Batch, step: int, loss_of: Callable[[Tensor], Tensor | None]) -> tuple[Tensor, Tensor] | None:
        """(gradient of a batch's loss for all weights, as one vector; its logits), in eval mode, with histories. Nothing is
        written, and nothing is added to the gradients that are there. None if the batch has no node to learn from."""
        halo, parameters = self._halo(batch), [p for p in self.model.parameters() if p.requires_grad]
        with self._entered(batch, None if self.store.direct else halo) as position:
            view = View(
                self.scene, batch, position, self.maps[COMPUTE], step=step, training=False, recording=False, halo=halo
            )
            try:
                logits = self.model(view)
                loss = loss_of(logits)
                if loss is None:
                    return None
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
            finally:
                view.close()
        each = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        return torch.cat([g.flatten() for g in each]), logits.detach()

    def update(self, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        """Move the weights, once everybody has read them. clip: the largest norm of the gradient; 0: any."""

        def move() -> None:
            if clip > 0.0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            optimizer.step()

        self.streams.submit(COMPUTE, move, writes=[self.weights])

    def step(
        self,
        batch: Batch,
        step: int,
        loss_of: Callable[[Tensor], Tensor | None],
        optimizer: torch.optim.Optimizer,
        *,
        refresh: Sequence[Batch] = (),
        importance: int = 0,
        refresh_training: bool = True,
    ) -> Tensor | None:
        """Refresh, then train on a batch, all with the same weights; returns the loss.

        Args:
            step, loss_of: as for :meth:`train`.
            refresh: batches that are refreshed before (REST).
            importance: refresh the batch's own halo instead, in so many pieces (REST-IS).
            refresh_training: with dropout and batch statistics, as in the training forward.
        """
        staged = None
        for i, other in enumerate(refresh):
            self.refresh(other, step, draw=i + 1, training=refresh_training)
        if importance:
            batch, staged = self.refresh_halo(batch, importance, step, training=refresh_training)
        optimizer.zero_grad()
        loss = self.train(batch, step, loss_of, staged=staged)
        if loss is not None:
            self.update(optimizer)
        return loss

    def pieces(self) -> list[Batch]:
        """All nodes in ranges, as exact inference takes them."""
        n, device = self.store.num_nodes, self.scene.x.device
        size = PIECE.get(device.type, 1 << 15)
        return [Batch(n, ranges=((a, min(a + size, n)),), device=device) for a in range(0, n, size)]

    @contextmanager
    def inference(self, *, record_at: int | None = None) -> Iterator[Inference]:
        """An exact pass over scratch tables, or over the run's own, whose rows are then stamped with ``record_at``."""
        made = Inference(
            self.scene, self.model, self.maps[COMPUTE], self.pieces(), step=record_at or 0, fill=record_at is not None,
            entered=self._entered,
        )  # fmt: skip
        try:
            yield made
        finally:
            made.close()

    def exact(self, *, record_at: int | None = None) -> Tensor:
        """The model's result for all nodes, in eval mode; with ``record_at`` its activations are written into the tables."""
        with self.inference(record_at=record_at) as inference:
            return inference.run()

    def fill(self, step: int = 0) -> None:
        """Write all rows of all tables by one exact pass."""
        if self.store.tables:
            self.exact(record_at=step)
