"""How the time and the memory of an epoch grow: with edges up to products' full shape, with width, with the clusters in a
batch, with layers. Slopes are of straight lines through logarithms: 1 is in proportion.

GCN 3 x 256, 5 of 40 clusters (streamed: METIS would take minutes), tables in float32 beside the model; each axis changes one
of these, on a sixteenth of products where edges are not the axis. Each point runs in a process of its own. The graphs are
kept in ``data/`` after the first time.
"""

import gc
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.utils.machine import available_memory, readable
from rest_triton.utils.malloc import give_back

from .growth import fit
from .measure import Report, Timing
from .one_epoch import measure
from .results import Record

BASE: dict[str, Any] = dict(
    device="cpu", num_parts=40, batch_size=5, num_layers=3, hidden_channels=256, dropout=0.5, partition="stream"
)
SIZES = {"1/64": "synthetic:products@0.015625", "1/16": "synthetic:products@0.0625", "1/4": "synthetic:products@0.25",
         "1": "synthetic:products"}  # fmt: skip
FULL = 18 << 30  # bytes that an epoch on the whole of it takes, with some to spare
# For each axis: the setting that changes, and its values; those of a check that it runs.
AXES: dict[str, tuple[str, list[Any], list[Any]]] = {
    "edges": ("dataset", list(SIZES.values()), [f"synthetic:nodes={n},edges={10 * n}" for n in (800, 2000)]),
    "width": ("hidden_channels", [32, 64, 128, 256, 512], [8, 16]),
    "clusters in a batch": ("batch_size", [1, 2, 5, 10, 20, 40], [2, 5]),
    "layers": ("num_layers", [2, 3, 4, 6, 8], [2, 3]),
}


def fitting(memory: int) -> list[str]:
    """The parts of products that this machine has room for, two at least."""
    sizes = list(SIZES.items())
    return [name for i, (part, name) in enumerate(sizes) if i < 2 or float(Fraction(part)) * FULL <= memory]


def measured(config: dict[str, Any], kept: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.one_epoch", json.dumps(config), *["--keep-freed-memory"] * kept]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {run.stderr.strip().splitlines()[-1:]}")
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("axis", AXES)
def bench_growth(
    benchmark: Any, request: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: Path, axis: str
) -> None:
    kept = bool(request.config.getoption("--keep-freed-memory"))
    setting, full, small = AXES[axis]
    base = BASE | (dict(dataset=AXES["edges"][2][0], root=str(tmp_path), hidden_channels=8) if tiny else
                   dict(dataset=SIZES["1/16"], root=str(Path("data").absolute())))  # fmt: skip
    gc.collect()
    give_back()  # what earlier benchmarks held: the processes need it
    values = small if tiny else full if axis != "edges" else fitting(available_memory())
    if tiny and axis != "edges":  # a process for one of the axes shows that they work
        found = {value: measure(Config(**base | {setting: value})) | dict(memory=1) for value in values}
    else:
        found = {value: measured(base | {setting: value}, kept) for value in values}
    timings = {value: Timing(tuple(f["rounds"])) for value, f in found.items()}
    across = [f["edges"] if axis == "edges" else value for value, f in found.items()]
    time, memory = fit(across, [t.best for t in timings.values()]), fit(across, [f["memory"] for f in found.values()])
    rows = []
    for x, (value, f) in zip(across, found.items(), strict=True):
        best, noise = timings[value].best, timings[value].noise
        report.record(Record("growth", axis, "ours", "time", best, noise, x=x, note=str(value)))
        report.record(Record("growth", axis, "ours", "memory", best, noise, memory=f["memory"], x=x, note=str(value)))
        per_edge = f"{1e9 * best / f['edges']:.0f} ns per edge, "
        remark = f"{per_edge}{readable(f['memory'])} at the most, evaluation {f['evaluation']:.2f} s"
        rows.append((f"{axis} {x:,}", best, remark))
    report.table(f"an epoch of GCN against {axis}: time grows with {time}, memory with {memory}", rows)
    if axis == "edges":
        if len(found) < len(full) and not tiny:
            report.lines.append(f"  larger parts of products do not fit into {readable(available_memory())}")
        first, *_, last = (timings[value].best / f["edges"] for value, f in found.items())
        report.lines.append(f"  time per edge: {last / first:.2f} times that of the smallest")
    benchmark.extra_info |= {"time": time.slope, "memory": memory.slope}
    benchmark.pedantic(lambda: None, rounds=1)
