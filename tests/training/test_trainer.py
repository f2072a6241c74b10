"""Training: correct gradients, the same in every run, and the effect of each setting."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData
from rest_triton.nn import context, inputs, model_named
from rest_triton.ops import use_backend
from rest_triton.sampling.batch import Batch
from rest_triton.training.diagnosis import NotFinite
from rest_triton.training.trainer import Trainer

from .data import CLASSES, NODES, PTR, gradients, scores, settings, small

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn", dropout=0.3, batch_norm=True),
    "gcn-linear": dict(model="gcn", dropout=0.3, linear=True, drop_input=True, residual=True),
    "appnp": dict(model="appnp", dropout=0.3, mlp_layers=3, batch_norm=True),
    "gcnii": dict(model="gcnii", dropout=0.3, shared_weights=False),
    "gat": dict(model="gat", dropout=0.3, heads=2),
    "gin": dict(model="gin", dropout=0.3, batch_norm=True),
    "pna": dict(model="pna", dropout=0.3, batch_norm=True),
}
METHODS: dict[str, dict[str, Any]] = {
    "gas": dict(method="gas"),
    "rest": dict(method="gas+rest", frequency=2),
    "rest-half": dict(method="gas+rest", refresh_batch="half", refresh_mode="eval"),
    "rest-full": dict(method="gas+rest", refresh_batch="full"),
    "rest-oldest": dict(method="gas+rest", refresh_order="oldest"),
    "rest-is": dict(method="gas+rest-is", frequency=2),
    "lmc-coded": dict(method="lmc-coded+rest", frequency=2, gradient_frequency=1),
    "full": dict(method="full"),
}
# Without edge dropout, for models that sum. All training nodes are in one batch, with all neighbours.
SAMPLED: dict[str, dict[str, Any]] = {
    "vrgcn": dict(method="vrgcn"),
    "vrgcn, rest": dict(method="vrgcn+rest"),
    "vrgcn, rest-is": dict(method="vrgcn+rest-is"),
    "graphfm-ib": dict(method="graphfm-ib", ib_momentum=0.0),
    "graphfm-ib, rest": dict(method="graphfm-ib+rest", ib_momentum=0.0),
    "refresh": dict(method="refresh", gradient_quantile=0.0),
    "refresh, rest-is": dict(method="refresh+rest-is", stale_steps=0),
}
REFUSED = {"lmc-coded": ("gat", "gin", "pna")}


def begun(config: Config, loaded: ClusterData | None = None) -> Trainer:
    data = small(normalise=model_named(config.model).normalise) if loaded is None else loaded
    trainer = Trainer(config, data)
    trainer.begin()
    return trainer


def losses(trainer: Trainer, epochs: int) -> list[float]:
    return [trainer.epoch(number)["loss"] for number in range(1, epochs + 1)]


@pytest.mark.parametrize("model", MODELS)
def test_one_batch_of_all_nodes_is_full_batch_training(model: str) -> None:
    """With one batch of all nodes every method has the same losses and gradients, up to rounding."""
    found = {}
    for name, method in METHODS.items():
        if model in REFUSED.get(name, ()):
            continue
        trainer = begun(settings(**MODELS[model], **method, batch_size=8))
        found[name] = (losses(trainer, 6), gradients(trainer.model))
    expected = found.pop("full")
    assert expected[0][-1] < expected[0][0]
    for name, (loss, gradient) in found.items():
        torch.testing.assert_close(torch.tensor(loss), torch.tensor(expected[0]), msg=name)
        for ours, theirs in zip(gradient, expected[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ("gat", "pna")])
def test_all_training_nodes_and_all_neighbours_are_full_batch_training(model: str) -> None:
    """Up to rounding, without BatchNorm: rows that no training node reads are not computed. Averages and caches are off."""
    options = MODELS[model] | dict(batch_norm=False)
    expected = losses(begun(settings(**options, method="full")), 6)
    for name, method in SAMPLED.items():
        found = losses(begun(settings(**options, **method, batch_nodes=NODES, fanout=str(NODES))), 6)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", SAMPLED)
@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_kernels_and_definitions_agree_for_samples(model: str, method: str) -> None:
    """With averages and caches: twenty steps from one seed."""
    config = settings(**MODELS[model], method=SAMPLED[method]["method"], batch_nodes=30, fanout="4")
    config = config.changed(batch_norm=False, max_steps=4)
    with use_backend("torch"):
        expected = step_losses(begun(config), 5)
    found = step_losses(begun(config), 5)
    assert len(found) == 20 and found == step_losses(begun(config), 5)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "method"),
    [*(("gcn", method) for method in METHODS), ("gcn-linear", "rest"), ("gcn-linear", "rest-is"), ("appnp", "rest"),
     ("appnp", "rest-full"), ("appnp", "rest-is"), ("gcnii", "gas"), ("gcnii", "rest-half"), ("gcnii", "rest-is"),
     ("appnp", "lmc-coded"), ("gcnii", "lmc-coded")],
)  # fmt: skip
def test_kernels_and_definitions_agree_at_every_step(model: str, method: str) -> None:
    """Twenty steps from one seed.

    Refreshes in eval mode without BatchNorm: the gradient of a bias before one is zero but for rounding, Adam makes steps of
    it, and running statistics, which are only used there, do not take them away again.
    """
    evaluating = method in ("rest-half", "rest-full")
    config = settings(**(MODELS[model] | METHODS[method] | (dict(batch_norm=False) if evaluating else {})))
    epochs = 20 if method == "full" else 5
    with use_backend("torch"):
        expected = step_losses(begun(config), epochs)
    assert len(expected) == 20
    torch.testing.assert_close(
        torch.tensor(step_losses(begun(config), epochs)), torch.tensor(expected), rtol=2e-4, atol=2e-5
    )


def step_losses(trainer: Trainer, epochs: int) -> list[float]:
    found: list[float] = []

    def show(number: int, count: int, loss: float | None) -> None:
        assert loss is not None
        found.append(loss)

    for number in range(1, epochs + 1):
        trainer.epoch(number, show)
    return found


@pytest.mark.parametrize("given", ["cached", "exact"])
@pytest.mark.parametrize("model", [dict(model="gcn", linear=True), dict(model="appnp"), dict(model="gcnii"), dict()])
def test_exact_histories_give_the_full_batch_loss(model: dict[str, Any], given: str) -> None:
    """With fresh tables the losses of a batch are exact."""
    trainer = begun(settings(**model, first=given if model else "cached"))  # a plain GCN reads features
    full = begun(settings(**model, method="full"))
    full.model.load_state_dict(trainer.model.state_dict())
    y = trainer.loaded.graph.y
    assert y is not None
    for batch in trainer.method.batches(1):
        ours = loss_on(trainer, batch, lambda logits, batch=batch: F.cross_entropy(logits, batch.take(y)))
        all_nodes = full.method.batches(1)[0]
        rows = batch.rows
        theirs = loss_on(full, all_nodes, lambda logits, rows=rows: F.cross_entropy(logits[rows], y[rows]))
        torch.testing.assert_close(ours, theirs)


def loss_on(trainer: Trainer, batch: Batch, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
    """The loss of a batch, computed twice: the first pass must write into the tables the values that they hold."""
    loss = trainer.engine.train(batch, 1, loss_of)
    again = trainer.engine.train(batch, 1, loss_of)
    assert loss is not None and again is not None
    torch.testing.assert_close(loss, again)
    return loss


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_losses_whatever_ran_before(method: str) -> None:
    config = settings(**MODELS["gcn"], **METHODS[method], edge_dropout=0.2)
    first = step_losses(begun(config), 3)
    torch.manual_seed(123)
    torch.rand(1000)
    losses(begun(settings(model="gcnii", seed=5)), 2)
    other = begun(config)
    torch.rand(17)  # only the weights draw from torch's generator
    assert step_losses(other, 3) == first
    assert step_losses(begun(config.changed(seed=1)), 3) != first


def plain_of(trainer: Trainer) -> dict[str, float]:
    return scores(trainer.engine.exact(), trainer.loaded.graph)


@pytest.mark.parametrize("error", [False, True])
def test_tables_that_round_do_not_change_what_an_evaluation_finds(error: bool) -> None:
    trainer = begun(settings(**MODELS["gcn"]).changed(eval_updates_history=True, dtype="bfloat16"))
    trainer.epoch(1)
    expected = plain_of(trainer)
    found = trainer.evaluate(error=error)
    assert {part: found[part] for part in expected} == expected
    assert trainer.history.ages(1, trainer.step).mean == 0


def test_evaluation_leaves_no_trace_unless_it_is_to() -> None:
    """Exact inference on scratch tables. With eval_updates_history it writes and stamps the run's tables."""
    config = settings(**MODELS["gcn"])
    plain, looked = begun(config), begun(config)
    for number in (1, 2):
        assert plain.epoch(number)["loss"] == looked.epoch(number)["loss"]
        looked.evaluate(error=True)
    for ours, theirs in zip(plain.history.tables, looked.history.tables, strict=True):
        assert torch.equal(ours.rows, theirs.rows) and torch.equal(ours.stamp, theirs.stamp)
    writing = begun(config.changed(eval_updates_history=True))
    writing.epoch(1)
    assert writing.history.ages(0, writing.step).mean > 0
    assert writing.evaluate() == plain_of(writing)
    assert writing.history.ages(0, writing.step).mean == 0
    rows = [table.rows.clone() for table in writing.history.tables]
    writing.engine.fill(writing.step)
    assert all(torch.equal(a, b.rows) for a, b in zip(rows, writing.history.tables, strict=True))
    assert writing.epoch(2)["loss"] != plain.epoch(3)["loss"]


