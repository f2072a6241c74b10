"""What an epoch is spent on, by dispatched ops."""

import time
import warnings
from pathlib import Path

import pytest
import torch

from bench.pipelines import THEIRS, TINY, epochs, epochs_of, our_shares, permuted, pygas, settings, their_shares
from bench.split import PARTS, Split
from rest_triton.data.clusters import load_data
from rest_triton.ops import activate, gather_rows
from rest_triton.training.trainer import Trainer


def test_ops_are_counted_where_they_belong() -> None:
    x, big = torch.randn(200, 200), torch.randn(1500, 1500)
    split = Split(moving="history")

    def run() -> None:
        _ = big @ big
        with split.within("refresh"):
            _ = big @ big
            time.sleep(0.02)
        activate(x, dropout=0.5, seed=1, rows=torch.arange(200))
        gather_rows(x, torch.arange(200))
        torch.cat([x, x])
        time.sleep(0.05)

    shares = split.shares(run)
    assert set(shares) == set(PARTS) and sum(shares.values()) == pytest.approx(1)
    assert all(shares[part] > 0 for part in ("dense", "refresh", "activate", "history"))
    assert split.seconds["refresh"] > 0.02 and split.seconds["other"] >= 0.05  # Python counts, too
    assert shares["aggregate"] == shares["data"] == shares["optimizer"] == 0


def test_backward_is_counted() -> None:
    x = torch.randn(60, 60, requires_grad=True)
    split, seen = Split(), []
    original = split._part
    split._part = lambda func, args: seen.append(func._schema.name) or original(func, args)
    split.shares(lambda: (x @ x).sum().backward())
    assert seen.count("aten::mm") == 3


def test_products_with_a_sparse_matrix_are_the_aggregate() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    split = Split()
    matrix = torch.eye(50).to_sparse_csr()
    shares = split.shares(lambda: matrix @ torch.randn(50, 8))
    assert shares["aggregate"] > 0 and shares["dense"] == 0


@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_pipelines_are_the_same_network_and_are_left_as_they_were(model: str, tmp_path: Path) -> None:
    config = settings(model, TINY, str(tmp_path), True, batch_size=5, method="gas+rest").changed(dropout=0.0)
    trainer = Trainer(config, load_data(config))
    theirs = pygas(config, *permuted(config), trainer)
    for name, parameter in theirs.model.named_parameters():
        mine = dict(trainer.model.named_parameters()).get(name)
        assert mine is None or torch.equal(mine, parameter)
    ours, them = epochs(trainer), epochs_of(theirs)
    before = trainer.engine.update, trainer.schedule.before
    mine, other = our_shares(trainer, ours), their_shares(theirs, them)
    assert (trainer.engine.update, trainer.schedule.before) == before
    for part in ("data", "aggregate", "dense", "refresh", "optimizer", "activate"):
        assert mine[part] > 0, part
    for part in ("data", "aggregate", "dense", "history", "optimizer", "activate"):
        assert other[part] > 0, part
    assert other["refresh"] == 0 and THEIRS
