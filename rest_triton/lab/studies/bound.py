"""Theorem 1: errors of gradients against staleness, and what the theorem says of them."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Config
from ...training.checkpoint import epochs, read, read_tables, tables_path, write_whole
from ..pictures import Panel, Series, draw
from ..results import Outcome, Results
from ..study import Base, Case, Study
from ..words import listed, title

LEAVES = "gradients.json"
MOST = 16  # batches that are measured: each takes a forward and backward over the whole graph


def _cases(base: Base) -> list[Case]:
    whole = base.config.epochs
    kept: dict[str, Any] = dict(save_history=True)
    cases = []
    for length in [whole] if "epochs" in base.given else sorted({max(1, whole // 4), whole}):
        kept |= dict(epochs=length, checkpoint_every=max(1, length // 2), eval_every=min(length, base.config.eval_every))
        for method, settings in base.methods((1, 4), full=False).items():
            cases.append(base.case({"epochs": length, "method": method}, **(settings | kept)))
    return cases


def measure(config: Config, folder: Path) -> None:
    """Gradients of the run's last weights and tables, into gradients.json. The tables are removed then: they are large."""
    from ...data.clusters import load_data
    from ...training.metrics import loss_for
    from ...training.staleness import gradient_errors
    from ...training.trainer import Trainer
    from ...utils.machine import device_of
    from ..theorem import constants, neighbourhoods, sums

    if (folder / LEAVES).exists():
        return
    config = config.changed(device=device_of(config.device))
    loaded = load_data(config)
    trainer = Trainer(config, loaded, folder=folder / "history")
    try:
        checkpoint = epochs(folder / "checkpoints")[-1]
        trainer.load(read(checkpoint, config, loaded.fingerprint)[0]["trainer"])
        if trainer.store.tables and not read_tables(checkpoint, trainer.store, trainer.step):
            raise ValueError(f"{checkpoint} is without its tables; remove {folder}, and the run begins anew")
        adj = trainer.engine.scene.adj
        known = constants(
            trainer.model, adj, directed=bool(loaded.graph.directed), exact_input=trainer.engine.scene.exact_input
        )
        near, found = neighbourhoods(adj), []
        loss = partial(loss_for, loaded.graph, device=trainer.device)
        for batch, error in gradient_errors(trainer.engine, trainer.method.cover()[:MOST], loss, trainer.step):
            sharp, papers = sums(known, error.aggregate, error.farthest, near, batch)
            found.append(asdict(error) | {"sharp": sharp, "paper": papers, "nodes": len(batch)})
        epsilon = max((one["stale"] / one["output"] for one in found if one["output"] > 0), default=0.0)
    finally:
        trainer.close()
    left = {"epsilon": epsilon, "constants": asdict(known), "batches": found}
    write_whole(folder / LEAVES, json.dumps(left, indent=1).encode())
    for path in epochs(folder / "checkpoints"):
        tables_path(path).unlink(missing_ok=True)


def gradients(outcome: Outcome) -> dict[str, Any]:
    return json.loads((outcome.run.folder / LEAVES).read_text())


def _complete(results: Results) -> None:
    """Means over batches, as columns."""
    for outcome in results.outcomes:
        if outcome.diverged:
            continue
        left = gradients(outcome)
        batches, row = left["batches"], outcome.row
        count = max(1, len(batches))
        for name in ("norm", "error", "stale", "cut", "output"):
            row[f"gradient_{name}"] = sum(one[name] for one in batches) / count
        row["epsilon"] = left["epsilon"]
        for name in ("error", "stale", "cut"):
            row[f"relative_{name}"] = row[f"gradient_{name}"] / row["gradient_norm"] if row["gradient_norm"] else 0.0
        for name in ("sharp", "paper"):
            row[f"bound_{name}"] = left["epsilon"] * sum(one[name] for one in batches) / count
        for table in range(len(batches[0]["mean"]) if batches else 0):
            row[f"halo_{table}"] = sum(one["mean"][table] for one in batches) / count


def _draw(results: Results) -> dict[str, bytes]:
    known = [(o, gradients(o)) for o in results.outcomes if not o.diverged]
    tables = max((len(left["batches"][0]["mean"]) for _, left in known if left["batches"]), default=0)
    staleness, bounds = [dict[str, Series]() for _ in range(min(tables, 2))], dict[str, Series]()
    for outcome, left in known:
        name = title([outcome])
        for table, lines in enumerate(staleness):
            line = lines.setdefault(name, Series([], []))
            for one in left["batches"]:
                line.x.append(one["mean"][table])  # type: ignore[attr-defined]
                line.y.append(one["stale"])  # type: ignore[attr-defined]
        line = bounds.setdefault(name, Series([], []))
        for one in left["batches"]:
            line.x.append(left["epsilon"] * one["sharp"])  # type: ignore[attr-defined]
            line.y.append(one["stale"])  # type: ignore[attr-defined]
    panels = [
        Panel(f"mean staleness of the halo, table {table}", lines, scattered=True) for table, lines in enumerate(staleness)
    ]
    panels.append(Panel("right-hand side (sharp form)", bounds, scattered=True, log=(True, True), diagonal=True))
    return {"bound.png": draw(panels, "gradient error by stale rows", shared=False)}


def _tell(results: Results) -> list[str]:
    told, above = [], []
    for group in results.groups.values():
        names = ("relative_error", "relative_stale", "relative_cut", "bound_sharp", "bound_paper", "gradient_stale")
        error, stale, cut, sharp, papers, absolute = (results.spread(group, name) for name in names)
        if None in (error, stale, cut) or error is None or stale is None or cut is None:
            continue
        told.append(
            f"{title(group)} after {group[0].case.labels['epochs']} epochs: {100 * error.mean:.0f} % of the exact "
            f"gradient's norm, {100 * stale.mean:.0f} % by stale rows and {100 * cut.mean:.0f} % because none flows through "
            "the halo."
        )
        if sharp is not None and papers is not None and absolute is not None and absolute.mean > 0:
            above += [(sharp.mean / absolute.mean, papers.mean / absolute.mean)]
    if not told:
        return []
    lines = ["Errors are means over batches, of their gradients in eval mode.", *told]
    if above:
        low, high = ([f"{pick(values):.3g}" for pick in (min, max)] for values in zip(*above, strict=True))
        lines.append(
            f"The theorem's right-hand side was {listed(low)} times (smallest and largest mean) the error by stale rows in "
            f"its sharp form, {listed(high)} times in the paper's; ε was estimated from the same gradients."
        )
    return lines


BOUND = Study(
    "bound", "Theorem 1", "the error of gradients against the staleness of each table, and the theorem's right-hand side",
    _cases,
    ("relative_error", "relative_stale", "relative_cut", "halo_0", "halo_1", "halo_2", "gradient_output", "gradient_stale",
     "bound_sharp", "bound_paper"),
    _draw, _tell, epochs=(40, 12), seeds=(2, 1), after=measure, leaves=LEAVES, complete=_complete,
)  # fmt: skip
