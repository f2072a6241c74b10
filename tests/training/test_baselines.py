"""Whole runs of the methods without tables: stopped, resumed, used for predictions, planned."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton import predict
from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.methods.options import SAINTS, TABLELESS
from rest_triton.training import checkpoint
from rest_triton.training import run as session
from rest_triton.training.memory import Run
from rest_triton.training.plan import plan

from .resuming import NODES, Data, newest, records, same, state_in

FEW: dict[str, Any] = dict(fanout="3", batch_nodes=15, layer_nodes=20, subgraph_nodes=20, coverage=5.0)
SIZES = Sizes(nodes=1_000_000, edges=20_000_000, features=100, classes=40, name="large", prepared=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data.make(tmp_path_factory.mktemp("data"), method="full", save_history=False)


@pytest.mark.parametrize("method", TABLELESS)
def test_a_resumed_run_is_the_same_run(method: str, data: Data, tmp_path: Path) -> None:
    """Bitwise. The resumed one begins anew with all that a method makes before training."""
    config = data.config(method=method, epochs=4, save_history=False, **FEW)
    whole = data.run(config, tmp_path / "whole").directory.path
    data.run(config.changed(epochs=2), tmp_path / "parts")
    session.Run(config, data.loaded, tmp_path / "parts", resume=newest(tmp_path / "parts")).run()
    assert records(tmp_path / "parts") == records(whole) and same(state_in(tmp_path / "parts"), state_in(whole))
    assert len(records(whole)) == 4 and records(whole)[0]["loss"] != records(whole)[1]["loss"]


@pytest.mark.parametrize("method", TABLELESS)
def test_predictions_are_those_of_the_run(method: str, data: Data, tmp_path: Path) -> None:
    made = data.run(data.config(method=method, epochs=2, save_history=False, **FEW), tmp_path / "run")
    best, _ = checkpoint.read(tmp_path / "run" / "checkpoints" / "best.pt")
    made.trainer.model.load_state_dict(best["trainer"]["model"])
    expected = made.trainer.engine.exact().softmax(1)
    shutil.copy(data.folder / "tiny.npz", tmp_path)
    predict.main(["--run", str(tmp_path / "run"), "--out", str(tmp_path / "found.npz"), "--probabilities"])
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_array_equal(found["probabilities"][data.loaded.order], expected.numpy())
        assert len(found["prediction"]) == NODES


def nbytes(config: Config) -> dict[str, int]:
    return {a.name: a.nbytes for a in plan(SIZES, config).arrays}


@pytest.mark.parametrize("method", TABLELESS)
def test_plans(method: str) -> None:
    """No tables; what a method makes of the graph is counted."""
    n, e = SIZES.nodes, SIZES.edges + SIZES.nodes
    config = Config(dataset="large", device="cpu", method=method, batch_nodes=1000)
    found, run = nbytes(config), Run(SIZES, config)
    assert not {"history tables", "stamps", "a refresh", "gradient tables"} & found.keys()
    own = {
        "features of sgc": 4 * n * 100 * (method == "sgc"),
        "weights of edges": (8 * e + 8 * (n + 1) + 4 * e) * (method in SAINTS),
        "sampling weights": 8 * n * (method == "fastgcn"),
        "scales of a batch": 4 * n * (method == "cluster"),
    }
    assert {name: found.get(name, 0) for name in own} == own
    rows = {"sage": None, "full": n, "cluster": n // 8, "sgc": 1000, "fastgcn": 1768, "ladies": 1768}.get(method)
    if method in SAINTS:
        assert 1990 * (1, 2, 3)[SAINTS.index(method)] < run.rows <= 2000 * (1, 2, 3)[SAINTS.index(method)]
        assert f"subgraphs of at most {run.rows:,} nodes" in str(plan(SIZES, config))
    elif rows is not None:
        assert run.rows == rows
    assert run.halo == 0 or method in ("sage", "full")
    assert "no tables" in str(plan(SIZES, config))
