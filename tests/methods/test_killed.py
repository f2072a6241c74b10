"""A run of any method that is killed within an epoch and goes on from its checkpoint is the run that was not killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rest_triton.methods.options import BASES, TABLELESS
from rest_triton.predict import predict
from rest_triton.training import run as session
from rest_triton.training.trainer import Trainer

from ..training.resuming import Data, newest, same, state_in
from ..training.test_killed import Child, go_on
from .caches import CACHE

SAMPLED: dict[str, Any] = dict(fanout="2", batch_nodes=20)
OPTIONS: dict[str, dict[str, Any]] = {
    "lmc": dict(method="lmc+rest", frequency=3, gradient_frequency=2),
    "lmc-coded": dict(method="lmc-coded+rest", frequency=3, gradient_frequency=2),
    "graphfm": dict(method="graphfm+rest", push_momentum=0.4),
    "graphfm-ib": SAMPLED | dict(method="graphfm-ib+rest", ib_momentum=0.3),
    "vrgcn": SAMPLED | dict(method="vrgcn+rest"),
    "mvs": dict(method="mvs+rest", batch_nodes=20, importance_every=3, importance_share=0.5),
    "refresh": CACHE | dict(method="refresh+rest"),
    "sage": SAMPLED,
    "fastgcn": dict(batch_nodes=20, layer_nodes=30),
    "ladies": dict(batch_nodes=20, layer_nodes=30),
    "saint-node": dict(subgraph_nodes=30),
    "saint-edge": dict(subgraph_nodes=20),
    "saint-walk": dict(subgraph_nodes=10),
    "sgc": dict(batch_nodes=20),
}
PLACES = {"gcn": "device", "appnp": "disk", "gcnii": "device"}
CASES = [
    pytest.param(model, dict(method=base) | OPTIONS.get(base, {}), id=f"{base}-{model}")
    for base in BASES
    for model in PLACES
    if base not in TABLELESS or model == "gcn"
]


def test_every_method_is_here() -> None:
    assert set(OPTIONS) | {"gas", "cluster", "full"} == set(BASES)


@pytest.mark.parametrize(("model", "options"), [*CASES, pytest.param("appnp", CACHE | dict(cache_rows=9), id="bounded")])
def test_a_run_that_was_killed_is_the_same_run(
    model: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in the third epoch. All that the two runs leave behind is the same, bit by bit."""
    monkeypatch.setattr(session, "write_report", lambda path: None)
    tables = options["method"].partition("+")[0] not in TABLELESS
    (tmp_path / "data").mkdir()
    data = Data.make(tmp_path / "data")
    config = data.config(epochs=4, model=model, **options, **(dict(history=PLACES[model]) if tables else {}))
    data.run(config, tmp_path / "whole")
    steps = len(Trainer(config, data.loaded, folder=tmp_path / "count").method.batches(1))

    def work(say: Callable[[bytes], Any]) -> None:
        update = Trainer.update

        def dying(trainer: Trainer, *batches: Any) -> list[Tensor]:
            if trainer.step == 2 * steps + min(1, steps - 1):
                os.kill(os.getpid(), signal.SIGKILL)
            return update(trainer, *batches)

        Trainer.update = dying  # type: ignore[method-assign]
        go_on(config, data, tmp_path / "killed")

    child = Child(work)
    assert child.wait() == b"" and os.WIFSIGNALED(child.end(kill=False))
    assert newest(tmp_path / "killed").stem == "epoch-000002"
    go_on(config, data, tmp_path / "killed")
    whole, killed = state_in(tmp_path / "whole"), state_in(tmp_path / "killed")
    assert same(whole, killed) and (len(whole["tables"]) > 0) == tables
    assert set(predict(newest(tmp_path / "killed"), config)[1]) == {"train", "val", "test"}
