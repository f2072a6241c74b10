"""``first: exact``: the first embedding of a batch's halo is computed from features, with gradients, as the batch's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, ModuleList

from rest_triton.config import Config
from rest_triton.data.features import SparseRows
from rest_triton.data.sizes import Sizes
from rest_triton.nn import Context, HistoryGNN
from rest_triton.nn.inputs import Inputs
from rest_triton.sampling.batch import Batch, node_batch
from rest_triton.training.plan import plan
from rest_triton.utils.errors import UserError

from ..history.runs import CLASSES, FEATURES, NODES, Run
from ..nn.test_norm import dense

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gcn": ("gcn", dict(num_layers=2)),
    "gcn, directed, edge dropout": ("gcn", dict(num_layers=2, directed=True, edge_dropout=0.3)),
    "gcn, residual, narrow": ("gcn", dict(num_layers=2, residual=True, dtype="float16")),
    "gin": ("gin", dict(num_layers=2)),
    "gcn-linear": ("gcn-linear", dict(num_layers=1)),
    "appnp": ("appnp", dict(num_layers=1)),
    "gcnii": ("gcnii", dict(num_layers=1)),
}
FEW: dict[str, Any] = dict(batch_nodes=15, fanout="2")


def loss_of(run: Run, batch: Batch, rows: Any = slice(None)) -> Any:
    y = batch.take(run.graph.y)
    return lambda logits: F.cross_entropy(logits[rows], y)


def gradients(run: Run) -> list[Tensor]:
    return [p.grad for p in run.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradient_of_a_batch_is_that_of_its_loss(case: str, transforms: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One aggregate above the first embedding: a batch's gradient is exact, by the same dropout of nodes and edges as in a
    forward of all nodes, in either order of product and aggregate. From a table it is not."""
    monkeypatch.setattr(Inputs, "transforms_first", lambda *of: transforms)
    model, options = CASES[case]
    found = []
    for first, whole in (("exact", False), ("exact", True), ("cached", False)):
        run = Run(model, first=first, **options)
        assert len(run.history.all_tables) == (first == "cached")
        batch = run.batch(0, 3)
        used, rows = (run.batch(), batch.rows) if whole else (batch, slice(None))
        run.engine.train(used, 1, loss_of(run, batch, rows))
        found.append(gradients(run))
    for ours, theirs in zip(found[0], found[1], strict=True):
        torch.testing.assert_close(ours, theirs)
    off = [float((a - b).norm() / b.norm()) for a, b in zip(found[2], found[1], strict=True)]
    assert max(off) > 0.05


@pytest.mark.parametrize("far", [False, True])
def test_two_layers_in_plain_torch(far: bool) -> None:
    run = Run("gcn", num_layers=2, dropout=0.0, first="exact", far=far)
    model: Any = run.model
    batch, adj = run.batch(1, 4), dense(run)
    (one, a), (two, b) = ((conv.lin.weight, conv.bias) for conv in model.convs)
    logits = adj @ (adj @ run.data.x @ one.t() + a).relu() @ two.t() + b
    expected = torch.autograd.grad(loss_of(run, batch, batch.rows)(logits), list(model.parameters()))
    results: list[Tensor] = []
    loss = loss_of(run, batch)
    run.engine.train(batch, 1, lambda found: results.append(found.detach()) or loss(found))
    torch.testing.assert_close(results[0], logits.detach()[batch.rows], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients(run), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [40, 1])
def test_a_halo_is_normalised_as_its_batch(rows: int) -> None:
    """By the moments of the batch's rows, as constants; a batch of one row by running statistics. Those move by the batch's
    rows alone."""
    run = Run("gcn", num_layers=2, dropout=0.0, batch_norm=True, first="exact")
    model: Any = run.model
    norm = model.bns[0]
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2.0)
    batch, adj = node_batch(torch.arange(20, 20 + rows), NODES), dense(run)
    (one, a), (two, b) = ((conv.lin.weight, conv.bias) for conv in model.convs)
    u = adj @ run.data.x @ one.t() + a
    own = u[batch.rows]
    mean, var = (norm.running_mean, norm.running_var) if rows == 1 else (own.mean(0), own.var(0, unbiased=False))
    inside = torch.zeros(NODES, 1, dtype=torch.bool)
    inside[batch.rows] = True
    mean, var = (torch.where(inside, of.clone(), of.detach().clone()) for of in (mean, var))
    h = ((u - mean) * torch.rsqrt(var + norm.eps) * norm.weight + norm.bias).relu()
    logits = adj @ h @ two.t() + b
    used = [p for p in model.parameters() if p is not a or rows == 1]  # the batch's own moments cancel this bias
    expected = torch.autograd.grad(loss_of(run, batch, batch.rows)(logits), used)
    moved = norm.running_mean.lerp(own.mean(0).detach(), norm.momentum * (rows > 1))
    results: list[Tensor] = []
    loss = loss_of(run, batch)
    run.engine.train(batch, 1, lambda found: results.append(found.detach()) or loss(found))
    torch.testing.assert_close(results[0], logits.detach()[batch.rows], rtol=1e-4, atol=1e-5)
    for p, theirs in zip(used, expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_mean, moved)


