"""Theorem 1: the measured sums are bounds, and zero without staleness."""

from typing import Any

import pytest
import torch

from rest_triton.lab.studies.bound import Constants, constants, neighbourhoods, sums
from rest_triton.training.trainer import Trainer

from ..training.data import settings, small
from .test_staleness import begun, dense_adjacency, gradients_of

MODELS: dict[str, dict[str, Any]] = {
    "gcn": dict(model="gcn", batch_norm=True),
    "gcn-plain": dict(model="gcn", num_layers=4),
    "gcn-linear": dict(model="gcn", linear=True, batch_norm=True),
    "appnp": dict(model="appnp", num_layers=4),
    "appnp-exact": dict(model="appnp", num_layers=4, first="exact"),
    "gcnii": dict(model="gcnii", batch_norm=True),
}


@pytest.mark.parametrize("model", MODELS)
def test_both_sums_are_above_the_error_of_the_results(model: str) -> None:
    """And in the right order. One table alone is moved in turn, so that no term can hide behind another."""
    trainer = begun(epochs=1, **MODELS[model])
    adj = trainer.loaded.adj
    for table in range(len(trainer.history.tables)):
        trainer.begin()
        moved = torch.randn_like(trainer.history.tables[table].rows)
        trainer.history.tables[table].rows += moved
        found = constants(trainer.model, adj, directed=False, exact_first=trainer.config.first == "exact")
        near = neighbourhoods(adj)
        for batch, error in gradients_of(trainer):
            sharp, papers = sums(found, error.aggregate, error.farthest, near[batch.rows])
            assert 0 < error.output <= sharp * (1 + 1e-4) <= papers
            assert [far > 1e-4 for far in error.farthest] == [t == table for t in range(len(trainer.history.tables))]


def test_the_sum_by_hand() -> None:
    """Each term is multiplied by the constants of its layer, of all later ones and of the tail."""
    two = Constants([2.0, 3.0], tail=5.0, adjacency=7.0)
    assert two.total([1.0, 0.0]) == 5 * 3 * 7 * 2 and two.total([0.0, 1.0]) == 5 * 3
    assert two.total([1.0, 1.0]) == two.total([1.0, 0.0]) + two.total([0.0, 1.0]) and two.total([0.0, 0.0]) == 0


def test_constants_of_a_gcn() -> None:
    """The spectral norm of weights and running statistics, for layers that read a table."""
    trainer = begun(epochs=1, **MODELS["gcn"])
    found = constants(trainer.model, trainer.loaded.adj, directed=False)
    norm, conv = trainer.model.bns[1], trainer.model.convs[1]
    scaled = conv.lin.weight * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]
    last = trainer.model.convs[2].lin.weight
    assert found.layers == pytest.approx([float(torch.linalg.svdvals(w.detach())[0]) for w in (scaled, last)], rel=1e-4)
    assert found.tail == found.adjacency == 1


def test_what_is_known_of_the_adjacency() -> None:
    trainer = begun()
    adj, dense = trainer.loaded.adj, dense_adjacency(trainer)
    assert float(torch.linalg.matrix_norm(dense, 2)) <= 1 + 1e-5
    by_hand = (dense != 0).sum(1) * dense.norm(dim=1)
    torch.testing.assert_close(neighbourhoods(adj), by_hand, rtol=1e-4, atol=1e-5)
    other = Trainer(settings(), small(directed=True))
    bound = constants(other.model, other.loaded.adj, directed=True).adjacency
    assert float(torch.linalg.matrix_norm(dense_adjacency(other), 2)) <= bound * (1 + 1e-5)


def test_what_is_not_known_is_refused() -> None:
    trainer = begun(residual=True)
    with pytest.raises(ValueError, match="the constants of GCN are not known, or not with --residual; study gcn"):
        constants(trainer.model, trainer.loaded.adj, directed=False)


def test_batches_without_a_training_node_have_no_gradient() -> None:
    trainer = Trainer(settings(batch_size=1), small(only=3))
    trainer.begin()
    ((batch, _),) = gradients_of(trainer)
    assert batch.clusters == (3,)
