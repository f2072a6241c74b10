"""A whole training run: from a configuration to a folder of results, resumed where it was left."""

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from . import __version__
from .checkpoint import epoch_path, epochs, read, read_tables, remove_old, write, write_tables
from .config import Config
from .display import Display, peak_memory
from .loading import Loaded, load_for
from .machine import device_of, processor, readable
from .plan import limits_here, refuse_if_too_large
from .profiling import profiled
from .progress import notice, progress
from .report import write_report, write_summary
from .rundir import RunDirectory, new_path
from .sizes import sizes_of
from .trainer import Trainer


class Run:
    """One seed's run in its folder.

    Args:
        config: with its device and seed settled. loaded: the data. path: the folder. model: see :class:`Trainer`.
        resume: a checkpoint to go on from; None begins anew.
        command: how it was started, for the report.
    """

    def __init__(
        self, config: Config, loaded: Loaded, path: Path, model: type[Module] | None = None, resume: Path | None = None,
        command: str = "",
    ) -> None:  # fmt: skip
        self.config, self.command = config, command
        # Whatever can be refused is refused before the folder is touched.
        state = None if resume is None else read(resume, config, loaded.fingerprint)[0]
        self.directory = RunDirectory(path)
        self.trainer = Trainer(config, loaded, model, folder=path / "history")
        self.first, self.best, self.before = 1, dict[str, Any](), 0.0
        self.directory.write_config(config)
        if state is None or resume is None:
            with progress("filling the tables"):
                self.trainer.begin()
            return
        self._take_up(state, resume)

    def _take_up(self, state: dict[str, Any], path: Path) -> None:
        self.trainer.load(state["trainer"])
        self.first, self.best, self.before = state["epoch"] + 1, state["best"], state["seconds"]
        self.directory.forget_after(state["epoch"])
        there = f"going on after epoch {state['epoch']}, step {self.trainer.step}, from {path}"
        if not self.trainer.store.tables:
            notice(there)
        elif read_tables(path, self.trainer.store, self.trainer.step):
            notice(f"{there}; history tables as they were saved")
        else:
            notice(
                f"{there}; no history tables were saved with it: they are filled by an exact pass, and the run goes on "
                "a little differently than it would have (--save-history keeps them)"
            )
            self.trainer.begin()

    def run(self) -> dict[str, Any]:
        """Train to the last epoch. Returns the summary."""
        config, trainer, begin = self.config, self.trainer, time.perf_counter()
        what = f"seed {config.seed}" if config.runs > 1 else "training"
        try:
            with progress(what) as shown:
                display = Display(config, shown)
                display.last = dict(self.best)
                for epoch in range(self.first, config.epochs + 1):
                    with profiled(self.directory.path / "trace.json", config.profile and epoch == self.first):
                        record = trainer.epoch(epoch, partial(display.batch, epoch))
                    if epoch % config.eval_every == 0 or epoch == config.epochs:
                        shown.say(f"evaluating after epoch {epoch}")
                        self._evaluate(record, epoch)
                    record["seconds"] = self.before + time.perf_counter() - begin
                    record["time"] = dict(trainer.clock.seconds)
                    record["memory"] = peak_memory(trainer.device)
                    self.directory.append(record)
                    if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
                        self._checkpoint(epoch_path(self.directory.checkpoints, epoch), record, tables=config.save_history)
                        remove_old(self.directory.checkpoints)
                    display.epoch(record, self.best)
            return self._finish(self.before + time.perf_counter() - begin)
        finally:
            self.directory.close()
            trainer.close()

    def _evaluate(self, record: dict[str, Any], epoch: int) -> None:
        every = self.config.error_every
        found = self.trainer.evaluate(error=every > 0 and (epoch % every == 0 or epoch == self.config.epochs))
        record |= found
        if not self.best or found["val"] > self.best["val"]:
            self.best = {"epoch": epoch, **{part: value for part, value in found.items() if part != "error"}}
            self._checkpoint(self.directory.checkpoints / "best.pt", record, tables=False)
        record |= {"best_val": self.best["val"]} | ({"best_test": self.best["test"]} if "test" in self.best else {})

    def _checkpoint(self, path: Path, record: dict[str, Any], *, tables: bool) -> None:
        # Tables first: a checkpoint that is there has its tables, whenever the process ends.
        if tables and self.trainer.store.tables:
            write_tables(path, self.trainer.store, self.trainer.step)
        state = {
            "trainer": self.trainer.state(), "epoch": record["epoch"], "best": self.best,
            "seconds": record.get("seconds", self.before),
        }  # fmt: skip
        write(path, state, self.config, self.trainer.loaded.fingerprint)

    def _finish(self, seconds: float) -> dict[str, Any]:
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        summary = {
            "best_val": self.best.get("val"), "best_test": self.best.get("test"), "best_epoch": self.best.get("epoch"),
            "seconds": seconds, "parameters": parameters, "seed": self.config.seed,
            "memory": peak_memory(self.trainer.device), "machine": processor(), "command": self.command,
            "versions": {"rest_triton": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "epochs": self.config.epochs, "finished": True,
        }  # fmt: skip
        self.directory.write_summary(summary)
        write_report(self.directory.path)
        return summary


def train(
    config: Config, *, model: type[Module] | None = None, resume: Path | None = None, command: str = "",
    began: Callable[[Path], None] = lambda path: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Do what a configuration asks for, on the terminal and in a folder. Returns the summary of every run.

    Args:
        model: a class of one's own, instead of the configuration's ``model``. It is built with in_channels, out_channels and
            those settings that its constructor names.
        resume: a run's folder, or one of its checkpoints. began: is told the folder as soon as there is one.

    Example::

        train(Config(dataset="synthetic:arxiv@0.1", method="gas+rest", epochs=10))
    """
    config = config.changed(device=device_of(config.device))
    checked = resume if resume is not None and resume.suffix == ".pt" else None
    path = new_path(config) if resume is None else resume if checked is None else checked.parent.parent
    if model is None:
        sizes = sizes_of(config.dataset, config.root)
        made = refuse_if_too_large(sizes, config, limits_here(config, config.root))
        needs = ", ".join(f"{readable(need)} of {tier}" for tier, need in made.totals.items())
        print(f"memory, as planned: {needs} ({path / 'plan.txt'})")
    loaded = load_for(config, getattr(model, "normalise", "gcn"))
    print(loaded.about)
    RunDirectory(path)
    began(path)
    if model is None:
        (path / "plan.txt").write_text(f"{made}\n")
    print(f"results in {path}", flush=True)
    summaries, folders = [], []
    for seed in range(config.seed, config.seed + config.runs):
        folder = path if config.runs == 1 else path / f"seed-{seed}"
        folders.append(folder)
        done = RunDirectory(folder).summary()
        if resume is not None and checked is None and done is not None and done["epochs"] >= config.epochs:
            notice(f"{folder} is finished: it is not repeated")
            summaries.append(done)
            continue
        start = checked if checked is not None else _last(folder) if resume is not None else None
        run = Run(config.changed(seed=seed), loaded, folder, model, start, command)
        summaries.append(run.run())
        _say(summaries[-1], seed)
    if config.runs > 1:
        _say_all(summaries)
        RunDirectory(path).write_config(config)
        write_summary(path, folders)
    print(f"report: {path / 'report.html'}")
    return summaries


def _last(folder: Path) -> Path | None:
    found = epochs(folder / "checkpoints")
    return found[-1] if found else None


def _say(summary: dict[str, Any], seed: int) -> None:
    if summary["best_val"] is None:
        return
    test = "" if summary["best_test"] is None else f", test {100 * summary['best_test']:.2f} % at the same epoch"
    print(
        f"seed {seed}: best validation {100 * summary['best_val']:.2f} % after epoch {summary['best_epoch']}{test}; "
        f"{summary['seconds']:.1f} s, {readable(summary['memory'])}",
        flush=True,
    )


def _say_all(summaries: list[dict[str, Any]]) -> None:
    """Mean and unbiased standard deviation, as OGB asks for."""
    for name, key in (("validation", "best_val"), ("test", "best_test")):
        values = [100 * s[key] for s in summaries if s.get(key) is not None]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}: {statistics.mean(values):.2f} ± {spread:.2f} % over {len(values)} seeds")
