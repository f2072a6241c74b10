"""An epoch at products' full shape beside one at a tenth of it: time per edge, and the most memory that a process held.

GCN 3 x 256, 5 of 40 clusters (streamed: METIS would take minutes), tables in float32 beside the model. Each size runs in a
process of its own, as the command line would: load, fill, two epochs, evaluation. The graphs are kept in ``data/`` after the
first time.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from .measure import Report

RUN = """
import json, sys, time
from rest_triton.config import Config
from rest_triton.loading import load_for
from rest_triton.machine import most_memory
from rest_triton.malloc import keep_freed_memory
from rest_triton.trainer import Trainer

dataset, root, hidden, kept = sys.argv[1:]
if kept == "True":
    keep_freed_memory()
config = Config(dataset=dataset, root=root, device="cpu", parts=40, per_batch=5, num_layers=3, hidden_channels=int(hidden),
                dropout=0.5, partition="stream")
trainer = Trainer(config, load_for(config))
trainer.begin()
trainer.epoch(1)
begin = time.perf_counter()
trainer.epoch(2)
seconds = time.perf_counter() - begin
begin = time.perf_counter()
trainer.evaluate()
print(json.dumps(dict(seconds=seconds, evaluation=time.perf_counter() - begin, edges=trainer.loaded.adj.num_edges,
                      memory=most_memory())))
"""


def measured(dataset: str, root: str, hidden: int, kept: bool) -> dict[str, Any]:
    command = [sys.executable, "-c", RUN, dataset, root, str(hidden), str(kept)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def bench_products(benchmark: Any, request: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: str) -> None:
    kept = bool(request.config.getoption("--keep-freed-memory"))
    sizes = ["synthetic:nodes=800,edges=8000", "synthetic:nodes=2000,edges=20000"] if tiny else [
        "synthetic:products@0.1", "synthetic:products",
    ]  # fmt: skip
    root, hidden = (str(tmp_path), 16) if tiny else ("data", 256)
    found = {dataset: measured(dataset, root, hidden, kept) for dataset in sizes}
    tenth, full = (found[dataset] for dataset in sizes)
    ratio = (full["seconds"] / full["edges"]) / (tenth["seconds"] / tenth["edges"])
    report.table(
        f"an epoch of GCN 3 x {hidden}, 5 of 40 clusters: time per edge {ratio:.2f} times that of the smaller graph",
        [
            (dataset, f["seconds"], f"{1e9 * f['seconds'] / f['edges']:.1f} ns per edge, {f['memory'] / 2**30:.1f} GiB at "
             f"the most, evaluation {f['evaluation']:.2f} s") for dataset, f in found.items()
        ],
    )  # fmt: skip
    benchmark.extra_info |= {"per_edge_ratio": ratio, "memory": full["memory"]}
    benchmark.pedantic(lambda: None, rounds=1)
