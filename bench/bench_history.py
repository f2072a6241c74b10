"""Writing rows into tables and fetching them, as a share of what this machine copies.

The ceiling is the faster of two copies of as many bytes between buffers that are in memory already: torch's, which reads a
line before it overwrites it, and the kernel's own on consecutive rows, which does not. Where the dtype changes on the way,
it is torch's converting copy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from rest_triton.history.history import History
from rest_triton.ops import gather_rows
from rest_triton.ops.memory import new_rows
from rest_triton.sampling.batch import ClusterLoader, node_batch

from .measure import ROUNDS, Report, best


class Far(History):
    """Tables that are staged, as beside a GPU or on disk."""

    direct = False


@pytest.mark.parametrize("width", [128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def bench_record_and_stage(
    benchmark: pytest.FixtureRequest, tiny: bool, report: Report, width: int, dtype: torch.dtype
) -> None:
    """300,000 rows of a table of 2.4 million, as a batch of 5 of 40 clusters of products has."""
    nodes, clusters = (2_000, 40) if tiny else (2_449_029, 40)
    ptr = torch.linspace(0, nodes, clusters + 1).long()
    store = Far(nodes, [width], dtype=dtype)
    ranges = ClusterLoader(ptr, 5, seed=0).epoch(0)[0]
    some = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[: len(ranges)].sort().values
    scattered = node_batch(some, nodes)
    h = torch.randn(len(ranges), width)
    source, target = h.to(dtype), new_rows(len(ranges), width, dtype, h.device)
    every = torch.arange(len(ranges))
    plain = partial(gather_rows, source, every, out=target)
    variants: dict[str, Callable[[], object]] = {
        "record ranges": partial(store.record, 0, ranges, h, 1),
        "record scattered rows": partial(store.record, 0, scattered, h, 1),
        "stage scattered rows": partial(store.stage, 0, some),
        "copy by torch": partial(target.copy_, source),
        "copy of consecutive rows": plain,
        "copy by torch, converting from float32": partial(target.copy_, h),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    copy = min(times["copy by torch"], times["copy of consecutive rows"])
    converting = copy if dtype == torch.float32 else times["copy by torch, converting from float32"]

    def remark(what: str, seconds: float) -> str:
        moved = target.nbytes + (h.nbytes if "record" in what or "convert" in what else target.nbytes)
        share = 100 * (converting if "record" in what else copy) / seconds
        return f"{moved / seconds / 1e9:5.1f} GB/s" + ("" if what.startswith("copy") else f", {share:.0f} % of the copy")

    name = str(dtype).removeprefix("torch.")
    report.table(f"{len(ranges):,} rows of {width} in a {name} table", [(n, t, remark(n, t)) for n, t in times.items()])
    benchmark.extra_info["ranges"] = converting / times["record ranges"]
    benchmark.pedantic(store.record, args=(0, ranges, h, 1), rounds=1 if tiny else 5)


def bench_disk(benchmark: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: Path) -> None:
    """The same into and out of memory-mapped files that the page cache holds; the thread that writes is waited for."""
    nodes, width = (2_000, 16) if tiny else (600_000, 128)
    store = History(nodes, [width], place="disk", folder=tmp_path / "tables")
    batch = ClusterLoader(torch.linspace(0, nodes, 11).long(), 5).epoch(0)[0]
    halo = torch.randperm(nodes)[: len(batch)].sort().values
    h, target = torch.randn(len(batch), width), new_rows(len(batch), width, torch.float32, torch.device("cpu"))

    def record() -> None:
        store.record(0, batch, h, 1)
        store.stamp(0)  # waits

    variants: dict[str, Callable[[], object]] = {
        "record ranges": record,
        "stage scattered rows": partial(store.stage, 0, halo),
        "copy": partial(gather_rows, h, torch.arange(len(batch)), out=target),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    share = {what: 100 * times["copy"] / seconds for what, seconds in times.items()}
    report.table(
        f"{len(batch):,} rows of {width} float32 in mapped files",
        [(what, t, "" if what == "copy" else f"{share[what]:.0f} % of the copy") for what, t in times.items()],
    )
    benchmark.pedantic(record, rounds=1 if tiny else 5)
    store.close()
