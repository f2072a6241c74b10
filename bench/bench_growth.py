"""How the time and the memory of an epoch grow with edges, width, clusters in a batch and layers.

GCN 3 x 256, 5 of 40 clusters by KaMinPar; each axis changes one of these, on a sixteenth of products
where edges are not the axis. Each point runs in a process of its own, which prints JSON:

    python -m bench.bench_growth '{"dataset": "synthetic:products@0.0625", "num_layers": 3}' [--keep-freed-memory]
"""

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.training.trainer import Trainer
from rest_triton.utils.machine import available_memory, most_memory, readable
from rest_triton.utils.malloc import give_back, keep_freed_memory

from .harness import OURS, Bench

BASE: dict[str, Any] = dict(
    dataset="synthetic:products@0.0625", root=str(Path("data").absolute()), device="cpu", num_parts=40, batch_size=5,
    num_layers=3, hidden_channels=256, dropout=0.5, partition="kaminpar",
)  # fmt: skip
SIZES = {f"synthetic:products@{scale:g}": scale for scale in (1 / 64, 1 / 16, 1 / 4, 1)}
FULL = 18 << 30  # bytes that an epoch on the whole of products takes
#: axis: the setting that changes, and its values
AXES: dict[str, tuple[str, list[Any]]] = {
    "edges": ("dataset", list(SIZES)),
    "width": ("hidden_channels", [32, 64, 128, 256, 512]),
    "clusters in a batch": ("batch_size", [1, 2, 5, 10, 20, 40]),
    "layers": ("num_layers", [2, 3, 4, 6, 8]),
}
POINTS = [(axis, value) for axis, (_, values) in AXES.items() for value in values]


def measure(config: Config) -> dict[str, Any]:
    """Seconds of the better of two epochs after the first, those of an evaluation, and the edges."""
    loaded = load_data(config)
    trainer = Trainer(config, loaded)
    trainer.begin()
    trainer.epoch(1)
    times = []
    for number in (2, 3):
        begin = time.perf_counter()
        trainer.epoch(number)
        times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    trainer.evaluate()
    return dict(epoch=min(times), evaluation=time.perf_counter() - begin, edges=loaded.adj.num_edges)


def measured(config: dict[str, Any], kept: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.bench_growth", json.dumps(config), *["--keep-freed-memory"] * kept]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {run.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("axis", "value"), POINTS, ids=[f"{axis}-{value}" for axis, value in POINTS])
def bench_growth(bench: Bench, request: pytest.FixtureRequest, axis: str, value: Any) -> None:
    config = BASE | {AXES[axis][0]: value}
    if axis == "edges" and SIZES[value] * FULL > available_memory():
        pytest.skip(f"{value} does not fit into {readable(available_memory())}")
    if bench.tiny:
        small = {"dataset": "synthetic:nodes=400,edges=3000", "root": bench.root, "hidden_channels": 8}
        found = measure(Config(**config | small)) | {"memory": 0}
    else:
        gc.collect()
        give_back()  # the process needs the memory that earlier benchmarks held
        found = measured(config, bool(request.config.getoption("--keep-freed-memory")))
    x = found["edges"] if axis == "edges" else value
    seconds, memory = found["epoch"], found["memory"]
    bench.benchmark.group = "growth"
    bench.benchmark.extra_info |= dict(axis=axis, x=x, seconds={OURS: seconds}, memory=memory)
    bench.benchmark.pedantic(lambda: None)  # the times are in extra_info: they were taken in the other process
    per_edge = f"{1e9 * seconds / found['edges']:.0f} ns per edge"
    rest = f"{readable(memory)} beyond torch's, evaluation {found['evaluation']:.2f} s"
    bench.lines.append(f"growth, {axis} {x:,}: {seconds:.3f} s an epoch, {per_edge}, {rest}")


def main(arguments: list[str]) -> None:
    if "--keep-freed-memory" in arguments:
        keep_freed_memory()
    config = Config(**BASE | json.loads(arguments[0]))
    # Everything that is loaded when it is first needed does not count as the run's memory.
    measure(config.changed(dataset="synthetic:nodes=400,edges=2000", hidden_channels=8))
    empty = most_memory()
    print(json.dumps(measure(config) | dict(memory=most_memory() - empty)))


if __name__ == "__main__":
    main(sys.argv[1:])
