"""A training run: from a configuration to a folder of results. A stopped run can be resumed."""

import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..config import Config, flag
from ..data.clusters import ClusterData, load_data, refuse_without
from ..data.features import describe
from ..data.sizes import sizes_of
from ..methods.options import AUTO, CLUSTERS, OF_NODES, placed
from ..nn import HistoryGNN, model_named
from ..sampling.halo_rows import halo_per_row
from ..utils.errors import UserError
from ..utils.machine import device_of, processor, readable
from ..utils.progress import notice, progress
from .advice import refuse_if_too_large
from .checkpoint import Unusable, epoch_path, epochs, read, read_tables, remove_after, remove_old, write, write_tables
from .logger import Display, RunDirectory, check_free, claimed, new_folder, peak_memory, profiled
from .metrics import SPLITS
from .plan import limits_here
from .report import write_report, write_summary
from .trainer import Trainer


class Run:
    """The run of one seed in its folder.

    Args:
        config: with the final device and seed. loaded: the data. path: the folder. model: see :class:`Trainer`.
        resume: a checkpoint to resume from. None: a new run.
        command: the command line, for the report.
    """

    def __init__(
        self, config: Config, loaded: ClusterData, path: Path, model: type[HistoryGNN] | None = None,
        resume: Path | None = None,
        command: str = "",
    ) -> None:  # fmt: skip
        self.config, self.command = config, command
        # All checks come before the folder changes.
        state = None if resume is None else read(resume, config, loaded.fingerprint)[0]
        if state is not None and state["epoch"] > config.epochs:
            raise UserError(
                f"epochs is {config.epochs}, but {resume} is of epoch {state['epoch']} already; give --epochs "
                f"{state['epoch']} or more"
            )
        self.directory = RunDirectory(path)
        self.trainer = Trainer(config, loaded, model, folder=path / "history")
        self.first, self.best, self.before = 1, dict[str, Any](), 0.0
        self.directory.write_config(config)
        if state is None or resume is None:
            remove_after(self.directory.checkpoints, 0)
            self.directory.forget_after(0)  # lines of a run that ended before its first checkpoint
            with progress("filling the tables"):
                self.trainer.begin()
        else:
            self._take_up(state, resume)
        self.begin = time.perf_counter() - self.before

    @property
    def seconds(self) -> float:
        """The run's duration, including the time before it was resumed."""
        return time.perf_counter() - self.begin

    def _take_up(self, state: dict[str, Any], path: Path) -> None:
        try:
            saved = self._restore(state["trainer"], path)
        except BaseException:
            self.trainer.close()  # remove the files of tables on disk
            raise
        self.first, self.best, self.before = state["epoch"] + 1, state["best"], state["seconds"]
        # Checkpoints are removed before metrics: a process killed in between leaves no checkpoint without its metrics.
        removed = remove_after(self.directory.checkpoints, state["epoch"])
        self.directory.forget_after(state["epoch"])
        if removed:
            notice(f"later epochs are computed again: {', '.join(removed)} removed from {self.directory.checkpoints}")
        start = f"going on after epoch {state['epoch']}, step {self.trainer.step}, from {path}"
        if not self.trainer.history.all_tables:
            notice(start)
        elif saved:
            notice(f"{start}; history tables as they were saved")
        else:
            now = "filled by an exact pass" if self.trainer.method.fills else "empty at first"
            notice(f"{start}; histories were not saved and are {now}, so losses differ slightly; --save-history keeps them")
            self.trainer.begin()
            self._keep_best()

    def _restore(self, state: dict[str, Any], path: Path) -> bool:
        """Restore the trainer's state. Returns whether tables were restored. The folder does not change."""
        try:
            self.trainer.load(state)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise Unusable(
                f"{path} does not fit the model of this run, which must be the one it was written with: {reason}"
            ) from None
        return bool(self.trainer.history.all_tables) and read_tables(path, self.trainer.history, self.trainer.step)

    def _keep_best(self) -> None:
        """Keep the best score of best.pt, also if it is of an epoch that is computed again.

        Without saved tables that epoch may end with another score. The reported best score then belongs to best.pt.
        """
        with suppress(Unusable):
            best = read(self.directory.checkpoints / "best.pt", self.config, self.trainer.loaded.fingerprint)[0]["best"]
            if not self.best or best["val"] > self.best["val"]:
                self.best = best

    def run(self) -> dict[str, Any]:
        """Train to the last epoch. Returns the summary."""
        config, trainer = self.config, self.trainer
        try:
            with progress(f"seed {config.seed}") as shown:
                display = Display(config, shown)
                display.last = dict(self.best)
                for epoch in range(self.first, config.epochs + 1):
                    with profiled(self.directory.path / "trace.json", config.profile and epoch == self.first):
                        record = trainer.epoch(epoch, partial(display.batch, epoch))
                    if self._due(epoch, config.eval_every) or self._due(epoch, config.error_every):
                        shown.say(f"evaluating after epoch {epoch}")
                        self._evaluate(record, epoch)
                    record["seconds"] = self.seconds
                    record["time"] = dict(trainer.clock.seconds)
                    record["memory"] = peak_memory(trainer.device)
                    self.directory.append(record)
                    if self._due(epoch, config.checkpoint_every):
                        self._checkpoint(epoch_path(self.directory.checkpoints, epoch), record, tables=config.save_history)
                        remove_old(self.directory.checkpoints)
                    display.epoch(record, self.best)
            return self._finish()
        finally:
            self.directory.close()
            trainer.close()

    def _due(self, epoch: int, every: int) -> bool:
        return every > 0 and (epoch % every == 0 or epoch == self.config.epochs)

    def _evaluate(self, record: dict[str, Any], epoch: int) -> None:
        metrics = self.trainer.evaluate(error=self._due(epoch, self.config.error_every))
        record |= metrics
        if not self.best or metrics["val"] > self.best["val"]:
            self.best = {"epoch": epoch, **{split: metrics[split] for split in SPLITS if split in metrics}}
            self._checkpoint(self.directory.checkpoints / "best.pt", record, tables=False)
        record |= {"best_val": self.best["val"]} | ({"best_test": self.best["test"]} if "test" in self.best else {})

    def _checkpoint(self, path: Path, record: dict[str, Any], *, tables: bool) -> None:
        # Tables are written first: a checkpoint never lacks its tables, even after a crash.
        if tables and self.trainer.history.all_tables:
            write_tables(path, self.trainer.history, self.trainer.step)
        state = {
            "trainer": self.trainer.state(), "epoch": record["epoch"], "best": self.best, "seconds": self.seconds,
        }  # fmt: skip
        write(path, state, self.config, self.trainer.loaded.fingerprint)

    def _finish(self) -> dict[str, Any]:
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        summary = {
            "best_val": self.best.get("val"), "best_test": self.best.get("test"), "best_epoch": self.best.get("epoch"),
            "metric": "micro-F1" if self.trainer.loaded.graph.multilabel else "accuracy",
            "seconds": self.seconds, "parameters": parameters, "seed": self.config.seed,
            "memory": peak_memory(self.trainer.device), "machine": processor(), "command": self.command,
            "versions": {"rest_triton": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "epochs": self.config.epochs, "finished": True, "partition": self._partition(),
        }  # fmt: skip
        self.directory.write_summary(summary)
        write_report(self.directory.path)
        return summary

    def _partition(self) -> dict[str, Any]:
        """The summary of the clusters. Methods whose batches are clusters have the size of their halos, too."""
        loaded, config = self.trainer.loaded, self.config
        if config.base not in CLUSTERS[1] or config.base in OF_NODES[1]:
            return loaded.partition_summary
        batch_size = min(config.batch_size, loaded.ptr.numel() - 1)
        return loaded.partition_summary | {"halo_per_row": halo_per_row(loaded.adj, loaded.ptr, batch_size)}


def train(
    config: Config, *, model: type[HistoryGNN] | None = None, resume: Path | None = None, command: str = "",
    began: Callable[[Path], None] = lambda path: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train as a configuration says, and write a folder of results. Returns the summary of every run.

    Args:
        model: a custom class instead of the configuration's ``model``. Its constructor gets in_channels, out_channels and
            the settings that it names.
        resume: a run's folder, or one of its checkpoints. began: called with the folder as soon as it exists.

    Example::

        train(Config(dataset="synthetic:arxiv@0.1", method="gas+rest", epochs=10))
    """
    config = config.changed(device=device_of(config.device))
    checked = resume if resume is not None and resume.suffix == ".pt" else None
    if resume is None and config.run_dir:
        check_free(config.run_dir)
    if model is None:
        sizes = sizes_of(config.dataset, config.root)
        refuse_without(config.dataset, features=sizes.features > 0, labels=sizes.classes > 0)
        estimate = refuse_if_too_large(sizes, config, limits_here(config, config.root))
        print(f"memory, as planned: {', '.join(f'{readable(need)} of {tier}' for tier, need in estimate.totals.items())}")
        chosen = {
            name: getattr(estimate.settings, name) for name in ("history", "features") if getattr(config, name) == AUTO
        }
        if set(chosen.values()) - {"device"}:
            print(f"places by the budgets: {', '.join(f'{flag(name)} {place}' for name, place in chosen.items())}")
        config = config.changed(**chosen)  # a resumed run keeps them
    config = placed(config)
    kind = model_named(config.model) if model is None else model
    loaded = load_data(config, kind.normalise, named_edges=kind.drops_edges and config.dropout > 0)
    print(loaded.about)
    if loaded.nonzeros is not None:
        rows, width = loaded.x.shape
        who = "sgc" if config.base == "sgc" else config.model
        print(describe(loaded.nonzeros, rows, width, who, kind.sparse_features and who != "sgc"))
    path = new_folder(config) if resume is None else resume if checked is None else checked.parent.parent
    began(path)
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
        if resume is not None and start is None:
            notice(f"{folder} has no checkpoint yet: it begins anew")
        with claimed(folder):
            run = Run(config.changed(seed=seed, runs=1), loaded, folder, model, start, command)
            if model is None:
                RunDirectory(path).write_text("plan.txt", f"{estimate}\n")
            if config.runs > 1:
                RunDirectory(path).write_config(config)  # all seeds can be resumed from now on
            summaries.append(run.run())
        _say(summaries[-1], seed)
    if config.runs > 1:
        _say_all(summaries)
        write_summary(path, folders)
    print(f"report: {path / 'report.html'}")
    return summaries


def _last(folder: Path) -> Path | None:
    checkpoints = epochs(folder / "checkpoints")
    return checkpoints[-1] if checkpoints else None


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
    """Print mean and unbiased standard deviation, as OGB requires."""
    for name, key in (("validation", "best_val"), ("test", "best_test")):
        values = [100 * s[key] for s in summaries if s.get(key) is not None]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name}: {statistics.mean(values):.2f} ± {spread:.2f} % over {len(values)} seeds")
