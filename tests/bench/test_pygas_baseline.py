"""The baseline of whole-epoch benchmarks computes what PyGAS computes, and the same network as ours.

It is compared with dense matrices in float64, and its losses with those of ``Trainer``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from bench import bench_epoch
from bench.harness import Bench
from bench.pygas import PyGAS
from bench.pygas_models import APPNP, GCN, GCNII
from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.data.graph import Graph
from rest_triton.training.trainer import Trainer

NODES, FEATURES, HIDDEN, CLASSES = 90, 7, 8, 4
PTR = torch.tensor([0, 16, 16, 31, 52, 70, 90])  # one cluster is empty

MODELS: dict[str, Callable[[], Module]] = {
    "gcn": lambda: GCN(FEATURES, HIDDEN, CLASSES, 3),
    "gcn-one-layer": lambda: GCN(FEATURES, HIDDEN, CLASSES, 1),
    "gcn-norm": lambda: GCN(FEATURES, HIDDEN, CLASSES, 3, batch_norm=True),
    "appnp": lambda: APPNP(FEATURES, HIDDEN, CLASSES, 4, alpha=0.3),
    "gcnii": lambda: GCNII(FEATURES, HIDDEN, CLASSES, 4, alpha=0.2, theta=0.7),
    "gcnii-norm": lambda: GCNII(FEATURES, HIDDEN, CLASSES, 3, shared_weights=False, batch_norm=True),
}


def graph() -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 2, (2, 250), generator=g)  # two nodes are isolated
    x = torch.randn(NODES, FEATURES, generator=g)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    mask = torch.rand(NODES, generator=g) < 0.5
    return Graph.from_edges(edges, NODES, symmetrise=True, deduplicate=True, x=x, y=y, train_mask=mask)


def trainer(kind: str, batch_size: int, product: str = "matmul", **changes: Any) -> PyGAS:
    torch.manual_seed(1)
    model = MODELS[kind]()
    for name, value in changes.items():
        setattr(model, name, value)
    with torch.no_grad():
        for parameter in model.parameters():  # none of them zero, such as biases are at first
            parameter.add_(0.1 * torch.randn_like(parameter))
    return PyGAS(graph(), PTR, batch_size, model, lr=0.05, seed=3, product=product)


def normalised(of: Graph) -> Tensor:
    a = torch.eye(NODES, dtype=torch.float64)
    for row in range(NODES):
        a[row, of.col[of.rowptr[row] : of.rowptr[row + 1]].long()] = 1.0
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


class Dense:
    """The same network over dense matrices. Rows of ``inside`` are computed, others come from ``tables``."""

    def __init__(self, model: Any, of: Graph, inside: Tensor | None = None, tables: list[Tensor] | None = None) -> None:
        self.model, self.tables = model, tables
        self.inside = torch.arange(NODES) if inside is None else inside
        self.w = {k: v.double() if v.is_floating_point() else v for k, v in model.state_dict().items()}
        for name, _ in model.named_parameters():
            self.w[name].requires_grad_()
        self.a = normalised(of)[self.inside]
        assert isinstance(of.x, Tensor)
        self.x = of.x.double()
        self.pushed: list[Tensor] = []
        self.logits: Tensor = {GCN: self._gcn, APPNP: self._appnp, GCNII: self._gcnii}[type(model)]()

    def _exchange(self, h: Tensor) -> Tensor:
        whole = torch.zeros(NODES, h.shape[1], dtype=torch.float64)
        if self.tables is not None:
            whole = self.tables[len(self.pushed)].double()
        self.pushed.append(h.detach())
        return whole.index_put((self.inside,), h)

    def _norm(self, layer: int, h: Tensor) -> Tensor:
        if not self.model.batch_norm:
            return h
        mean, var, weight, bias = (self.w[f"bns.{layer}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        if self.model.training:
            mean, var = h.mean(0), h.var(0, correction=0)
        return (h - mean) / (var + 1e-5).sqrt() * weight + bias

    def _gcn(self) -> Tensor:
        x, last = self.x, len(self.model.convs) - 1
        for layer in range(last + 1):
            h = self.a @ x @ self.w[f"convs.{layer}.lin.weight"].t() + self.w[f"convs.{layer}.bias"]
            if layer < last:
                x = self._exchange(self._norm(layer, h).relu())
        return h

    def _linear(self, i: int, x: Tensor) -> Tensor:
        return x @ self.w[f"lins.{i}.weight"].t() + self.w[f"lins.{i}.bias"]

    def _appnp(self) -> Tensor:
        x = self._linear(1, self._linear(0, self.x).relu())
        first, alpha = x[self.inside], self.model.alpha
        for step in range(4):
            h = (1 - alpha) * self.a @ x + alpha * first
            x = self._exchange(h) if step < 3 else x
        return h

    def _gcnii(self) -> Tensor:
        x = self._linear(0, self.x).relu()
        first, layers = x[self.inside], len(self.model.convs)
        alpha, theta = (0.2, 0.7) if layers == 4 else (0.1, 0.5)
        for layer in range(layers):
            beta = torch.log(torch.tensor(theta / (layer + 1) + 1, dtype=torch.float64))
            w1 = self.w[f"convs.{layer}.weight1"]
            w2 = self.w.get(f"convs.{layer}.weight2", w1)
            eye = torch.eye(HIDDEN, dtype=torch.float64)
            near = (1 - alpha) * self.a @ x @ ((1 - beta) * eye + beta * w1)
            h = self._norm(layer, near + alpha * first @ ((1 - beta) * eye + beta * w2)).relu()
            x = self._exchange(h) if layer < layers - 1 else x
        return self._linear(1, h)

    def loss(self, of: Graph) -> Tensor:
        assert of.y is not None and of.train_mask is not None
        chosen, y = of.train_mask[self.inside], of.y[self.inside]
        return F.cross_entropy(self.logits[chosen], y[chosen])

    def same_gradients(self, model: Module) -> None:
        for name, parameter in model.named_parameters():
            grad = self.w[name].grad
            assert (grad is None) == (parameter.grad is None), name
            if parameter.grad is not None and grad is not None:
                difference = float((parameter.grad.double() - grad).abs().max())
                assert difference <= 1e-6 + 1e-4 * float(grad.abs().max()), name


def close(mine: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "product"), [*((kind, "matmul") for kind in MODELS), ("gcn", "reduce")])
def test_all_clusters_at_once_are_the_whole_graph(kind: str, product: str) -> None:
    run = trainer(kind, 6, product=product)
    for epoch in range(4):
        run.model.train()
        dense = Dense(run.model, graph())  # with the weights of now
        loss = dense.loss(graph())
        loss.backward()
        assert run.epoch(epoch) == [pytest.approx(loss.item(), rel=1e-5)]
        dense.same_gradients(run.model)
        for table, exact in zip(run.histories, dense.pushed, strict=True):
            close(table, exact)


@pytest.mark.parametrize("kind", MODELS)
def test_no_gradient_through_rows_from_tables(kind: str) -> None:
    run = trainer(kind, 3)
    g = torch.Generator().manual_seed(4)
    for table in run.histories:
        table.copy_(torch.rand(table.shape, generator=g))
    tables = [table.clone() for table in run.histories]
    batch = run.batches.epoch(0)[0]
    dense = Dense(run.model, graph(), batch.rows, tables)
    loss = dense.loss(graph())
    loss.backward()
    assert run.step(run.subgraph(batch)) == pytest.approx(loss.item(), rel=1e-5)
    dense.same_gradients(run.model)
    others = torch.ones(NODES, dtype=torch.bool).index_fill_(0, batch.rows, False)
    for table, before, exact in zip(run.histories, tables, dense.pushed, strict=True):
        close(table[batch.rows], exact)
        assert torch.equal(table[others], before[others])


@pytest.mark.parametrize("kind", ["gcn", "gcn-norm", "gcnii", "gcnii-norm"])
def test_tables_are_written_before_dropout(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "dropout", lambda x, p, training: torch.zeros_like(x))
    run = trainer(kind, 3)
    run.epoch(0)
    assert all(table.abs().sum() > 0 for table in run.histories)


@pytest.mark.parametrize("drop_input", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "appnp", "gcnii"])
def test_dropout_is_on_all_rows(kind: str, drop_input: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def dropout(x: Tensor, p: float, training: bool) -> Tensor:
        assert p == 0.5 and training
        seen.append((x.shape[0], x.shape[1]))
        return x

    monkeypatch.setattr(F, "dropout", dropout)
    run = trainer(kind, 3, dropout=0.5, drop_input=drop_input)
    batch = run.batches.epoch(0)[0]
    subgraph = run.subgraph(batch)
    run.step(subgraph)
    rows = len(batch) + len(subgraph.halo)
    assert rows > len(batch)
    features = [(rows, FEATURES)] if drop_input or kind == "appnp" else []
    hidden = {
        "gcn": [(rows, HIDDEN)] * 2,
        "appnp": [(rows, HIDDEN)],
        "gcnii": [(rows, HIDDEN)] * 4 + [(len(batch), HIDDEN)],  # no halo after the last layer
    }
    assert seen == features + hidden[kind]


@pytest.mark.parametrize("batch_size", [40, 5])
@pytest.mark.parametrize("model", bench_epoch.MODELS)
def test_it_trains_the_same_network_as_ours(
    model: str, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two sides of bench_epoch, without dropout: the same losses on the same batches, epoch after epoch."""
    monkeypatch.setitem(bench_epoch.MODELS[model], "dropout", 0.0)
    config = bench_epoch.settings(model, Bench(None, True, "", str(tmp_path), torch.device("cpu")), batch_size)
    ours = Trainer(config, load_data(config))
    theirs = bench_epoch.pygas(config, ours.model)
    ours.begin()
    for epoch in range(1, 4):
        losses = theirs.epoch(epoch)
        assert len(losses) == len(ours.method.batches(epoch))
        assert sum(losses) / len(losses) == pytest.approx(ours.epoch(epoch)["loss"], rel=1e-4)


def test_sparse_features(tmp_path: Path) -> None:
    """The baseline takes the data sets that ours takes: features as the pieces of a CSR matrix, too."""
    g = torch.Generator().manual_seed(0)
    x = (torch.rand(60, 9, generator=g) < 0.2).float()
    row, index = torch.nonzero(x, as_tuple=True)
    indptr = F.pad(torch.bincount(row, minlength=60).cumsum(0), (1, 0))
    mask = torch.arange(60) < 30
    path = tmp_path / "sparse.npz"
    np.savez(
        path, edge_index=torch.randint(0, 60, (2, 200), generator=g).numpy(), y=(torch.arange(60) % 3).numpy(),
        x_indptr=indptr.numpy(), x_indices=index.int().numpy(), x_data=np.ones(len(row), np.float32),
        x_shape=np.array([60, 9]), train_mask=mask.numpy(), val_mask=(~mask).numpy(),
    )  # fmt: skip
    config = Config(
        dataset=str(path), root=str(tmp_path), device="cpu", num_parts=4, batch_size=2, hidden_channels=8, num_layers=3
    )
    made = bench_epoch.pygas(config, Trainer(config, load_data(config)).model)
    losses = made.epoch(0)
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses)