def test_scores_are_those_of_exact_inference() -> None:
    trainer = begun(settings(**MODELS["gcn"]))
    losses(trainer, 3)
    found = trainer.evaluate()
    assert found == scores(trainer.engine.exact(), trainer.loaded.graph) and set(found) == {"train", "val", "test"}


def test_approximation_error_is_of_staleness_alone() -> None:
    """Errors are zero up to rounding with fresh tables, and smaller with a full refresh at every step than without."""
    errors = {}
    for name in ("gas", "rest-full"):
        trainer = begun(settings(model="gcn", **METHODS[name]))
        assert trainer.evaluate(error=True)["error"] < 1e-5
        losses(trainer, 3)
        errors[name] = trainer.evaluate(error=True)["error"]
    assert errors["gas"] > 1e-3 and errors["rest-full"] < errors["gas"]
    assert "error" not in begun(settings(method="full")).evaluate(error=True)


def test_age_falls_with_frequency_and_oldest_is_the_most_even() -> None:
    ages = {}
    for name in ("gas", "rest-1", "rest-3", "oldest", "full refresh"):
        more: dict[str, Any] = dict(method="gas" if name == "gas" else "gas+rest")
        more |= dict(frequency=3) if name == "rest-3" else {}
        more |= dict(refresh_order="oldest") if name == "oldest" else {}
        more |= dict(refresh_batch="full") if name == "full refresh" else {}
        trainer = begun(settings(batch_size=1, **more))
        ages[name] = sum(trainer.epoch(number)["age"] for number in range(1, 7)) / 6
    assert ages["gas"] > ages["rest-1"] > ages["oldest"] > 0 and ages["rest-1"] > ages["rest-3"] > ages["full refresh"] == 0


