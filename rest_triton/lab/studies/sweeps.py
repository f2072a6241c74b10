"""Gradients at fixed weights: the sum over an epoch's batches, sweep by sweep, against the gradient of the full batch.

GAS trains a model. Its last weights stay fixed, in eval mode: no dropout, BatchNorm by running statistics. Then each method
begins with tables of zeros. A sweep is an epoch: each batch adds its gradient to a sum, and writes its rows into the tables
as in training. With L layers, where encoding features counts as one, LMC's tables are exact after 2 L - 1 sweeps: those of
rows take one sweep for each layer, then those of gradients, from the last layer to the first.

All gradients are of the same loss: the sum over training nodes, divided by the number of all training nodes. Sums over
batches are in float64, all else is as in training. ``rounding`` is what float32 leaves of the same comparison on the whole
graph: the distance of the full batch's gradient from the sum of two, those of the losses of either half of the clusters.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.clusters import load_data
from ...methods.baselines.full import Full
from ...methods.lmc import LMC
from ...methods.loss import Loss
from ...nn import HistoryGNN, model_named
from ...sampling.batch import Batch
from ...training.checkpoint import epochs, read
from ...training.trainer import Trainer
from ...utils.errors import UserError
from ...utils.files import write_whole
from ...utils.machine import device_of
from ..pictures import Panel, draw
from ..study import FULL, GAS, Base, Cases, Results, Run, Study, spread_of

LEAVES = "sweeps.json"
CODED = ((0.0, "const"), (0.2, "const"), (0.8, "linear"), (0.9, "linear"), (1.0, "linear"), (1.0, "const"))
QUICK = (GAS, "LMC", "LMC coded, 0", "LMC coded, 0.9 linear", "LMC coded, 1 const")
METHODS: dict[str, dict[str, Any]] = {
    GAS: dict(method="gas"),
    "LMC": dict(method="lmc"),
    **{
        f"LMC coded, {f'{beta:g} {score}' if beta else '0'}": dict(method="lmc-coded", beta=beta, score=score)
        for beta, score in CODED
    },
}
SHOWN = (1, 3, 5, 7, 9, 11)  # the sweeps that have columns in the table; results.csv has up to MOST
MOST = 32


@dataclass(frozen=True)
class Sweeps:
    """What :func:`sweeps` finds: for each sweep the relative distance and the cosine, and the rounding of float32."""

    errors: list[float]
    cosines: list[float]
    rounding: float


def needed(model: HistoryGNN) -> int:
    """The sweeps after which LMC's gradient is that of the full batch."""
    return 2 * (model.num_layers + model.encodes) - 1


def sweeps(trainer: Trainer, count: int) -> Sweeps:
    """Compare the sum of batch gradients with the gradient of the full batch, after each of ``count`` sweeps."""
    truth, again = full_gradients(trainer)
    found = [sweep(trainer, number) for number in range(1, count + 1)]
    cosines = [float(g @ truth / (g.norm() * truth.norm())) for g in found]
    return Sweeps([distance(g, truth) for g in found], cosines, distance(again, truth))


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def sweep(trainer: Trainer, number: int) -> Tensor:
    """float64: the sum of the gradients of an epoch's batches for all weights. They write the tables."""
    total = torch.zeros((), dtype=torch.float64, device=trainer.device)
    for batch in trainer.method.batches(number):
        found = trainer.engine.gradients(batch, number, _loss(trainer, batch), recording=True)
        assert found is not None, "the loss of a batch without a training node is zero"
        total = total + found[0].double()
    return total


