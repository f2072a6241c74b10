"""What this machine does at best, by itself: the figures that the ops' limits of the same session are to be seen beside."""

from typing import Any

import torch

from .cases import UNIFORM, Case, Room
from .limits import bus, copy, reads, row_limits, triad
from .measure import ROUNDS, Report, in_turn
from .results import Record


def bench_limits(benchmark: Any, tiny: bool, room: Room, report: Report) -> None:
    size = 1 << 16 if tiny else 384 << 20
    _, b = room.build(Case(UNIFORM, 128))
    limits = [copy(size, room.device), triad(size, room.device)]
    limits += row_limits("", reads(b.position, b.columns, b.x, b.table))
    if room.device.type == "cuda":
        limits.append(bus(size, room.device))
    for limit in limits:
        limit.run()
    times = in_turn({limit.name: [limit.run] for limit in limits}, room.device, 1 if tiny else ROUNDS)
    records = []
    for limit in limits:
        timing = times[limit.name][0]
        case = f"{limit.bytes / 1e6:,.0f} MB" + (", random rows of 128 float32" if "rows" in limit.name else "")
        records.append(Record("machine", case, limit.name, "any", timing.best, timing.noise, limit.bytes))
    report.compared("this machine", records)
    benchmark.extra_info |= {record.what: record.gbps for record in records}
    benchmark.pedantic(torch.zeros, args=(1,), rounds=1)
