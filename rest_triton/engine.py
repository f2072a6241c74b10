"""One step of history-based training: refreshes, forward, backward, on lanes that run beside each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Module

from .batches import Batch, PositionMaps
from .history import Staged
from .lanes import COMPUTE, REFRESH, Guard
from .view import Scene, View


class Engine:
    """Runs a model on batches of a graph.

    Args:
        scene: the graph, its features and the tables. model: called with a :class:`View`.

    Example::

        engine = Engine(scene, model)
        engine.fill(step=0)
        loss = engine.step(batch, 1, lambda logits: loss_of(logits, batch), optimizer, refresh=[another])
    """

    def __init__(self, scene: Scene, model: Module) -> None:
        self.scene, self.model = scene, model
        self.store, self.lanes = scene.store, scene.store.lanes
        # A pool for each lane: a map never leaves its lane, so nobody waits for one.
        self.maps = {lane: PositionMaps(scene.adj.num_nodes, scene.x.device) for lane in (COMPUTE, REFRESH)}
        self.weights = Guard("weights")  # and whatever else all forwards read
        if getattr(model, "starts_with_aggregate", False):
            self.lanes.submit(COMPUTE, scene.aggregated, writes=[self.weights])

    @contextmanager
    def _entered(self, batch: Batch, halo: Tensor | None) -> Iterator[Tensor]:
        """The batch in a map of its own, and the slots of its halo, if rows are staged, until the block ends."""
        maps = self.maps[self.lanes.current]
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
        return None if self.store.direct else batch.halo(self.scene.adj)

    @torch.no_grad()
    def refresh(
        self,
        batch: Batch,
        step: int,
        *,
        stream: int = 1,
        training: bool = True,
        keep: list[Staged] | None = None,
        keep_at: int = 0,
    ) -> None:
        """Write the rows of a batch as the weights of now would have them, without gradients, on the refresh lane."""

        def forward() -> None:
            halo = self._halo(batch)
            with self._entered(batch, halo) as position:
                self.model(
                    View(
                        self.scene, batch, position, step=step, stream=stream, training=training, refreshing=True,
                        halo=halo, keep=keep, keep_at=keep_at,
                    )
                )  # fmt: skip

        handed = [] if batch.nodes is None else [batch.nodes]
        handed += [] if keep is None else [kept.rows for kept in keep]
        self.lanes.submit(REFRESH, forward, reads=[self.weights], takes=handed)

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
            step: its number; rows are stamped with it.
            loss_of: the loss of the batch's logits, or None if it has no node to learn from; its rows are written anyway.
            refresh: batches that are refreshed before (REST).
            importance: refresh the batch's own halo instead, in so many pieces (REST-IS).
            refresh_training: with dropout and batch statistics, as in the training forward.
        """
        for i, other in enumerate(refresh):
            self.refresh(other, step, stream=i + 1, training=refresh_training)
        halo, staged = self._halo(batch), None
        if importance:
            halo = batch.halo(self.scene.adj)
            staged = self._refresh_halo(halo, importance, step, refresh_training)
        with self._entered(batch, None if self.store.direct else halo) as position:
            view = View(self.scene, batch, position, step=step, halo=halo, staged=staged)
            loss = loss_of(self.model(view))
            if loss is not None:
                optimizer.zero_grad()
                loss.backward()
        if loss is not None:
            self.lanes.submit(COMPUTE, optimizer.step, writes=[self.weights])
            loss = loss.detach()
        return loss

    def _refresh_halo(self, halo: Tensor, pieces: int, step: int, training: bool) -> list[Staged] | None:
        """REST-IS: the halo in pieces, one after the other. Where rows are staged, the refreshed ones stay on the device as
        what the training batch reads; they are not fetched from the host again."""
        held: list[Staged] | None = None
        if not self.store.direct:
            held = [self.store.buffer(2 + t, halo.numel(), w) for t, w in enumerate(self.store.widths)]
        at = 0
        for i, piece in enumerate(halo.chunk(pieces)):
            batch = Batch(self.store.num_nodes, nodes=piece, device=halo.device)
            self.refresh(batch, step, stream=i + 1, training=training, keep=held, keep_at=at)
            at += piece.numel()
        return held

    @torch.no_grad()
    def exact(self, *, record_at: int | None = None) -> Tensor:
        """The model's result for all nodes, in eval mode; with ``record_at`` its activations are written into the tables."""
        n = self.store.num_nodes
        batch = Batch(n, ranges=((0, n),), device=self.scene.x.device)
        with self._entered(batch, None) as position:
            view = View(
                self.scene, batch, position, step=record_at or 0, training=False, recording=record_at is not None,
                staged=self._nothing(),
            )  # fmt: skip
            return self.model(view)

    def _nothing(self) -> list[Staged]:
        """What a batch of all nodes reads from histories."""
        dtype, device = self.store.dtype, self.scene.x.device
        return [Staged(torch.empty(0, width, dtype=dtype, device=device), Guard("nothing")) for width in self.store.widths]

    def fill(self, step: int = 0) -> None:
        """Write all rows of all tables by one exact pass."""
        self.exact(record_at=step)
