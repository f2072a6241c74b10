"""Runs that are killed, at any moment and again and again, end as if nobody had."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.training import checkpoint
from rest_triton.training import run as session

from .resuming import Data, losses, records, same, state_in

# A process of its own, as a person starts it.
COMMAND = [
    "--dataset", "synthetic:nodes=600,edges=5000,features=16,classes=4", "--recipe", "none", "--num-parts", "6",
    "--batch-size", "2", "--hidden-channels", "16", "--dropout", "0.3", "--method", "gas+rest", "--epochs", "8",
]  # fmt: skip


class Killer:
    """Starts a run in ``folder``, or goes on with it, and kills it within ``most`` seconds after the first epoch it does."""

    def __init__(self, folder: Path, root: Path, *more: str, seed: int = 0, most: float = 0.0) -> None:
        self.folder, self.draw, self.most = folder, random.Random(seed), most
        self.begin = [*COMMAND, *more, "--root", str(root), "--run-dir", str(folder)]
        self.said, self.kills = "", 0
        self.found: list[str] = []  # in the folder of checkpoints, after each kill

    def start(self) -> "subprocess.Popen[str]":
        arguments = ["--resume", str(self.folder)] if (self.folder / "config.yaml").exists() else self.begin
        return subprocess.Popen(
            [sys.executable, "-m", "rest_triton.train", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def lines(self) -> list[bytes]:
        """Of metrics.jsonl: one for each epoch."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_bytes().splitlines() if metrics.exists() else []

    def finish(self, kills: int) -> None:
        """Kill it so many times, if it lasts, and then let it come to its end."""
        while self.kills < kills:
            child, written = self.start(), None
            while child.poll() is None:
                now = len(self.lines())
                # What a former try did of later epochs is gone when the first one of this try is there.
                written = now if written is None else min(written, now)
                if now > written:
                    time.sleep(self.draw.random() * self.most)
                    child.kill()
                    break
                time.sleep(0.0005)
            self.said += child.communicate(timeout=60)[1]
            if child.returncode == 0:
                return
            assert child.returncode == -signal.SIGKILL, self.said
            self.kills += 1
            self.found.append(f"{len(self.lines())}: {sorted(p.name for p in self.folder.glob('checkpoints/*'))}")
        last = self.start()
        self.said += last.communicate(timeout=120)[1]
        assert last.returncode == 0, self.said


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


def test_killed_at_random(root: Path, tmp_path: Path) -> None:
    whole = Killer(tmp_path / "whole", root, "--save-history")
    whole.finish(kills=0)
    epoch = median(b - a for a, b in pairwise(json.loads(line)["seconds"] for line in whole.lines()))
    killed = Killer(tmp_path / "killed", root, "--save-history", seed=1, most=1.5 * epoch)
    without = Killer(tmp_path / "without", root, seed=2, most=epoch)
    with ThreadPoolExecutor() as both:
        list(both.map(Killer.finish, (killed, without), (4, 2)))
    assert killed.kills >= 3, killed.found
    assert records(tmp_path / "killed") == records(tmp_path / "whole") and len(records(tmp_path / "killed")) == 8
    assert same(state_in(tmp_path / "killed"), state_in(tmp_path / "whole"))
    assert "exact pass" not in killed.said
    assert not list(tmp_path.rglob("*.partial-*"))

    assert "no history tables were saved with it: they are filled by an exact pass" in without.said, without.found
    found, expected = losses(tmp_path / "without"), losses(tmp_path / "whole")
    assert list(found) == [1, 2, 3, 4, 5, 6, 7, 8] and all(0 < loss < 3 for loss in found.values())
    taken_up = int(re.findall(r"going on after epoch (\d+)", without.said)[0])
    assert [found[e] == expected[e] for e in found] == [e <= taken_up for e in found]


pytestmark = pytest.mark.usefixtures("without_pictures")


class Child:
    """A process that does ``work`` and is killed. It may call ``say`` to let :meth:`wait` return."""

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
    """The ``at``-th call that changes a folder, or makes it durable, is this process's last, before it or after it."""
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
    """As the command does: from the last checkpoint, or from the beginning where there is none."""
    session.Run(config, data.loaded, folder, resume=session._last(folder)).run()


# (epochs that are there, the checkpoint to go on from, epochs in the end, moments at least)
RUNS = {"the first epoch": (0, None, 1, 14), "another": (2, 2, 3, 19), "one that is done again": (2, 1, 2, 17)}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("during", RUNS)
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
    """At random, many times: soon at first, and later and later, so that there is an end to it."""
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
