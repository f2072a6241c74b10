"""What a study will take: a few steps and an evaluation of each setting, on this machine, scaled up."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from ..config import Config
from ..utils.text import duration
from .files import replace_file
from .study import Base, Planned, Study

STEPS = 2  # that are timed, after as many that are not: kernels are compiled, memory is touched
START = {False: 1.0, True: 5.0}  # seconds before a run's first step, in this process or in one of its own
# What a step takes does not depend on these.
FREE = {
    "seed", "lr", "epochs", "reg_weight_decay", "nonreg_weight_decay", "eval_every", "error_every", "run_dir", "runs",
    "checkpoint_every", "save_history", "profile", "root", "eval_updates_history", "max_steps", "theta",
}  # fmt: skip


def key(config: Config) -> str:
    """The same for settings that take the same time."""
    known = {name: value for name, value in asdict(config).items() if name not in FREE}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


class Estimates:
    """Seconds by setting, kept in a file of the study's folder so that nothing is measured twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.known: dict[str, dict[str, float]] = json.loads(path.read_text())
        except (OSError, ValueError):
            self.known = {}

    def measure(self, runs: Iterable[Planned], show: Callable[[str], None]) -> None:
        """Those that are not known yet. Settings on the same clusters come one after the other: the graph is loaded once."""
        from ..data.clusters import ClusterData, load_data
        from ..utils.machine import device_of

        missing = {key(run.config): run for run in runs if key(run.config) not in self.known}
        loaded: tuple[tuple[object, ...], ClusterData] | None = None
        for number, (name, run) in enumerate(sorted(missing.items(), key=lambda item: _clusters(item[1].config)), 1):
            show(f"{run.case.name} ({number} of {len(missing)})")
            config = run.config.changed(device=device_of(run.config.device))
            if loaded is None or loaded[0] != _clusters(config):
                loaded = _clusters(config), load_data(config)
            self.known[name] = timed(config, loaded[1])
            replace_file(self.path, json.dumps(self.known, indent=1).encode())

    def seconds(self, config: Config, *, apart: bool) -> float | None:
        """Of one run; None if its setting was not measured."""
        found = self.known.get(key(config))
        if found is None:
            return None
        measured = _times(config, config.error_every) if config.base != "full" else 0
        evaluated = max(0, _times(config, config.eval_every) - measured)
        steps = config.epochs * (min(found["steps"], config.max_steps) if config.max_steps else found["steps"])
        return START[apart] + steps * found["step"] + evaluated * found["evaluation"] + measured * found["error"]


def _clusters(config: Config) -> tuple[object, ...]:
    return config.num_parts, config.partition, config.split, config.edge_dropout > 0


def _times(config: Config, every: int) -> int:
    return -(-config.epochs // every) if every else 0


def timed(config: Config, loaded: object) -> dict[str, float]:
    """Seconds of a step, of an evaluation and of one that compares with the truth; steps in an epoch."""
    from ..training.trainer import Trainer

    # Weights that do not move cannot diverge, and a step takes as long.
    still = config.changed(max_steps=STEPS, history="device", lr=0.0)
    trainer = Trainer(still, loaded)  # type: ignore[arg-type]
    batches = len(trainer.method.cover())
    try:
        trainer.begin()
        trainer.epoch(1)
        begin = time.perf_counter()
        steps = trainer.epoch(2)["steps"]
        step = (time.perf_counter() - begin) / max(1, steps)
        begin = time.perf_counter()
        trainer.evaluate()
        evaluation = error = time.perf_counter() - begin
        if config.error_every and config.base != "full":
            begin = time.perf_counter()
            trainer.evaluate(error=True)
            error = time.perf_counter() - begin
    finally:
        trainer.close()
    return {"step": step, "steps": -(-batches // config.accumulate), "evaluation": evaluation, "error": error}


def described(study: Study, base: Base, runs: list[Planned], todo: list[Planned], estimates: Estimates) -> str:
    """The plan for people: a line for each setting, and what all that is left will take."""
    lines = [f"{study.name}{f' ({study.paper})' if study.paper else ''}: {study.question}", f"base: {sentence(base.config)}"]
    cases = list({run.case.name: run.case for run in runs}.values())
    wide = max(len(case.name) for case in cases)
    lines += [f"  {'setting':<{wide}}  {'epochs':>6}  {'runs':>5}  {'left':>5}  {'each':>8}"]
    total, unknown = 0.0, 0
    for case in cases:
        mine = [run for run in runs if run.case.name == case.name]
        left = [run for run in mine if run in todo]
        each = estimates.seconds(case.config, apart=study.apart)
        if each is None:
            unknown += len(left)
        total += (each or 0.0) * len(left)
        shown = "-" if each is None else duration(each)
        lines += [f"  {case.name:<{wide}}  {case.config.epochs:>6}  {len(mine):>5}  {len(left):>5}  {shown:>8}"]
    lines += [f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {len(runs) - len(todo)} finished"]
    if todo:
        lines[-1] += f"; the others take about {duration(total)} here, by a few steps of each setting"
    return "\n".join(lines)


def sentence(config: Config) -> str:
    """The settings that matter for what is compared."""
    deep = f"{config.model.upper()}, {config.num_layers} layers of width {config.hidden_channels}"
    norm = "BatchNorm" if config.batch_norm else "no BatchNorm"
    return (
        f"{deep}, {norm}, dropout {config.dropout:g}, learning rate {config.lr:g}, {config.batch_size} of "
        f"{config.num_parts} {config.partition} clusters in a batch, {config.epochs} epochs"
    )
