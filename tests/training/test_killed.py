"""Runs that are killed at any moment, also repeatedly, give the results of uninterrupted runs."""

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.training import checkpoint
from rest_triton.training import run as session

from .resuming import Data, losses, records, same, state_in

pytestmark = pytest.mark.usefixtures("without_pictures")


class Child:
    """A process that runs ``work`` and is killed. A call of ``say`` in it lets :meth:`wait` return."""

    def __init__(self, work: Callable[[Callable[[bytes], Any]], None]) -> None:
        self.out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:  # nothing of pytest's may run here, whatever happens
            try:
                torch.set_num_threads(1)  # the parent's other threads are not there
                work(lambda what: os.write(into, what))
            except BaseException as error:
                os.write(into, str(error).encode())
            finally:
                os._exit(1)
        os.close(into)

    def wait(self) -> bytes:
        return os.read(self.out, 1000)

    def end(self, kill: bool = True) -> int:
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.out)
        return status


CALLS = ("fsync", "replace", "unlink")


def dying(at: int, after: bool) -> None:
    """Kill this process before or after the ``at``-th call that changes or syncs a folder."""
    calls = iter(range(10**9))

    def patch(name: str) -> None:
        call = getattr(os, name)

        def patched(*arguments: Any) -> None:
            counts = name != "unlink" or os.path.exists(arguments[0])  # or it changes nothing
            last = counts and next(calls) == at
            if not last or after:
                call(*arguments)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, patched)

    for name in CALLS:
        patch(name)


def go_on(config: Config, data: Data, folder: Path) -> None:
    """Train as the command does: from the last checkpoint, or from the beginning without one."""
    session.Run(config, data.loaded, folder, resume=session._last(folder)).run()


# (epochs that are there, the checkpoint to go on from, epochs in the end, moments at least)
RUNS = {"the first epoch": (0, None, 1, 14), "another": (2, 2, 3, 19), "one that is done again": (2, 1, 2, 17)}


@pytest.mark.parametrize(("during", "after"), [*((during, False) for during in RUNS), ("another", True)])
def test_killed_at_every_step_of(during: str, after: bool, data: Data, tmp_path: Path) -> None:
    there, start, epochs, least = RUNS[during]
    config = data.config(epochs=epochs, frequency=2)
    whole = data.run(config, tmp_path / "whole").directory.path
    if there:
        data.run(config.changed(epochs=there), tmp_path / "there")
    left = set()
    for at in range(100):
        folder = tmp_path / str(at)
        if there:
            shutil.copytree(tmp_path / "there", folder)

        def work(say: Callable[[bytes], Any], folder: Path = folder, at: int = at) -> None:
            resume = None if start is None else checkpoint.epoch_path(folder / "checkpoints", start)
            dying(at, after)
            session.Run(config, data.loaded, folder, resume=resume).run()
            say(b"done")

        child = Child(work)
        said = child.wait()
        if os.WIFEXITED(child.end(kill=False)):
            assert said == b"done"
            break
        assert said == b""
        left |= {re.sub(r"-\d+$", "", path.name) for path in folder.rglob("*")}
        go_on(config, data, folder)
        assert records(folder) == records(whole) and same(state_in(folder), state_in(whole)), at
        assert not list(folder.rglob("*.partial-*"))
        shutil.rmtree(folder)
    assert at >= least
    last = f"epoch-{epochs:06}"
    assert {f"{last}.tables", f"{last}.pt", "metrics.jsonl", "summary.json"} <= left
    if not after:
        assert {f"{last}.tables.partial", f"{last}.pt.partial", "best.pt.partial", "config.yaml.partial"} <= left


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "refilled"])
def test_killed_again_and_again(saved: bool, data: Data, tmp_path: Path) -> None:
    """Kill the run at random times, soon at first and later each time, so that it ends."""
    config = data.config(epochs=12, save_history=saved)
    begin = time.perf_counter()
    whole = data.run(config, tmp_path / "whole").directory.path
    took = time.perf_counter() - begin
    draw, folder, kills = random.Random(3), tmp_path / "killed", 0
    while True:
        child = Child(lambda say: go_on(config, data, folder))
        time.sleep(draw.random() * took * (kills + 5) / 30)
        if os.WIFEXITED(child.end()):
            break
        kills += 1
    assert kills >= 5
    found, expected = losses(folder), losses(whole)
    assert list(found) == list(expected) and all(0 < loss < 3 for loss in found.values())
    if saved:
        assert records(folder) == records(whole) and same(state_in(folder), state_in(whole))
    else:
        assert found != expected