def full_gradients(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """(float64: the gradient of the full batch, the same as the sum over two halves of the clusters)."""
    method = Full(trainer.config, trainer.loaded.ptr, trainer.config.device)
    full = trainer.engine.with_history(trainer.history.like([], torch.float32), method)
    (everything,) = method.batches(0)
    half = -(-(trainer.loaded.ptr.numel() - 1) // 2)

    def gradient(batch: Batch) -> Tensor:
        loss = _loss_alone(trainer, batch)
        found = full.gradients(everything, 0, lambda logits: loss(batch.take(logits)))
        assert found is not None
        return found[0].double()

    halves = [gradient(batch) for batch in method.refresh_batches(half, trainer.config.seed).epoch(0)]
    return gradient(everything), torch.stack(halves).sum(0)


def _loss(trainer: Trainer, batch: Batch) -> Loss:
    """The batch's part of the loss, by the method itself where it has that loss, else by :class:`LMC`."""
    if isinstance(trainer.method, LMC):
        return trainer.method.loss(trainer.loaded.graph, batch, trainer.device)
    return _loss_alone(trainer, batch)


def _loss_alone(trainer: Trainer, batch: Batch) -> Loss:
    graph = trainer.loaded.graph
    return LMC(trainer.config, trainer.loaded.ptr, trainer.config.device, graph).loss(graph, batch, trainer.device)


def measure(run: Run) -> None:
    """Measure with the run's last weights and the method of its label, and write sweeps.json."""
    config = run.config.changed(device=device_of(run.config.device))
    loaded = load_data(config, model_named(config.model).normalise)
    checkpoint = epochs(run.folder / "checkpoints")[-1]
    weights = read(checkpoint, config, loaded.fingerprint)[0]["trainer"]["model"]
    # Its own tables, in memory; a sweep has all batches.
    trainer = Trainer(config.changed(**METHODS[run.method], history="device", max_steps=0), loaded)
    try:
        trainer.model.load_state_dict(weights)
        found = sweeps(trainer, needed(trainer.model) + 2)
    finally:
        trainer.close()
    write_whole(run.folder / LEAVES, json.dumps(asdict(found), indent=1).encode())


@cache
def measured(folder: Path) -> Sweeps:
    """The content of a run's sweeps.json, by :func:`measure`."""
    return Sweeps(**json.loads((folder / LEAVES).read_text()))


def _at(name: str, number: int) -> Callable[[Run], float | None]:
    """A list's value after sweep ``number``."""

    def column(run: Run) -> float | None:
        values = getattr(measured(run.folder), name)
        return values[number - 1] if number <= len(values) else None

    return column


def _cases(base: Base) -> Cases:
    c, cases = base.config, Cases()
    chosen = {name: METHODS[name] for name in (QUICK if base.quick else METHODS)}
    if "method" in base.given:
        chosen = {name: settings for name, settings in METHODS.items() if settings["method"] == c.method}
    if not chosen:
        raise UserError(f"--method {c.method} is none of those that this study compares; leave it out")
    for model, of_model in base.models().items():
        for name, settings in chosen.items():
            c.changed(**of_model | settings)  # what a method refuses, it refuses before training
            cases[model, name] = of_model | dict(method="gas") | base.default(checkpoint_every=c.epochs, eval_every=c.epochs)
    return cases


def _picture(results: Results) -> bytes:
    """A panel for each model: relative distance by sweep. The line of the full batch is the rounding of float32."""
    panels = []
    for model in results.values("model"):
        panel = Panel("sweep", "distance from the full gradient", {}, f"{model}", logarithmic=True)
        groups = [[measured(run.folder) for run in group if run.row] for group in results.where(model=model)]
        for group, found in zip(results.where(model=model), groups, strict=True):
            each = zip(*(one.errors for one in found), strict=True)
            spreads = [spread_of(values) for values in each]
            panel.lines[group[0].method] = [(number, s) for number, s in enumerate(spreads, 1) if s is not None]
        rounding = spread_of([one.rounding for found in groups for one in found])
        last = max((len(one.errors) for found in groups for one in found), default=0)
        if rounding is not None:
            panel.lines[FULL] = [(number, rounding) for number in range(1, last + 1)]
        panels.append(panel)
    return draw(panels)


SWEEPS = Study(
    "sweeps", "gradients at fixed weights: sums over an epoch's batches against the full batch's", ("model", "method"),
    _cases,
    {f"sweep_{number}": _at("errors", number) for number in SHOWN}
    | {
        "last": lambda run: measured(run.folder).errors[-1], "cosine": lambda run: measured(run.folder).cosines[-1],
        "rounding": lambda run: measured(run.folder).rounding,
    },
    _picture, epochs=(20, 5), seeds=(3, 1), after=measure, leaves=LEAVES,
    also={f"{name}_{number}": _at(key, number) for name, key in (("sweep", "errors"), ("cosine", "cosines"))
          for number in range(1, MOST + 1)},
)  # fmt: skip
