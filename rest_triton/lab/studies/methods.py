"""All methods, plain and with REST and REST-IS, by model: scores, costs, errors of tables and of gradients.

All have the base's model, number of epochs and updates per epoch. Batches of methods that draw training nodes have as many
of them as a batch of clusters has on average. The control has half the learning rate and no refresh.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from ...methods.options import BASES, OF_NODES, TABLELESS
from ...training.gradient_error import Estimate, gradient_error
from ...training.staleness import history_error
from ...utils.files import write_whole
from ..ended import last_state, remove_tables
from ..pictures import curves, draw
from ..results import columns, reached
from ..study import FULL, FULL_EPOCHS, Base, Cases, Labels, Results, Run, Spread, Study

LEAVES = "errors.json"
SLOWER, BOTH_WAYS = ", rate / 2", "+rest, both ways"
MODES = {"": False, "_train": True}  # of gradients: eval and training mode


def _methods(base: Base) -> dict[str, dict[str, Any]]:
    """Settings by the name of a method and its form."""
    c = base.config
    found: dict[str, dict[str, Any]] = {FULL: dict(method="full")}
    for name in (name for name in BASES if name not in TABLELESS):
        found[name] = dict(method=name)
        found[f"{name}+rest"] = dict(method=f"{name}+rest")
        if name == "lmc":
            found[name + BOTH_WAYS] = dict(method=f"{name}+rest", gradient_frequency=1)
        found[f"{name}+rest-is"] = dict(method=f"{name}+rest-is", frequency=1)
        found[name + SLOWER] = dict(method=name, lr=c.lr / 2)
    return {name: own for name, own in found.items() if "method" not in base.given or own["method"] == c.method}


def _cases(base: Base) -> Cases:
    c = base.config
    batches = -(-c.num_parts // c.batch_size)
    matched = base.default(batch_nodes=max(1, -(-base.training // batches)))
    cases = Cases()
    for model, of_model in base.models().items():
        for name, settings in _methods(base).items():
            times = FULL_EPOCHS if name == FULL else 1
            often = dict(epochs=times * c.epochs, checkpoint_every=times * c.epochs, save_history=True)
            every = base.default(eval_every=-(-c.epochs // 10)).get("eval_every", c.eval_every)
            nodes = matched if settings["method"].partition("+")[0] in OF_NODES[1] else {}
            cases[model, name] = of_model | often | dict(eval_every=times * every) | nodes | settings
    return cases


def plain(labels: Labels) -> Labels:
    """The labels of the method without refreshes and with the full learning rate, or full batch for that."""
    base = base_of(labels["method"])
    return {**labels, "method": FULL if base == labels["method"] else base}


def measure(run: Run) -> None:
    """Measure the last tables and gradients, write errors.json, and remove the large tables."""
    config, folder = run.config, run.folder
    with last_state(config, folder) as trainer:
        graph = trainer.loaded.graph
        found: dict[str, float | None] = {"history_error": history_error(trainer.engine)}
        for suffix, training in MODES.items():
            error = gradient_error(trainer.engine, graph, trainer.step, trainer.refresh, training=training)
            found |= {} if error is None else {f"{name}{suffix}": value for name, value in asdict(error).items()}
    write_whole(folder / LEAVES, json.dumps(found, indent=1).encode())
    remove_tables(folder)


@cache
def errors(folder: Path) -> dict[str, Any]:
    """The content of a run's errors.json, by :func:`measure`."""
    return json.loads((folder / LEAVES).read_text())


def column(name: str) -> Callable[[Run], float | None]:
    """A column of errors.json."""
    return lambda run: errors(run.folder).get(name)


def _picture(results: Results) -> bytes:
    """A panel for each model and method, with a line for each of its forms, and full batch's last score beside them."""
    panels, names = [], [name for name in results.values("method") if name != FULL]
    bases = list(dict.fromkeys(base_of(name) for name in names)) or [FULL]
    for model in results.values("model"):
        groups, row, scores = results.where(model=model), [], list[float]()
        last = curves([g for g in groups if g[0].method == FULL], "seconds", "test").lines.get(FULL, [])[-1:]
        for base in bases:
            panel = curves([g for g in groups if base_of(g[0].method) == base], "seconds", "test", f"{model}, {base}")
            panel.lines = {form_of(name): points for name, points in panel.lines.items()}
            scores += [value.mean for points in panel.lines.values() for _, value in points[len(points) // 4 :]]
            end = max((x for points in panel.lines.values() for x, _ in points), default=1.0)
            panel.lines |= {FULL: [(x, Spread(value.mean)) for x in (0.0, end) for _, value in last]}
            row.append(panel)
        scores += [value.mean for _, value in last]
        room = 0.05 * (max(scores, default=1.0) - min(scores, default=0.0)) or 1.0
        for panel in row:
            panel.between = min(scores, default=0.0) - room, max(scores, default=1.0) + room
        panels += row
    return draw(panels, len(bases))


def base_of(name: str) -> str:
    """The method in a case's name."""
    return name.partition("+")[0].partition(",")[0]


def form_of(name: str) -> str:
    """What a case does with its method."""
    form = name.removeprefix(base_of(name)).removeprefix(", ")
    return form or ("plain" if name != FULL else FULL)


SHOWN = ("history_error", "bias", "noise", "cosine", "bias_train", "noise_train", "cosine_train")
BESIDE = tuple(f.name + suffix for suffix in MODES for f in fields(Estimate))
METHODS = Study(
    "methods", "all methods: plain, with REST, with REST-IS, and at half the learning rate, by model", ("model", "method"),
    _cases,
    columns("val", "test", "late", "epoch_seconds")
    | {"reached": lambda run: float(reached(run) is not None) if run.target < float("inf") else None}
    | columns("target_seconds", "memory", "age")
    | {name: column(name) for name in SHOWN},
    _picture, epochs=(50, 12), seeds=(5, 1), reference=plain, apart=True, after=measure, leaves=LEAVES,
    also={name: column(name) for name in BESIDE}, target=0.98, counts_training=True,
)  # fmt: skip