@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_one_batch_of_all_nodes_is_full_batch(model: str) -> None:
    """Bitwise, with dropout and BatchNorm."""
    full, ours = (Run(model, batch_norm=True, **how) for how in (dict(method="full"), dict(batch_size=6, first="exact")))
    assert full.losses(3) == ours.losses(3)


@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("far", [False, True])
def test_rest_is_on_three_layers_has_an_exact_forward(frequency: int, far: bool) -> None:
    """Its refresh computes rows of the only table from exact rows alone. A first layer from a table leaves an error."""
    for first in ("exact", "cached"):
        run = Run("gcn", method="gas+rest-is", first=first, dropout=0.0, frequency=frequency, far=far)
        assert len(run.history.tables) == 1 + (first == "cached")
        for table in run.history.tables:
            table.rows.normal_()  # nothing that is read may be of the first fill
        batch, results = run.batch(0, 3), list[Tensor]()
        batch, pulled = run.trainer.refresh.before(run.engine, batch, 1)
        run.engine.train(batch, 1, lambda logits, into=results: into.append(logits.detach()), pulled=pulled)
        exact = run.engine.exact()[batch.rows]
        assert torch.allclose(results[0], exact, rtol=1e-4, atol=1e-5) == (first == "exact")


def test_rest_writes_tables_from_the_second_layer_on() -> None:
    """Each row that it writes is exact: nothing stale lies below."""
    run = Run("gcn", method="gas+rest", first="exact", dropout=0.0)
    exact = Run("gcn", dropout=0.0)  # the same weights, and tables of one exact pass
    run.history.tables[0].rows.zero_()
    batch = run.batch(2, 5)
    run.engine.refresh(batch, 1)
    torch.testing.assert_close(run.history.tables[0].rows[batch.rows], exact.history.tables[1].rows[batch.rows])
    assert int((run.history.stamp(0) == 1).sum()) == len(batch)


