"""Whole steps: the same losses wherever the tables are, and the right ones where they can be known."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.nn.context import View
from rest_triton.ops import debug, history_spmm_definition, use_backend
from rest_triton.sampling.batch import ClusterLoader

from ..history.runs import MODELS, NODES, PTR, Run, disk

METHODS = [("gas", 0), ("rest", 1), ("rest", 3), ("is", 1), ("is", 3)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("method", "frequency"), METHODS)
def test_same_losses_wherever_the_tables_are(model: str, method: str, frequency: int, tmp_path: Path) -> None:
    expected = Run(model)
    losses = expected.losses(20, method, frequency)
    assert len(set(losses)) == 20  # a loss that stood still would prove nothing
    for other in (Run(model, place="pinned"), Run(model, far=True), Run(model, **disk(tmp_path / "tables"))):
        assert other.losses(20, method, frequency) == losses  # bitwise
        other.store.streams.finish()
        for ours, theirs in zip(expected.results(), other.results(), strict=True):
            assert torch.equal(ours, theirs)
        other.store.close()


def test_repeatable_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    threads(1)
    one = Run("gcn-norm").losses(6, "rest")
    threads(3)
    assert Run("gcn-norm").losses(6, "rest") == one


@pytest.mark.parametrize("model", MODELS)
def test_narrow_tables_change_little(model: str) -> None:
    """bfloat16 keeps 8 bits: each row is off by 2^-9 of its size at most, and so, about, is the loss after 20 steps.

    With BatchNorm only of the first ones: among forty nodes it meets columns that hardly vary, divides their rounding by
    next to nothing, and Adam makes a step of it.
    """
    steps, seeds = (2, 3) if "norm" in model else (20, 1)
    for seed in range(seeds):
        exact = Run(model, seed=seed).losses(steps, "rest")
        for dtype, bits in ((torch.bfloat16, 9), (torch.float16, 12)):
            narrow = Run(model, seed=seed, dtype=dtype).losses(steps, "rest")
            worst = max(abs(a - b) / abs(a) for a, b in zip(exact, narrow, strict=True))
            assert 0 < worst < 8 * 2.0**-bits, (dtype, seed, worst)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("method", "frequency"), METHODS)
def test_kernels_against_definitions(model: str, method: str, frequency: int) -> None:
    with use_backend("torch"):
        expected = Run(model).losses(8, method, frequency)
    torch.testing.assert_close(torch.tensor(Run(model).losses(8, method, frequency)), torch.tensor(expected))


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_of_everyone_needs_no_history(model: str) -> None:
    """Then all methods are full-batch training."""
    results = []
    for method, frequency in (("gas", 0), ("rest", 2), ("is", 2)):
        run = Run(model)
        run.batches = run.refresh_batches = ClusterLoader(PTR, 6)
        results.append(run.losses(5, method, frequency))
    assert results[0] == results[1] == results[2]


STARTING = [name for name in MODELS if name not in ("gcn", "gcn-norm")]  # with something made of features alone


@pytest.mark.parametrize("model", STARTING)
@pytest.mark.parametrize(("method", "frequency"), METHODS)
def test_exact_input_wherever_the_tables_are(model: str, method: str, frequency: int, tmp_path: Path) -> None:
    """First embeddings of neighbours computed anew: one table less, and other losses than from a table."""
    expected = Run(model, exact=True)
    assert len(expected.store.tables) == len(expected.model.widths) - 1
    losses = expected.losses(12, method, frequency)
    assert losses != Run(model).losses(12, method, frequency)
    with use_backend("torch"):
        torch.testing.assert_close(
            torch.tensor(Run(model, exact=True).losses(8, method, frequency)), torch.tensor(losses[:8])
        )
    for other in (Run(model, exact=True, far=True), Run(model, exact=True, **disk(tmp_path / "tables"))):
        assert other.losses(12, method, frequency) == losses
        other.store.streams.finish()
        for ours, theirs in zip(expected.results(), other.results(), strict=True):
            assert torch.equal(ours, theirs)
        other.store.close()


@pytest.mark.parametrize("model", ["appnp", "gcnii", "gcn-linear"])
def test_exact_input_has_the_gradient_of_the_whole_neighbourhood(model: str) -> None:
    """One propagation, no dropout: then the gradient is that of full-batch training on the batch's nodes, halo included."""
    gradients = []
    for everyone in (False, True):
        run = Run(model, exact=True)
        run.model.dropout = 0.0
        if model == "appnp":
            run.model.num_layers, run.model.widths = 1, run.model.widths[:1]
        else:
            run.model.convs, run.model.widths = run.model.convs[:1], run.model.widths[:1]
        batch = run.batches.epoch(0)[0]
        rows = batch.rows if everyone else slice(None)
        y = batch.take(run.graph.y)
        used = ClusterLoader(PTR, 6).epoch(0)[0] if everyone else batch
        run.engine.train(used, 1, lambda logits, rows=rows, y=y: F.cross_entropy(logits[rows], y))
        gradients.append([p.grad for p in run.model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_exact_histories_give_exact_logits(model: str) -> None:
    """Without dropout, and with tables that are not stale, a batch sees its whole neighbourhood."""
    run = Run(model)
    run.model.dropout = 0.0
    run.engine.fill(step=1)
    exact = run.engine.exact()
    for batch in run.batches.epoch(0):
        got: list[Tensor] = []

        def look(logits: Tensor, got: list[Tensor] = got) -> None:
            got.append(logits.detach())

        run.engine.step(batch, 1, look, run.optimizer)
        torch.testing.assert_close(got[0], exact[batch.rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
@pytest.mark.parametrize("far", [False, True])
def test_importance_makes_all_rows_fresh(model: str, far: bool) -> None:
    """After REST-IS every row that the batch reads was written in this step; after REST those of the refreshed batches."""
    run = Run(model, far=far)
    batch = run.batches.epoch(0)[0]
    run.step(1, "is", 2)
    halo = batch.halo(run.engine.scene.adj)
    for table in range(len(run.store.tables)):
        assert run.store.ages(table, 1, halo).percentiles[3] == 0
        assert run.store.ages(table, 1, batch.rows).percentiles[3] == 0
        outside = torch.ones(NODES, dtype=torch.bool)
        outside[halo] = outside[batch.rows] = False
        assert set(run.store.stamp(table)[outside].tolist()) <= {0}
    rest = Run(model, far=far)
    rest.step(1, "rest", 1)
    assert rest.store.ages(0, 1, rest.refresh_batches.epoch(0)[0].rows).percentiles[3] == 0


def test_age_falls_with_frequency() -> None:
    ages = []
    for frequency in (0, 1, 2):
        run = Run("gcn")
        run.batches, run.refresh_batches = ClusterLoader(PTR, 1, seed=1), ClusterLoader(PTR, 1, seed=2)
        run.losses(30, "rest", frequency)
        ages.append(run.store.ages(0, 30).mean)
    assert ages[0] > ages[1] > ages[2]


def test_refresh_touches_nothing_but_tables() -> None:
    run = Run("gcn-norm")
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.engine.refresh(run.batches.epoch(0)[0], 1)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in run.model.parameters())


def test_batch_norm_as_in_torch() -> None:
    """Batch statistics, running statistics and gradients of view.activate are BatchNorm1d's."""
    run = Run("gcn-norm")
    run.model.dropout = 0.0
    run.batches = ClusterLoader(PTR, 6)
    batch = run.batches.epoch(0)[0]
    assert run.graph.y is not None
    adj = run.engine.scene.adj
    norms = [torch.nn.BatchNorm1d(16), torch.nn.BatchNorm1d(16)]
    lins = [torch.nn.Linear(conv.lin.in_features, conv.lin.out_features) for conv in run.model.convs]
    for ours, theirs in zip(run.model.convs, lins, strict=True):
        torch.nn.init.uniform_(ours.bias, -1, 1)
        theirs.load_state_dict({"weight": ours.lin.weight, "bias": ours.bias})
    dense = torch.zeros(NODES, NODES)
    target = torch.repeat_interleave(torch.arange(NODES), adj.rowptr.diff())
    assert adj.row_scale is not None
    dense[target, adj.col.long()] = adj.row_scale[target] * adj.row_scale[adj.col.long()]
    h = norms[0](lins[0](dense @ run.engine.scene.x)).relu()
    h = (norms[1](lins[1](dense @ h)) + h).relu()
    expected = F.cross_entropy(lins[2](dense @ h), run.graph.y)
    expected.backward()
    loss = run.engine.step(batch, 1, lambda logits: F.cross_entropy(logits, run.graph.y), run.optimizer)
    assert loss is not None
    torch.testing.assert_close(loss, expected.detach())
    for ours, theirs in zip(run.model.bns, norms, strict=True):
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    for ours, theirs in zip(run.model.convs, lins, strict=True):
        torch.testing.assert_close(ours.lin.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)


def test_reading_what_nobody_wrote_is_refused_in_debug_mode() -> None:
    run = Run("gcn")
    for table in run.store.tables:
        table.stamp.fill_(-1)
    with debug(), pytest.raises(ValueError, match="rows that are read from table 0 were never written"):
        run.step(1)
    run.engine.fill()
    with debug():
        run.step(1)


def test_maps_are_restored_after_an_error() -> None:
    run = Run("gcn", far=True)

    def fail(logits: Tensor) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run.engine.step(run.batches.epoch(0)[0], 1, fail, run.optimizer)
    outside = ~torch.arange(NODES, dtype=torch.int32)
    assert all(torch.equal(free, outside) for maps in run.engine.maps.values() for free in maps._free)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_first_aggregate(dropout: float) -> None:
    """Of features, whoever is in the batch; edges are dropped for training, and not for a refresh."""
    run = Run("gcn", directed=True)
    scene, batch = run.engine.scene, run.batches.epoch(0)[0]
    scene.edge_dropout = dropout
    with run.engine._entered(batch, None) as position:
        maps = run.engine.maps["compute"]
        view = View(scene, batch, position, maps, step=1)
        seed = View(scene, batch, position, maps, step=1).next_seed()
        expected = history_spmm_definition(
            scene.adj, batch.rows, ~torch.arange(NODES).int(), None, scene.x, edge_dropout=dropout, seed=seed
        )
        torch.testing.assert_close(view.aggregated_features(), expected)
        refreshed = View(scene, batch, position, maps, step=1, refreshing=True).aggregated_features()
    whole = history_spmm_definition(scene.adj, batch.rows, ~torch.arange(NODES).int(), None, scene.x)
    torch.testing.assert_close(refreshed, whole)


def test_directed_graph_and_edge_dropout() -> None:
    run = Run("gcn", directed=True)
    run.engine.scene.edge_dropout = 0.3
    first = run.losses(10, "rest")
    again = Run("gcn", directed=True)
    again.engine.scene.edge_dropout = 0.3
    assert again.losses(10, "rest") == first
    assert Run("gcn", directed=True).losses(10, "rest") != first
