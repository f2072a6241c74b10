"""A run that is killed within an epoch and goes on from its checkpoint, against one that is not."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rest_triton.predict import predict
from rest_triton.training import run as session
from rest_triton.training.trainer import Trainer

from ..training.resuming import Data, newest, same, state_in
from ..training.test_killed import Child, go_on


def killed_and_whole(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Kill it in the third epoch. What both runs leave behind must be the same, bit by bit."""
    monkeypatch.setattr(session, "write_report", lambda path: None)
    (folder / "data").mkdir()
    data = Data.make(folder / "data")
    config = data.config(epochs=4, **settings)
    data.run(config, folder / "whole")
    steps = Trainer(config, data.loaded, folder=folder / "count").method.batches(1)

    def work(say: Callable[[bytes], Any]) -> None:
        update = Trainer.update

        def dying(trainer: Trainer, *batches: Any) -> list[Tensor]:
            if trainer.step == 2 * len(steps) + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return update(trainer, *batches)

        Trainer.update = dying  # type: ignore[method-assign]
        go_on(config, data, folder / "killed")

    child = Child(work)
    assert child.wait() == b"" and os.WIFSIGNALED(child.end(kill=False))
    assert newest(folder / "killed").stem == "epoch-000002"
    go_on(config, data, folder / "killed")
    whole, killed = state_in(folder / "whole"), state_in(folder / "killed")
    assert same(whole, killed) and len(whole["tables"]) > 0
    assert set(predict(newest(folder / "killed"), config)[1]) == {"train", "val", "test"}
