"""Ideas beyond the paper, each at the time that REST takes: a refresh budget by need, refreshes in bfloat16, and others.

    python docs/studies/beyond/tried.py --dataset amazon-computers.npz --num-parts 40 --batch-size 2

Every variant trains for as many epochs as fit the time of REST's. The time of an epoch is measured first, on all variants in
turn. It writes results.csv and README.md into --out.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from rest_triton.config import Config
from rest_triton.data.clusters import ClusterData, load_data
from rest_triton.methods.engine import Engine
from rest_triton.methods.rest import ClusterRefresh
from rest_triton.ops import gather_rows
from rest_triton.sampling.batch import Batch
from rest_triton.training.trainer import Trainer
from rest_triton.utils.malloc import keep_freed_memory

SAMPLE = 16  # rows of a cluster that drift is measured on


class ByNeed(ClusterRefresh):
    """Refreshes the clusters with the largest age x drift x reads.

    Drift is the relative change of a sample of a cluster's rows between two refreshes, per step. Reads are the edges from
    other clusters, by which its rows are read from tables.
    """

    def before(self, engine: Engine, batch: Batch, step: int) -> Any:
        if not hasattr(self, "reads"):
            adj, bounds = engine.inputs.adj, torch.tensor(self.batches.bounds)
            cluster = torch.bucketize(torch.arange(adj.num_nodes), bounds[1:], right=True)
            end = cluster[adj.col.long()]
            start = torch.repeat_interleave(cluster, adj.rowptr.diff())
            self.reads = torch.bincount(end[end != start], minlength=len(bounds) - 1).tolist()
            self.drift: dict[int, float] = dict.fromkeys(range(len(bounds) - 1), 1.0)
        self.engine = engine
        return super().before(engine, batch, step)

    def _next(self, step: int) -> Batch | None:
        waiting = [k for k, at in enumerate(self.written) if at < step]
        waiting.sort(key=lambda k: -(step - self.written[k]) * self.drift[k] * self.reads[k])
        chosen = waiting[: self.batches.batch_size]
        if not chosen:
            return None
        self.pending = {k: (self._rows(k), step - self.written[k]) for k in chosen}
        return self.batches.batch(chosen)

    def _wrote(self, batch: Batch, step: int) -> None:
        for k, (before, waited) in getattr(self, "pending", {}).items():
            now = self._rows(k)
            self.drift[k] = float((now - before).norm() / now.norm().clamp_min(1e-12)) / max(1, waited)
        self.pending: dict[int, Any] = {}
        super()._wrote(batch, step)

    def _rows(self, k: int) -> torch.Tensor:
        begin, end = self.batches.bounds[k : k + 2]
        table = self.engine.history.tables[-1].rows
        return gather_rows(table, torch.arange(begin, end, max(1, (end - begin) // SAMPLE)), dtype=torch.float32)


class Bfloat16(ClusterRefresh):
    """Refreshes run under autocast to bfloat16."""

    def before(self, engine: Engine, batch: Batch, step: int) -> Any:
        engine.amp = True
        try:
            return super().before(engine, batch, step)
        finally:
            engine.amp = False


#: Settings and the class of the refresh, by name. The first is the one that the others are compared with.
VARIANTS: dict[str, tuple[dict[str, Any], type[ClusterRefresh] | None]] = {
    "gas+rest": (dict(method="gas+rest"), None),
    "gas": (dict(method="gas"), None),
    "gas, lr / 2": (dict(method="gas", lr=0.5), None),
    "oldest first": (dict(method="gas+rest", refresh_order="oldest"), None),
    "by need": (dict(method="gas+rest"), ByNeed),
    "refresh in bfloat16": (dict(method="gas+rest"), Bfloat16),
    "refresh_norm running": (dict(method="gas+rest", refresh_norm="running"), None),
    "lmc": (dict(method="lmc"), None),
    "lmc+rest": (dict(method="lmc+rest"), None),
    "lmc+rest, backward": (dict(method="lmc+rest", gradient_frequency=1), None),
    "lmc+rest-is": (dict(method="lmc+rest-is"), None),
    "vrgcn": (dict(method="vrgcn", fanout="2"), None),
    "vrgcn+rest": (dict(method="vrgcn+rest", fanout="2"), None),
    "vrgcn+rest-is": (dict(method="vrgcn+rest-is", fanout="2"), None),
}


def trainer_of(name: str, base: Config, loaded: ClusterData, seed: int) -> Trainer:
    settings, kind = VARIANTS[name]
    settings = dict(settings)
    if "lr" in settings:
        settings["lr"] *= base.lr
    trainer = Trainer(base.changed(**settings, seed=seed), loaded)
    if kind is not None:
        trainer.refresh = kind(trainer.config, trainer.method)
    trainer.begin()
    return trainer


def seconds(base: Config, loaded: ClusterData) -> dict[str, float]:
    """The processor time of an epoch of each variant: the best of three, in turn. Other work does not change it."""
    trainers = {name: trainer_of(name, base, loaded, 0) for name in VARIANTS}
    best = dict.fromkeys(VARIANTS, float("inf"))
    for number in range(4):  # the first one compiles
        for name, trainer in trainers.items():
            begin = time.process_time()
            trainer.epoch(number)
            best[name] = min(best[name], time.process_time() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seeds", type=int, default=5)
    for name, default in (("dataset", ""), ("root", "data"), ("num-parts", "40"), ("batch-size", "2"), ("epochs", "20")):
        parser.add_argument(f"--{name}", default=default)
    options = parser.parse_args()
    keep_freed_memory()
    base = Config(
        dataset=options.dataset, root=options.root, num_parts=int(options.num_parts), batch_size=int(options.batch_size),
        epochs=int(options.epochs), device="cpu", partition="metis", hidden_channels=128, dropout=0.5, batch_norm=True,
        lr=0.01,
    )  # fmt: skip
    loaded = load_data(base)
    base = base.changed(batch_nodes=max(1, loaded.graph.num_nodes * base.batch_size // base.num_parts))
    of_epoch = seconds(base, loaded)
    first = next(iter(VARIANTS))
    budget, runs = base.epochs * of_epoch[first], dict[str, list[float]]()
    for seed in range(options.seeds):
        for name in VARIANTS:
            trainer, epochs = trainer_of(name, base, loaded, seed), max(2, round(budget / of_epoch[name]))
            every, best = max(1, epochs // 12), (0.0, 0.0)
            for number in range(1, epochs + 1):
                trainer.epoch(number)
                if number % every == 0 or number == epochs:
                    scores = trainer.evaluate()
                    best = max(best, (scores["val"], scores["test"]))
            runs.setdefault(name, []).append(best[1])
            print(f"seed {seed}  {name:24} {epochs:3} epochs  test {100 * best[1]:.2f} %", file=sys.stderr, flush=True)
    write(options.out, f"python docs/studies/beyond/tried.py {' '.join(sys.argv[1:])}", of_epoch, budget, runs)


def write(out: Path, command: str, of_epoch: dict[str, float], budget: float, runs: dict[str, list[float]]) -> None:
    """The table as README.md, and all runs as results.csv."""
    out.mkdir(parents=True, exist_ok=True)
    reference = next(iter(runs.values()))
    lines = [f"    {command}", "", f"Every variant trains for about {budget:.0f} s of one processor.", ""]
    lines += ["| variant | s per epoch | epochs | test | over the first, by seed |", "|---|---|---|---|---|"]
    for name, scores in runs.items():
        shown, gain = _spread(scores), _spread([a - b for a, b in zip(scores, reference, strict=True)])
        epochs = max(2, round(budget / of_epoch[name]))
        lines.append(f"| {name} | {of_epoch[name]:.3f} | {epochs} | {shown} | {'' if scores is reference else gain} |")
    (out / "README.md").write_text("\n".join(lines) + "\n")
    rows = [(name, seed, score) for name, scores in runs.items() for seed, score in enumerate(scores)]
    with open(out / "results.csv", "w", newline="") as file:
        csv.writer(file).writerows([("variant", "seed", "test"), *rows])


def _spread(values: list[float]) -> str:
    """Mean and standard deviation in percent."""
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()
