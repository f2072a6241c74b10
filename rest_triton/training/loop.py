"""GAS and REST for custom training loops."""

import torch
from torch import Tensor

from ..config import Config
from ..data.clusters import with_named_edges
from ..data.features import kept
from ..history.history import History
from ..history.streams import COMPUTE
from ..kernels._hash import mix64
from ..methods.engine import Engine
from ..methods.gas import GAS
from ..methods.options import AUTO
from ..methods.registry import refresh_for
from ..nn.model import HistoryGNN
from ..sampling.batch import Batch
from ..sampling.loader import ClusterLoader


class REST:
    """A model with its tables. It refreshes the tables and computes batches with gradients.

    Args:
        model: on the device that computes. loader: the batches and the graph.
        history: the tables, ``History(data.num_nodes, model.history_dims, …)``. Default: float32, on the model's device.
        frequency: refresh batches before each batch. 0 is GAS: no refresh.
        refresh: ``rest``: other batches are refreshed. ``rest-is``: the neighbours of the batch, in ``frequency`` pieces.
        edge_dropout: share of edges that training leaves out. seed: of dropout and refresh batches.

    The first call fills the tables by one exact pass. In ``model.eval()`` mode nothing is refreshed or written.

    Example::

        rest = REST(model, loader, frequency=1)
        for batch in loader:
            out = rest(batch)
            loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        logits = rest.inference()
    """

    def __init__(
        self, model: HistoryGNN, loader: ClusterLoader, history: History | None = None, *, frequency: int = 1,
        refresh: str = "rest", edge_dropout: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        if frequency == AUTO or frequency < 0:
            raise ValueError(f"frequency is {frequency!r}; it must be 0 (GAS) or the number of refreshes before each batch")
        self.model, self.loader = model, loader
        device = next(model.parameters()).device
        graph, batches = loader.graph, loader.batches
        if graph.x is None:
            raise ValueError("the graph has no features x; set x, for example to one-hot degrees")
        x = kept(graph.x)
        config = Config(
            dataset="graph", method=f"gas+{refresh}" if frequency else "gas", frequency=max(1, frequency), seed=seed,
            num_parts=batches.num_clusters, batch_size=batches.batch_size,
        )  # fmt: skip
        method = GAS(config, loader.ptr, str(device))
        self.refresh = refresh_for(config, method)
        self.history = History(graph.num_nodes, model.history_dims, device=device) if history is None else history
        if self.history.widths != tuple(model.history_dims) or self.history.num_nodes != graph.num_nodes:
            raise ValueError(
                f"history has {self.history.num_nodes} rows of widths {list(self.history.widths)}; the model needs "
                f"{graph.num_nodes} rows of widths {model.history_dims}"
            )
        adj = graph.adjacency(model.normalise)
        if edge_dropout > 0:
            adj = with_named_edges(adj)
        self.engine = Engine(
            model, method, adj.to(device), x.to(device), self.history, edge_dropout=edge_dropout, seed=mix64(seed) >> 1
        )
        self.step, self._filled = 0, False

    def __call__(self, batch: Batch) -> Tensor:
        """[R, C]: the result for the rows of a batch. Run backward before the next call."""
        engine, streams = self.engine, self.engine.streams
        batch = batch.on(engine.inputs.device)
        # The optimizer has updated the weights since the last call, on this call's stream.
        streams.submit(COMPUTE, lambda: None, writes=[engine.weights])
        if not self._filled:
            self.fill()
        if not self.model.training:
            return engine.predict(batch, self.step)
        self.step += 1
        batch, pulled = self.refresh.before(engine, batch, self.step)
        result = engine.forward(batch, self.step, pulled=pulled)
        # The optimizer updates the weights next. It waits until the refreshes have read them.
        streams.submit(COMPUTE, lambda: None, writes=[engine.weights])
        return result

    def fill(self) -> None:
        """Write all rows of all tables by one exact pass."""
        self.engine.leave()
        self.engine.fill(self.step)
        self.refresh.filled(self.step)
        self._filled = True

    @torch.no_grad()
    def inference(self) -> Tensor:
        """[N, C]: the exact result for all nodes, in the order of the loader's ``data``."""
        self.engine.leave()
        result = self.engine.exact()
        out = torch.empty_like(result)
        out[self.loader.order.to(result.device)] = result
        return out

    def close(self) -> None:
        """Finish all writes, and remove the files of tables on disk."""
        self.engine.leave()
        self.history.close()
