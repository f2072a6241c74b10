"""LMC: its gradient is that of the full batch, once its tables are up to date; REST renews them in both directions."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.history.history import GRADIENT
from rest_triton.methods.base import Method
from rest_triton.methods.options import GRADIENTS
from rest_triton.nn import Context, HistoryGNN
from rest_triton.sampling.batch import Batch
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..history.runs import CLASSES, NODES, Run, disk, same_results
from ..training.data import gradients, settings, small

MODELS = ["gcn", "appnp", "gcnii"]
BIDIRECTIONAL: dict[str, Any] = dict(method="lmc+rest", frequency=3, gradient_frequency=2)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


@pytest.fixture
def aggregate_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All methods multiply in LMC's order, so that bits compare."""
    monkeypatch.setattr(Method, "transforms_first", lambda *of: False)


def frozen(model: str, method: str = "lmc", **options: Any) -> Run:
    return Run(model, method=method, dropout=0.0, **options)


def noise(run: Run) -> Run:
    draw = torch.Generator().manual_seed(7)
    for table in run.history.all_tables:
        table.rows.copy_(torch.randn(table.rows.shape, generator=draw))
    return run


def flat(found: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten().double() for g in found])


def sweep(run: Run, number: int, refresh: bool = False) -> Tensor:
    """The sum of the gradients of an epoch's batches, by the normaliser of the full loss."""
    run.model.zero_grad()
    normalised = run.trainer.method if run.config.base in GRADIENTS else Run("gcn", method="lmc").trainer.method
    for batch in run.trainer.method.batches(number):
        if refresh:
            run.engine.refresh(batch, number, backward=True)
        else:
            run.engine.train(batch, number, normalised.loss(run.graph, batch, CPU))
    run.history.streams.finish()
    return flat(gradients(run.model))


def full_gradient(run: Run) -> Tensor:
    """That of one batch of all nodes, with the weights of a run."""
    settings = {"first": "cached", "history": "device", "dtype": "float32", "method": "full", "gradient_frequency": 0}
    trainer = Trainer(run.config.changed(**settings, frequency=1), run.data)
    trainer.model.load_state_dict(run.model.state_dict())
    batch = trainer.method.batches(1)[0]
    trainer.engine.train(batch, 1, trainer.method.loss(run.graph, batch, CPU))
    return flat(gradients(trainer.model))


