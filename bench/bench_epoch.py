"""Whole epochs: ours beside PyGAS's pipeline rebuilt from torch's parts, what each spends them on, and what REST adds.

GCN, APPNP and GCNII of width 256, 80 clusters, on ``--graph`` (default: synthetic:arxiv). Every variant trains one epoch in
turn, round after round; the best of each counts. Evaluation is in none of them.
"""

from pathlib import Path
from typing import Any

import pytest

from rest_triton.data.clusters import load_data
from rest_triton.training.trainer import Trainer

from .measure import Report, timed
from .pipelines import PARTS, THEIRS, TINY, epochs, epochs_of, our_shares, overhead, permuted, pygas, settings, their_shares
from .pipelines import title as title_of
from .results import Record

METHODS: dict[str, dict[str, Any]] = {
    "ours": dict(method="gas"),
    "ours + REST, F = 1": dict(method="gas+rest"),
    "ours + REST-IS": dict(method="gas+rest-is"),
}
FREQUENCIES = range(6)


def where(request: pytest.FixtureRequest, tiny: bool, tmp_path: Path) -> tuple[str, str, str]:
    """(data set, folder, what to call it)."""
    if tiny:
        return TINY, str(tmp_path), "tiny"
    dataset: str = request.config.getoption("--graph")
    return dataset, "data", Path(dataset).stem


@pytest.mark.parametrize("batch_size", [40, 5])
@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def bench_epoch(
    benchmark: Any, request: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: Path, model: str, batch_size: int
) -> None:
    dataset, root, name = where(request, tiny, tmp_path)
    config = settings(model, dataset, root, tiny, batch_size=batch_size)
    loaded = load_data(config)
    methods = dict(METHODS) | ({"full batch, ours": dict(method="full")} if model == "gcn" else {})
    if config.input == "exact":
        methods["ours, input cached"] = dict(method="gas", input="cached")
    ours = {what: Trainer(config.changed(**changes), loaded) for what, changes in methods.items()}
    theirs = pygas(config, *permuted(config), ours["ours"])
    variants = {what: epochs(trainer) for what, trainer in ours.items()} | {THEIRS: epochs_of(theirs)}
    rounds = 1 if tiny else 5
    times = timed(variants, rounds)
    gas, peer = times["ours"].best, times[THEIRS].best
    case = f"{title_of(config)}, {name}"
    for what, timing in times.items():
        report.record(Record("epoch", case, what, "epoch", timing.best, timing.noise))
    rows = [(what, timing.best, f"{timing.best / gas:.2f} x ours") for what, timing in times.items()]
    steps = len(ours["ours"].method.batches(1))
    share = overhead(ours["ours"], rounds) * steps / gas
    rows.append((f"{steps} steps without data: Python and dispatch", share * gas, f"{100 * share:.1f} % of ours"))
    report.record(Record("epoch", case, "Python and dispatch", "overhead", share * gas))
    report.table(f"an epoch of {case}: PyGAS's takes {peer / gas:.1f} times as long (product: {theirs.product})", rows)
    spent = {
        "ours": our_shares(ours["ours"], variants["ours"]),
        "ours + REST, F = 1": our_shares(ours["ours + REST, F = 1"], variants["ours + REST, F = 1"]),
        THEIRS: their_shares(theirs, variants[THEIRS]),
    }
    for what, shares in spent.items():
        whole = times[what].best
        for part, portion in shares.items():
            report.record(Record("epoch", case if what == "ours" else f"{case} ({what})", part, "part", portion * whole))
        parts = ", ".join(f"{part} {100 * portion:.0f} %" for part, portion in shares.items() if portion >= 0.005)
        report.lines.append(f"    {what}: {parts}")
    benchmark.extra_info |= {"against_pygas": peer / gas, "overhead": share}
    benchmark.pedantic(variants["ours"], rounds=1)


@pytest.mark.parametrize("batch_size", [40, 5])
def bench_frequency(
    benchmark: Any, request: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: Path, batch_size: int
) -> None:
    """What each refresh before a step adds to an epoch of GCN; F = 0 is GAS."""
    dataset, root, name = where(request, tiny, tmp_path)
    config = settings("gcn", dataset, root, tiny, batch_size=batch_size)
    loaded = load_data(config)
    asked = {f: dict(method="gas") if f == 0 else dict(method="gas+rest", frequency=f) for f in FREQUENCIES}
    variants = {str(f): epochs(Trainer(config.changed(**changes), loaded)) for f, changes in asked.items()}
    times = timed(variants, 1 if tiny else 5)
    case, gas = f"{title_of(config)}, {name}", times["0"].best
    for f in FREQUENCIES:
        timing = times[str(f)]
        report.record(Record("frequency", case, "ours", "epoch", timing.best, timing.noise, x=f, note=f"F = {f}"))
    report.table(
        f"REST before every step, an epoch of {case}",
        [(f"F = {f}", times[str(f)].best, f"{100 * (times[str(f)].best / gas - 1):+.0f} %") for f in FREQUENCIES],
    )
    benchmark.extra_info |= {f"F = {f}": times[str(f)].best / gas for f in FREQUENCIES}
    benchmark.pedantic(variants["0"], rounds=1)


assert PARTS % 40 == 0  # whole batches: a rest of clusters would make an epoch's last step another one