@pytest.mark.parametrize("method", ["gas+rest", "gas+rest-is", "lmc", "graphfm", "mvs"])
def test_two_layers_need_no_table(method: str) -> None:
    """Refreshes then have nothing to compute."""
    run = Run("gcn", method=method, num_layers=2, first="exact", dropout=0.0)
    assert run.history.tables == []
    losses = run.losses(12)
    assert sum(losses[-3:]) < sum(losses[:3]) and run.trainer.evaluate(error=True).keys() == {"train", "val", "test"}
    exact = run.engine.exact()
    for batch in run.trainer.method.cover():
        torch.testing.assert_close(run.engine.predict(batch, 1), exact[batch.rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["vrgcn", "graphfm-ib", "refresh", "sage", "ladies"])
def test_first_layers_of_methods_that_sample(method: str) -> None:
    """Aggregates of first embeddings are not sampled either: two layers are exact, and the third is not."""
    for layers in (2, 3):
        run = Run("gcn", method=method, num_layers=layers, first="exact", dropout=0.0, **FEW)
        batch, results = run.trainer.method.batches(1)[0], list[Tensor]()
        prepared = run.trainer.method.prepare(run.engine, batch, 1)
        run.engine.train(prepared, 1, lambda logits, into=results: into.append(logits.detach()))
        exact = run.engine.exact()[batch.rows]
        close = torch.allclose(results[0], exact, rtol=1e-4, atol=1e-5)
        assert close == (layers == 2 or method == "vrgcn")  # with fresh tables its control variate is exact
        assert [s is None for s in prepared.samples or ()] == [True, True, False][:layers]


@pytest.mark.parametrize(
    "method",
    ["lmc", "lmc+rest", "graphfm+rest-is", "mvs+rest", "vrgcn+rest-is", "graphfm-ib+rest", "refresh+rest", "cluster"],
)
def test_same_losses_wherever_the_tables_are(method: str) -> None:
    options: dict[str, Any] = dict(method=method, first="exact", batch_norm=True, residual=True, **FEW)
    options |= dict(gradient_frequency=1) if method == "lmc+rest" else {}
    near, far = (Run("gcn", far=far, **options) for far in (False, True))
    losses = near.losses(4)
    assert far.losses(4) == losses and len(set(losses)) == 4


@pytest.mark.parametrize(
    ("model", "options", "first"),
    [
        ("gcn", {}, "exact"),  # 12 features, rows of 16 columns
        ("gcn", dict(hidden_channels=11), "cached"),
        ("gcn", dict(hidden_channels=12), "exact"),
        ("gcn", dict(hidden_channels=23, dtype="bfloat16"), "cached"),
        ("gcnii", {}, "exact"),
        ("appnp", {}, "cached"),  # rows of 5 classes
        ("gat", {}, "cached"),
        ("gcn-norm", {}, "cached"),  # which drops features
        ("gcn", dict(num_layers=1), "cached"),
        ("gcn", dict(method="vrgcn"), "exact"),
        ("gcn", dict(method="sage"), "cached"),
    ],
)
def test_auto_reads_fewer_bytes(model: str, options: dict[str, Any], first: str) -> None:
    """And the plan knows what a run will do."""
    run = Run(model, first="auto", **options)
    assert run.trainer.config.first == first and run.engine.inputs.exact_first == (first == "exact")
    sizes = Sizes(nodes=NODES, edges=1000, features=FEATURES, classes=CLASSES, name="small", prepared=True)
    assert plan(sizes, run.config).settings.first == first and run.config.first == "auto"
    run.step()


class Own(HistoryGNN):
    """A model whose first layer propagates, or reads its neighbourhood."""

    normalise = "sum"

    def __init__(self, reads: bool) -> None:
        super().__init__([16])
        self.reads, self.lins = reads, ModuleList(Linear(2 * a, b) for a, b in ((FEATURES, 16), (16, CLASSES)))

    def layer(self, layer: int, ctx: Context) -> Tensor:
        z = ctx.neighbourhood()[: len(ctx.h)] if self.reads else ctx.propagate()
        u = self.lins[layer](torch.cat([ctx.h, z], 1))
        return u if layer == 1 else ctx.output(u, dropout=0.3)


def test_own_models() -> None:
    found = []
    for whole in (False, True):
        torch.manual_seed(0)
        run = Run(Own(False), first="exact")
        batch = run.batch(0, 3)
        run.engine.train(run.batch() if whole else batch, 1, loss_of(run, batch, batch.rows if whole else slice(None)))
        found.append(gradients(run))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    Run(Own(True), first="auto").step()
    run = Run(Own(True), first="exact")
    with pytest.raises(UserError, match=r"first layer reads features of neighbours by ctx.* give --first cached, or"):
        run.step()


def test_sparse_features_are_refused() -> None:
    """Before a folder or a table is made: by the plan, and by whoever makes a run of his own."""
    wide = Sizes(nodes=1000, edges=9000, features=1600, classes=5, name="wide", prepared=True, feature_nnz=9000)
    said = "first is exact, but features are sparse: their aggregate is not kept, .* give --first cached, or --model appnp"
    with pytest.raises(UserError, match=said):
        plan(wide, Config(dataset="wide", first="exact"))
    plan(wide, Config(dataset="wide", first="exact", model="gcnii"))
    with pytest.raises(UserError, match=said):
        Run("gcn", first="exact", x=SparseRows.from_dense(torch.eye(NODES, 300)))
    auto = Config(dataset="wide", first="auto", hidden_channels=4000)
    assert plan(wide, auto).settings.first == "cached" and plan(wide, auto.changed(model="gcnii")).settings.first == "exact"
    run = Run("gcn", first="auto", x=SparseRows.from_dense(torch.eye(NODES, 300)))
    assert not run.engine.inputs.exact_first and run.losses(2)
