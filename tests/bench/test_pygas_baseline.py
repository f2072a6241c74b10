"""The baseline of whole-epoch benchmarks computes what PyGAS computes: against dense matrices, in float64."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from bench.pygas import PRODUCTS, PyGAS
from bench.pygas_models import APPNP, GCN, GCNII
from rest_triton.data.graph import Graph
from rest_triton.sampling.batch import ClusterLoader

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
every_model = pytest.mark.parametrize("kind", MODELS)


def graph(directed: bool = False, multilabel: bool = False, train: Tensor | None = None) -> Graph:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 2, (2, 250), generator=g)  # two nodes are isolated
    x = torch.randn(NODES, FEATURES, generator=g)
    y = torch.randint(0, CLASSES, (NODES,), generator=g)
    if multilabel:
        y = torch.randint(0, 2, (NODES, CLASSES), generator=g, dtype=torch.int8)
    mask = torch.rand(NODES, generator=g) < 0.5 if train is None else train
    return Graph.from_edges(edges, NODES, symmetrise=not directed, deduplicate=True, x=x, y=y, train_mask=mask)


def trainer(
    kind: str, batch_size: int, of: Graph | None = None, lr: float = 0.05, product: str | None = "matmul", **changes: Any
) -> PyGAS:
    torch.manual_seed(1)
    model = MODELS[kind]()
    for name, value in changes.items():
        setattr(model, name, value)
    with torch.no_grad():
        for parameter in model.parameters():  # none of them zero, such as biases are at first
            parameter.add_(0.1 * torch.randn_like(parameter))
    return PyGAS(graph() if of is None else of, PTR, batch_size, model, lr, seed=3, product=product)


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
        if of.multilabel:
            return F.binary_cross_entropy_with_logits(self.logits[chosen], y[chosen].double())
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


@every_model
@pytest.mark.parametrize("product", PRODUCTS)
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


@pytest.mark.parametrize("of", [graph(directed=True), graph(multilabel=True)], ids=["directed", "multilabel"])
def test_other_graphs(of: Graph) -> None:
    run = trainer("gcn", 6, of)
    dense = Dense(run.model, of)
    loss = dense.loss(of)
    loss.backward()
    assert run.epoch(0) == [pytest.approx(loss.item(), rel=1e-5)]
    dense.same_gradients(run.model)


def test_adam() -> None:
    run = trainer("gcn", 6)
    dense = Dense(run.model, graph())
    optimizer = torch.optim.Adam([w for w in dense.w.values() if w.requires_grad], lr=0.05)
    for epoch in range(5):
        optimizer.zero_grad()
        dense.logits = dense._gcn()
        loss = dense.loss(graph())
        loss.backward()
        optimizer.step()
        assert run.epoch(epoch) == [pytest.approx(loss.item(), rel=1e-4)]
    for name, parameter in run.model.named_parameters():
        torch.testing.assert_close(parameter.double(), dense.w[name], rtol=0, atol=1e-4)


@every_model
@pytest.mark.parametrize("batch_size", [1, 3])
def test_over_exact_tables_a_batch_is_exact(kind: str, batch_size: int) -> None:
    run = trainer(kind, batch_size)
    run.epoch(0)  # running statistics and tables that are neither zero nor right
    run.model.eval()
    dense = Dense(run.model, graph())
    for table, exact in zip(run.histories, dense.pushed, strict=True):
        table.copy_(exact)
    for batch in run.batches.epoch(5):
        close(run.logits(run.subgraph(batch)), dense.logits[batch.rows])
    for table, exact in zip(run.histories, dense.pushed, strict=True):
        close(table, exact)


@every_model
@pytest.mark.parametrize("batch_size", [1, 2])
def test_fill(kind: str, batch_size: int) -> None:
    run = trainer(kind, batch_size)
    run.epoch(0)
    run.fill()
    assert run.model.training
    run.model.eval()
    for table, exact in zip(run.histories, Dense(run.model, graph()).pushed, strict=True):
        close(table, exact)


@every_model
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
    assert run._step(run.subgraph(batch)) == pytest.approx(loss.item(), rel=1e-5)
    dense.same_gradients(run.model)
    others = torch.ones(NODES, dtype=torch.bool).index_fill_(0, batch.rows, False)
    for table, before, exact in zip(run.histories, tables, dense.pushed, strict=True):
        close(table[batch.rows], exact)
        assert torch.equal(table[others], before[others])


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_the_subgraph_is_the_rows_of_the_adjacency(batch_size: int) -> None:
    run, of = trainer("gcn", batch_size), graph()
    exact = normalised(of)
    for epoch in range(3):
        for batch in run.batches.epoch(epoch):
            cut = run.subgraph(batch)
            inside = set(batch.rows.tolist())
            halo = sorted({c for r in inside for c in torch.nonzero(exact[r]).view(-1).tolist()} - inside)
            assert cut.halo.tolist() == halo
            n_id = torch.cat([batch.rows, cut.halo])
            close(cut.adj.matrix.to_dense(), exact[batch.rows][:, n_id])
            close(cut.adj.transposed.to_dense(), exact[batch.rows][:, n_id].t())
            assert cut.adj.transposed is cut.adj.transposed
            assert isinstance(of.x, Tensor) and torch.equal(cut.x, of.x[n_id])
            assert (run.subgraph(batch) is cut) == (batch_size == 1)


def test_batches_that_nobody_learns_from_are_left_out() -> None:
    train = torch.zeros(NODES, dtype=torch.bool)
    train[35:40] = True
    run = trainer("gcn", 1, graph(train=train))
    assert len(run.epoch(0)) == 1
    assert run.histories[0][31:52].abs().sum() > 0 and run.histories[0][:31].abs().sum() == 0
    assert set(run.times) == {"data", "transpose", "train"} and min(run.times.values()) > 0


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
    run._step(subgraph)
    rows = len(batch) + len(subgraph.halo)
    assert rows > len(batch)
    features = [(rows, FEATURES)] if drop_input or kind == "appnp" else []
    hidden = {
        "gcn": [(rows, HIDDEN)] * 2,
        "appnp": [(rows, HIDDEN)],
        "gcnii": [(rows, HIDDEN)] * 4 + [(len(batch), HIDDEN)],  # no halo after the last layer
    }
    assert seen == features + hidden[kind]


def test_the_faster_product_is_chosen() -> None:
    assert trainer("gcn", 2, product=None).product in PRODUCTS


def test_the_seed_of_ours_gives_the_batches_of_ours() -> None:
    mine = [batch.clusters for batch in trainer("gcn", 2).batches.epoch(7)]
    assert mine == [batch.clusters for batch in ClusterLoader(PTR, 2, seed=3).epoch(7)]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="ptr ends at 80, but the graph has 90 nodes"):
        PyGAS(graph(), torch.tensor([0, 40, 80]), 1, MODELS["gcn"](), 0.01, 0)


@pytest.mark.parametrize("missing", ["x", "y", "train_mask"])
def test_a_graph_to_learn_nothing_from_is_refused(missing: str) -> None:
    without: dict[str, Any] = {missing: None}
    with pytest.raises(ValueError, match="graph has no x, y or train_mask"):
        PyGAS(replace(graph(), **without), PTR, 1, MODELS["gcn"](), 0.01, 0)


def test_names_of_weights() -> None:
    def names(kind: str) -> set[str]:
        return {name for name, _ in MODELS[kind]().named_parameters() if not name.startswith("bns.")}

    assert names("gcn") == {f"convs.{i}.{n}" for i in range(3) for n in ("lin.weight", "bias")}
    assert names("appnp") == {f"lins.{i}.{n}" for i in range(2) for n in ("weight", "bias")}
    lins = names("appnp")
    assert names("gcnii") == lins | {f"convs.{i}.weight1" for i in range(4)}
    assert names("gcnii-norm") == lins | {f"convs.{i}.weight{n}" for i in range(3) for n in (1, 2)}