def test_accumulated_gradients_are_the_mean() -> None:
    """Two batches per step: the mean of their gradients, and half as many steps."""
    one = begun(settings(model="gcn"))
    batches = one.method.batches(1)
    one.optimizer.zero_grad()
    for batch in batches[:2]:
        one.engine.train(batch, 1, half(one, batch))
    expected = gradients(one.model)
    both = begun(settings(model="gcn", accumulate=2))
    both.engine.update = lambda optimizer, clip: seen.append(gradients(both.model))
    seen: list[list[Tensor]] = []
    record = both.epoch(1)
    assert record["steps"] == 2 and len(seen) == 2 and both.step == 2
    for ours, theirs in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def half(trainer: Trainer, batch: Batch) -> Callable[[Tensor], Tensor]:
    graph = trainer.loaded.graph
    assert graph.train_mask is not None and graph.y is not None
    chosen, y = batch.take(graph.train_mask), batch.take(graph.y)
    return lambda logits: F.cross_entropy(logits[chosen], y[chosen]) / 2


def test_clipping_bounds_the_gradient() -> None:
    trainer = begun(settings(model="gcn", clip=0.01))
    trainer.epoch(1)
    norm = torch.stack([g.norm() for g in gradients(trainer.model)]).norm()
    assert norm == pytest.approx(0.01, rel=1e-3)
    free = begun(settings(model="gcn"))
    free.epoch(1)
    assert torch.stack([g.norm() for g in gradients(free.model)]).norm() > 0.05


def test_weight_decay_of_the_two_groups() -> None:
    trainer = begun(settings(model="gcn", reg_weight_decay=0.1, nonreg_weight_decay=0.2))
    decays = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    named = {name: decays[id(p)] for name, p in trainer.model.named_parameters()}
    assert named["convs.0.lin.weight"] == named["convs.1.bias"] == 0.1 and named["convs.2.lin.weight"] == 0.2


@pytest.mark.parametrize("changes", [dict(edge_dropout=0.5), dict(dropout=0.5), dict(dropout=0.5, drop_input=True)])
def test_dropout_changes_training_and_not_evaluation(changes: dict[str, Any]) -> None:
    plain, dropping = begun(settings()), begun(settings(**changes))
    dropping.model.load_state_dict(plain.model.state_dict())
    assert plain.evaluate() == dropping.evaluate()
    assert plain.epoch(1)["loss"] != dropping.epoch(1)["loss"]


def test_first_aggregate_is_computed_once_when_nothing_upstream_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for name, changes in (("plain", {}), ("edges", dict(edge_dropout=0.3)), ("input", dict(dropout=0.3, drop_input=True))):
        trainer = begun(settings(num_layers=1, **changes))
        calls: list[int] = []

        for module, op_name in ((context, "history_spmm"), (context, "halo_spmm"), (inputs, "history_spmm")):
            op = getattr(module, op_name)

            def counting(*args: Any, op: Any = op, calls: list[int] = calls, **options: Any) -> Tensor:
                calls.append(1)
                return op(*args, **options)

            monkeypatch.setattr(module, op_name, counting)
        trainer.epoch(1)
        monkeypatch.undo()
        counts[name] = len(calls)
    assert counts == {"plain": 0, "edges": 4, "input": 4}


