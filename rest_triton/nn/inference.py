"""Exact inference: all nodes, layer by layer over complete tables, a piece of the nodes at a time.

A model's forward is run for one layer at a time. A layer reads the complete table of the layer before, so no row is computed
twice and nothing is stale; beyond the tables only a piece's activations are in memory. The tables are the run's own when
they are to be filled, else scratch tables in the same place, two that take turns.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ..history.history import History, Staged
from ..history.streams import COMPUTE
from ..ops import history_spmm
from ..ops.memory import new_rows
from ..sampling.batch import Batch, PositionMaps
from .context import View
from .scene import Scene

PIECE = {"cpu": 1 << 15, "cuda": 1 << 16}  # rows; on a CPU its activations stay in the caches, a GPU wants more at a time
START = -1  # the pass before the first layer: what a model makes of features alone


class LayerView(View):
    """A piece of the nodes in one layer. What a model hands from layer to layer is read from tables instead.

    Args:
        layer: which; START for what comes before all layers.
        places: for each table of the model, a store and its number in it.
        transformed: rows of tables that were multiplied before they are aggregated, for all pieces of the pass.
    """

    def __init__(
        self, scene: Scene, batch: Batch, position: Tensor, maps: PositionMaps, *, layer: int,
        places: Sequence[tuple[History, int]], transformed: dict[int, Tensor], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(scene, batch, position, maps, training=False, **options)
        self.layer, self.places, self.transformed = layer, places, transformed
        self.count = 0
        self.everyone = False  # also all nodes as one piece read tables

    def _where(self, table: int) -> tuple[History, int]:
        return self.places[table]

    def layers(self, count: int) -> Iterable[int]:
        self.count = count
        return [] if self.layer == START else [self.layer]

    def start(self, first: Any) -> Tensor:
        if self.layer != START:
            return self.rows(0, None)
        h = first(self)
        self.record(0, h)
        return h

    def rows(self, table: int, h: Tensor | None) -> Tensor:
        store, number = self.places[table]
        if store.direct:
            held = store.tables[number]
            return self.streams.submit(COMPUTE, lambda: self.batch.take(held.rows).float(), reads=[held.resource])
        staged = store.stage(number, self.batch.rows)
        return self.streams.submit(COMPUTE, lambda: staged.rows.to(torch.float32, copy=True), reads=[staged.resource])

    def aggregate(self, table: int, h: Tensor | None, *, residual: Tensor | None = None, alpha: float = 0.0) -> Tensor:
        store, number = self.places[table]
        options: dict[str, Any] = dict(residual=residual, alpha=alpha)
        if store.direct:
            held = store.tables[number]
            return self._all_rows(Staged(held.rows, held.resource), **options)
        rows = len(self.batch)
        staged = store.stage(number, torch.cat([self.batch.rows, self.halo]))
        return self.streams.submit(
            COMPUTE,
            lambda: history_spmm(
                self.scene.adj, self.batch.rows, self.position, staged.rows[:rows], staged.rows[rows:],
                dtype=torch.float32, **options,
            ),
            reads=[staged.resource],
        )  # fmt: skip

    def _all_rows(self, source: Staged, **options: Any) -> Tensor:
        """An aggregate in which everyone, in the piece or not, is read from one table."""
        return self.streams.submit(
            COMPUTE,
            lambda: history_spmm(
                self.scene.adj, self.batch.rows, self.scene.outside(), None, source.rows, dtype=torch.float32, **options
            ),
            reads=[source.resource],
        )

    def convolve(self, table: int, h: Tensor | None, weight: Tensor) -> Tensor:
        store, number = self.places[table]
        if not store.direct or weight.shape[0] >= weight.shape[1]:
            return F.linear(self.aggregate(table, h), weight)
        # Each row is multiplied once for all who read it, and what they read is narrow.
        held = store.tables[number]
        if table not in self.transformed:
            self.transformed[table] = self.streams.submit(
                COMPUTE, lambda: _multiplied(held.rows, weight), reads=[held.resource]
            )
        return self._all_rows(Staged(self.transformed[table], held.resource))


def _multiplied(rows: Tensor, weight: Tensor) -> Tensor:
    """rows @ weight^T in pieces: rows that are not float32 are never all converted at once."""
    out = new_rows(rows.shape[0], weight.shape[0], weight.dtype, rows.device)
    piece = PIECE.get(rows.device.type, 1 << 15)
    for some, into in zip(rows.split(piece), out.split(piece), strict=True):
        torch.mm(some.to(weight.dtype), weight.t(), out=into)
    return out


class Inference:
    """One exact pass.

    Args:
        pieces: batches that together hold all nodes, each a range.
        fill: write the run's own tables, stamped with ``step``, instead of scratch tables.
        entered: enters a piece and its halo's slots into a map, until the block ends.
    """

    def __init__(
        self, scene: Scene, model: Module, maps: PositionMaps, pieces: Sequence[Batch], *, step: int, fill: bool,
        entered: Callable[[Batch, Tensor], AbstractContextManager[Tensor]],
    ) -> None:  # fmt: skip
        self.scene, self.model, self.maps, self.pieces, self.step = scene, model, maps, pieces, step
        self.entered = entered
        self.begins: bool = not getattr(model, "starts_with_aggregate", False)
        self.folder: TemporaryDirectory[str] | None = None
        self.places = self._places(fill)

    def _places(self, fill: bool) -> list[tuple[History, int]]:
        """Of each table of the model: scratch tables take turns, since a layer reads the one before only; what a model
        starts with may be read by all."""
        store, widths = self.scene.store, list(self.model.widths)  # type: ignore[arg-type]
        own = int(self.scene.exact_input)  # tables that the store does not have
        wanted = [("kept", w) if t == 0 and self.begins else (t % 2, w) for t, w in enumerate(widths)]
        if fill:
            wanted = wanted[:own]
        slots = sorted(set(wanted), key=wanted.index)
        scratch = self._scratch(store, [width for _, width in slots]) if slots else store
        places = [(scratch, slots.index(slot)) for slot in wanted]
        return places + ([(store, t - own) for t in range(own, len(widths))] if fill else [])

    def _scratch(self, store: History, widths: list[int]) -> History:
        options: dict[str, Any] = {}
        if store.files is not None:
            self.folder = TemporaryDirectory(prefix="scratch-", dir=store.files.folder, ignore_cleanup_errors=True)
            options = dict(folder=Path(self.folder.name), budget=store.files.budget)
        return store.like(widths, torch.float32, **options)

    @torch.no_grad()
    def run(self) -> Tensor:
        """[N, C]: the model's result for all nodes. Where tables are far away it is on the host."""
        layer, out = START if self.begins else 0, None
        while out is None:
            transformed: dict[int, Tensor] = {}
            for piece in self.pieces:
                result = self._piece(piece, layer, transformed)
                if result is not None:
                    if out is None:
                        device = self.scene.x.device
                        where = torch.device("cpu") if device.type == "cuda" and not self.scene.store.direct else device
                        out = new_rows(self.scene.adj.num_nodes, result.shape[1], result.dtype, where)
                    assert piece.ranges is not None
                    out[piece.ranges[0][0] : piece.ranges[0][1]] = result
            layer += 1
        return out

    def _piece(self, piece: Batch, layer: int, transformed: dict[int, Tensor]) -> Tensor | None:
        options: dict[str, Any] = dict(layer=layer, places=self.places, transformed=transformed, step=self.step)
        if self.scene.store.direct:
            view = LayerView(self.scene, piece, self.scene.outside(), self.maps, **options)
            return self._forward(view)
        halo = piece.halo(self.scene.adj)
        with self.entered(piece, halo) as position:
            return self._forward(LayerView(self.scene, piece, position, self.maps, halo=halo, **options))

    def _forward(self, view: LayerView) -> Tensor | None:
        result = self.model(view)
        if view.layer == view.count - 1 and result is None:
            raise ValueError(f"{type(self.model).__name__} returned nothing for its last layer, {view.layer}")
        return result

    def embeddings(self) -> Tensor | None:
        """[N, D], float32: the last table after a pass, which the last layer reads; None for a model without tables."""
        if not self.places:
            return None
        store, number = self.places[-1]
        store.streams.finish()
        return store.tables[number].rows.float().cpu()

    def close(self) -> None:
        """Let go of scratch tables."""
        for store in {id(store): store for store, _ in self.places if store is not self.scene.store}.values():
            store.close()
        self.places = []
        if self.folder is not None:
            self.folder.cleanup()