def off(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def sweeps(run: Run) -> int:
    """After so many the gradient is exact: 2 L - 1, where encoding features counts as a layer."""
    return 2 * (run.model.num_layers + run.model.encodes) - 1


# M1 and M2.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("far", [False, True])
def test_without_gradient_tables_it_is_gas(model: str, far: bool, aggregate_first: None) -> None:
    """Q = 0: gradients and tables are bitwise those of GAS for the same loss. With other Q they are not."""
    ours, theirs = Run(model, method="lmc", far=far), Run(model, method="gas", far=far)
    for filled in (False, True):
        for number, batch in enumerate(ours.trainer.method.batches(1), start=1):
            for table in ours.history.kinds[GRADIENT]:
                table.rows.fill_(0.01 * filled)
            loss_of = ours.trainer.method.loss(ours.graph, batch, CPU)
            for run in (ours, theirs):
                run.model.zero_grad()
                run.engine.train(batch, number, loss_of)
            expected = zip(gradients(ours.model), gradients(theirs.model), strict=True)
            assert all(torch.equal(a, b) for a, b in expected) != filled
            for a, b in zip(ours.history.tables, theirs.history.tables, strict=True):
                assert torch.equal(a.rows, b.rows) and torch.equal(a.stamp, b.stamp)


@pytest.mark.parametrize("model", MODELS)
def test_one_batch_of_all_nodes_is_full_batch(model: str, aggregate_first: None) -> None:
    """Bitwise, whatever the tables hold."""
    found = []
    for method in ("lmc", "full"):
        run = Run(model, method=method)
        loss_of = Method.loss(run.trainer.method, run.graph, run.batch(), CPU)
        run.engine.train(run.batch(), 1, loss_of) if method == "full" else noise(run).engine.train(run.batch(), 1, loss_of)
        found.append(gradients(run.model))
    assert all(torch.equal(a, b) and bool(a.any()) for a, b in zip(*found, strict=True))


# M3 and M4.

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{model: (model, {}) for model in MODELS},
    "gcn-linear": ("gcn-linear", {}),
    "gin": ("gin", {}),
    "gcn, directed": ("gcn", dict(directed=True)),
    "gcnii, directed, far": ("gcnii", dict(directed=True, far=True)),
    "appnp, exact": ("appnp", dict(first="exact")),
    "gcn-linear, exact, directed, far": ("gcn-linear", dict(first="exact", directed=True, far=True)),
    "gcn, exact": ("gcn", dict(first="exact")),
    "gin, exact, directed, far": ("gin", dict(first="exact", directed=True, far=True)),
    "gcnii, exact, far": ("gcnii", dict(first="exact", far=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_gradient_of_an_epoch_is_that_of_the_full_batch(case: str) -> None:
    """With frozen weights, from tables of noise. That of GAS stays off, also with exact tables."""
    model, options = CASES[case]
    run = noise(frozen(model, **options))
    truth, errors = full_gradient(run), []
    for number in range(1, sweeps(run) + 1):
        errors.append(off(sweep(run, number), truth))
    assert errors[0] > 0.1 and errors[-1] < 2e-6
    gas = frozen(model, "gas", **options)
    assert min(off(sweep(gas, number), truth) for number in (1, 2)) > 0.1


@pytest.mark.parametrize("first", ["cached", "exact"])
@pytest.mark.parametrize("model", MODELS)
def test_tables_hold_the_gradients_of_aggregates(model: str, first: str, aggregate_first: None) -> None:
    run = noise(frozen(model, first=first))
    for number in range(1, sweeps(run) + 1):
        sweep(run, number)
    full = frozen(model, "full")
    made: list[Tensor] = []

    def aggregate(ctx: Context, **mix: Any) -> Tensor:
        made.append(ctx.aggregate(**mix))
        made[-1].retain_grad()
        return made[-1]

    full.trainer.method.aggregate = aggregate  # type: ignore[method-assign]
    full.engine.train(full.batch(), 1, Method.loss(full.trainer.method, full.graph, full.batch(), CPU))
    tables = run.history.kinds[GRADIENT]
    assert len(tables) == len(made) == len(run.model.history_dims)
    for table, z in zip(tables, made, strict=True):
        assert z.grad is not None
        assert int(table.stamp.min()) == sweeps(run)
        assert off(table.rows.double(), z.grad.double()) < 2e-6


def test_a_batch_without_training_nodes_has_a_gradient() -> None:
    """Its rows feed the losses of others. All training nodes are in one cluster, so most batches have none."""
    loaded, config = small(only=3), settings(method="lmc", lr=0.1, batch_size=1)
    trainer = Trainer(config, loaded)
    trainer.begin()
    full = Trainer(settings(method="full"), loaded)
    batch = full.method.batches(1)[0]
    full.engine.train(batch, 1, full.method.loss(loaded.graph, batch, CPU))
    for number in range(1, 6):
        trainer.model.zero_grad()
        for batch in trainer.method.batches(number):
            trainer.engine.train(batch, number, trainer.method.loss(loaded.graph, batch, CPU))
    assert off(flat(gradients(trainer.model)), flat(gradients(full.model))) < 2e-6
    other = next(batch for batch in trainer.method.batches(1) if batch.clusters != (3,))
    before = flat(list(trainer.model.parameters()))
    losses = trainer.update([other])
    assert [float(loss) for loss in losses] == [0.0] and trainer.step == 1
    first = trainer.model.convs[0].lin.weight.grad
    assert float(first.norm()) > 0 and not torch.equal(flat(list(trainer.model.parameters())), before)


def test_the_loss_is_that_of_all_training_nodes() -> None:
    """With frozen weights the mean over an epoch is the loss of the full batch, and gradients are scaled alike."""
    run, full = frozen("gcn", lr=0.0), frozen("gcn", "full", lr=0.0)
    expected = float(full.trainer.epoch(1)["loss"])
    assert run.trainer.method.scale == len(run.trainer.method.batches(1)) == 3
    assert run.trainer.epoch(1)["loss"] == pytest.approx(expected, rel=1e-6)
    (batch, *_) = run.trainer.method.batches(2)
    run.model.zero_grad()
    run.engine.train(batch, 9, run.trainer.method.loss(run.graph, batch, CPU))
    alone = flat(gradients(run.model))
    run.engine.update(run.trainer.optimizer)
    torch.testing.assert_close(flat(gradients(run.model)), 3 * alone)


# Tables: number formats, places, checkpoints, memory.


@pytest.mark.parametrize("model", MODELS)
def test_float16_does_not_underflow(model: str) -> None:
    """Of 2e8 training nodes each has a gradient that float16 rounds to zero. Scaled, it keeps its eleven bits."""
    found = {}
    for dtype in ("float32", "float16"):
        run = frozen(model, dtype=dtype)
        method: Any = run.trainer.method
        method.training_nodes = 200_000_000
        for number in range(1, sweeps(run) + 1):
            gradient = sweep(run, number)
        unit = method.unit(run.history.dtype)
        found[dtype] = gradient, [table.rows.double() / unit for table in run.history.kinds[GRADIENT]]
    assert not any(bool(rows.half().any()) for rows in found["float32"][1])
    for exact, kept in zip(found["float32"][1], found["float16"][1], strict=True):
        assert 0 < off(kept, exact) < 4 * 2.0**-11
    assert 0 < off(found["float16"][0], found["float32"][0]) < 4 * 2.0**-11


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("directed", [False, True])
def test_same_losses_wherever_the_tables_are(model: str, directed: bool, tmp_path: Path) -> None:
    for method in (dict(method="lmc"), BIDIRECTIONAL, dict(method="lmc+rest-is")):
        options = dict(**method, directed=directed, first="exact" if model == "appnp" and directed else "cached")
        expected = Run(model, **options)
        losses = expected.losses(5)
        assert len(set(losses)) == 5
        for where in (dict(far=True), disk(tmp_path / f"{method['method']}")):
            other = Run(model, **options, **where)
            assert other.losses(5) == losses and same_results(expected, other)
            other.trainer.close()


@pytest.mark.parametrize("model", [*MODELS, "gin"])
@pytest.mark.parametrize("given", ["cached", "exact"])
def test_the_plan_counts_gradient_tables(model: str, given: str) -> None:
    if given == "exact" and model in ("gcn", "gin"):
        given = "cached"
    config = settings(model=model, method="lmc", dtype="bfloat16", first=given)
    sizes = Sizes(nodes=small().graph.num_nodes, edges=3000, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    kinds = Trainer(config, small()).history.kinds
    assert planned["gradient tables"] == sum(table.rows.nbytes for table in kinds[GRADIENT])
    assert planned["stamps"] == sum(table.stamp.nbytes for tables in kinds.values() for table in tables)


# Bidirectional REST.


def test_without_refreshes_it_is_lmc() -> None:
    expected, run = Run("gcn", method="lmc"), Run("gcn", **BIDIRECTIONAL)
    run.trainer.refresh.frequency.count = 0  # type: ignore[attr-defined]
    assert run.losses(6) == expected.losses(6) and same_results(run, expected)


@pytest.mark.parametrize("model", MODELS)
def test_rest_with_and_without_backward(model: str) -> None:
    """Refreshes without backward are those of REST: they write no gradient. The last ones run backward."""
    asked: list[bool] = []
    for wanted in (0, 1, 3):
        run = Run(model, method="lmc+rest", frequency=3, gradient_frequency=wanted, batch_size=1)
        refresh = run.engine.refresh

        def watched(batch: Batch, step: int, *, backward: bool, run: Run = run, real: Any = refresh, **options: Any) -> None:
            before = [table.rows.clone() for table in run.history.kinds[GRADIENT]]
            real(batch, step, backward=backward, **options)
            asked.append(backward)
            for table, old in zip(run.history.kinds[GRADIENT], before, strict=True):
                changed = torch.nonzero((table.rows != old).any(1)).squeeze(1)
                assert set(changed.tolist()) <= (set(batch.rows.tolist()) if backward else set())
                assert len(changed) > 0 or not backward

        run.engine.refresh = watched  # type: ignore[method-assign]
        run.step()
    assert asked == [False] * 3 + [False, False, True] + [True] * 3


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("model", ["gcn-norm", "appnp", "gcnii-norm"])
def test_a_refresh_with_backward_changes_tables_alone(model: str, mode: str) -> None:
    """Rows of the batch, in tables of both kinds; inputs as a refresh without backward writes them."""
    run, other = (Run(model, **BIDIRECTIONAL, refresh_mode=mode) for _ in range(2))
    for known in (run, other):
        known.step()
    batch = run.batch(0, 3)
    tables = [(t.rows.clone(), t.stamp.clone()) for t in run.history.all_tables]
    of_tables = {id(x) for table in run.history.all_tables for x in (table.rows, table.stamp)}
    before = [t.clone() for t in run.results() if id(t) not in of_tables]
    run.engine.refresh(batch, 50, draw=4, training=mode == "train", backward=True)
    other.engine.refresh(batch, 50, draw=4, training=mode == "train")
    after = [t for t in run.results() if id(t) not in of_tables]
    assert all(map(torch.equal, before, after)) and len(before) > 10
    outside = torch.ones(NODES, dtype=torch.bool)
    outside[batch.rows] = False
    for table, (rows, stamp) in zip(run.history.all_tables, tables, strict=True):
        assert torch.equal(table.rows[outside], rows[outside]) and torch.equal(table.stamp[outside], stamp[outside])
        assert not torch.equal(table.rows, rows) and bool((table.stamp[batch.rows] == 50).all())
    for ours, theirs in zip(run.history.tables, other.history.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows)
    run.model.zero_grad()
    run.engine.refresh(batch, 51, backward=True)
    assert all(p.grad is None for p in run.model.parameters())


@pytest.mark.parametrize("model", MODELS)
def test_refreshes_with_backward_are_sweeps(model: str) -> None:
    """With frozen weights: only the last epoch trains, and its gradient is that of the full batch."""
    run = noise(frozen(model))
    truth = full_gradient(run)
    for number in range(1, sweeps(run)):
        sweep(run, number, refresh=True)
    assert off(sweep(run, sweeps(run)), truth) < 2e-6


# What is refused.


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(method="lmc", model=model), f"method is lmc, but model {model} does not sum over neighbours"
    yield (
        dict(method="gas+rest", gradient_frequency=1),
        "gradient_frequency is 1, but method gas.rest has no tables of gradients; give --method lmc",
    )
    yield dict(method="lmc", gradient_frequency=1), "method lmc has no refreshes that run backward"
    yield dict(method="lmc+rest-is", gradient_frequency=1), "lmc.rest-is has no refreshes that run backward"
    lmc = dict(method="lmc+rest", gradient_frequency=3)
    yield lmc | dict(frequency=2), "gradient_frequency is 3, but frequency is 2; give --gradient-frequency 0 to 2"
    yield lmc | dict(frequency="auto"), "frequency auto has no fixed number of batches"
    yield lmc | dict(refresh_batch="full"), "refresh_batch full has no fixed number of batches"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(dataset="cora", **given)


class Neighbours(HistoryGNN):
    """A model that reads rows of neighbours itself."""

    def __init__(self) -> None:
        super().__init__([16])
        self.lins = torch.nn.ModuleList([torch.nn.Linear(12, 16), torch.nn.Linear(16, CLASSES)])

    def layer(self, layer: int, ctx: Context) -> Tensor:
        h = self.lins[layer](ctx.neighbourhood()[: len(ctx.block.rows)])
        return h if layer == 1 else ctx.output(h)


def test_a_model_that_reads_neighbours_itself_is_refused() -> None:
    Run(Neighbours(), method="gas").step()
    with pytest.raises(UserError, match=r"reads neighbours by ctx\.neighbourhood\(\), and lmc has gradients"):
        Run(Neighbours(), method="lmc").step()