def test_batches_without_a_training_node_still_write_their_rows() -> None:
    trainer = begun(settings(batch_size=1), small(only=3))
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.epoch(1)
    assert trainer.step == 8 and trainer.history.ages(0, 8).percentiles[3] <= 7
    assert all((trainer.history.stamp(0)[a:b] > 0).all() for a, b in pairwise(PTR))
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_half_precision_arithmetic() -> None:
    """Autocast to bfloat16: losses differ slightly from those in float32, and training learns."""
    plain, half_precision = begun(settings()), begun(settings(amp=True))
    a, b = losses(plain, 8), losses(half_precision, 8)
    assert a != b and max(abs(x - y) for x, y in zip(a, b, strict=True)) < 0.15 and b[-1] < 0.9 * b[0]


def test_max_steps() -> None:
    trainer = begun(settings(max_steps=3))
    assert trainer.epoch(1)["steps"] == 3
    with_two = begun(settings(max_steps=1, accumulate=2))
    assert with_two.epoch(1)["steps"] == 1


@pytest.mark.parametrize(
    ("break_it", "where"),
    [
        ("weight", "the weights convs.1.lin.weight are not, since the update of step 1"),
        ("table", r"\d+ rows of history table 1 are not, which the batch reads"),
        ("layer", "the [a-z ]+ of layer 1 is the first that is not"),
        ("loss", "only the loss itself is not"),
    ],
)
def test_a_loss_that_is_not_finite_is_explained(break_it: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = begun(settings(batch_size=4, num_layers=3))
    trainer.step = 1
    with torch.no_grad():
        if break_it == "weight":
            trainer.model.convs[1].lin.weight[0, 0] = torch.nan
        elif break_it == "table":
            trainer.history.tables[1].rows[:] = torch.inf
        elif break_it == "layer":
            trainer.model.convs[0].bias[:] = 1e30
            trainer.model.convs[1].lin.weight[:] = 1e30
        else:
            monkeypatch.setattr(trainer.method, "loss", lambda *_: lambda logits: logits.sum() * torch.nan)
    with pytest.raises(NotFinite, match=f"the loss of step 2 is not finite: {where}"):
        trainer.epoch(1)


def test_tables_on_disk_and_in_other_dtypes(tmp_path: Path) -> None:
    config = settings(**MODELS["gcnii"], method="gas+rest")
    expected = losses(begun(config), 3)
    on_disk = Trainer(config.changed(history="disk"), small(), folder=tmp_path / "history")
    on_disk.begin()
    assert losses(on_disk, 3) == expected
    files = sorted(path.name for path in (tmp_path / "history").iterdir())
    assert len(files) == 2 * len(on_disk.history.tables) > 0
    on_disk.evaluate(error=True)
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == files  # scratch tables are gone
    on_disk.close()
    assert list(tmp_path.iterdir()) == []
    narrow = losses(begun(config.changed(dtype="bfloat16")), 3)
    assert narrow != expected and torch.tensor(narrow).sub(torch.tensor(expected)).abs().max() < 0.05


@pytest.mark.parametrize("changes", [dict(model="appnp"), dict(model="gcnii"), dict(model="gcn", linear=True)])
def test_exact_input_of_one_layer_needs_no_tables(changes: dict[str, Any]) -> None:
    """No row is stale: the losses of a batch are those of full-batch training on its nodes."""
    trainer = begun(settings(**changes, num_layers=1, first="exact"))
    assert trainer.history.tables == [] and trainer.evaluate(error=True).keys() == {"train", "val", "test"}
    exact = trainer.engine.exact()
    for batch in trainer.method.batches(1):
        torch.testing.assert_close(trainer.engine.predict(batch, 1), exact[batch.rows], rtol=1e-4, atol=1e-5)
    assert trainer.epoch(1)["loss"] > trainer.epoch(2)["loss"]


def test_directed_graph() -> None:
    trainer = begun(settings(**MODELS["gcn"], method="gas+rest-is"), small(directed=True))
    found = losses(trainer, 5)
    assert found[-1] < found[0] and trainer.evaluate()["train"] > 2 / CLASSES


def test_it_learns() -> None:
    for model in MODELS.values():
        trainer = begun(settings(**model, method="gas+rest"))
        losses(trainer, 15)
        assert trainer.evaluate()["train"] > 0.6 > 2 / CLASSES, model
        assert trainer.history.num_nodes == NODES
