"""Writing rows into tables and fetching them, as a share of what this machine copies.

The ceiling is a plain copy of as many bytes between two buffers that are in memory already: each byte read once and written
once, on all threads."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from rest_triton.batches import ClusterBatches, node_batch
from rest_triton.history import HistoryStore

from .measure import ROUNDS, Report, best


class Far(HistoryStore):
    """Tables that are staged, as beside a GPU or on disk."""

    direct = False  # type: ignore[assignment]


@pytest.mark.parametrize("width", [128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def bench_record_and_stage(
    benchmark: pytest.FixtureRequest, tiny: bool, report: Report, width: int, dtype: torch.dtype
) -> None:
    """300,000 rows of a table of 2.4 million, as a batch of 5 of 40 clusters of products has."""
    nodes, clusters = (2_000, 40) if tiny else (2_449_029, 40)
    ptr = torch.linspace(0, nodes, clusters + 1).long()
    store = Far(nodes, [width], dtype=dtype)
    ranges = ClusterBatches(ptr, 5, seed=0).epoch(0)[0]
    some = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[: len(ranges)].sort().values
    scattered = node_batch(some, nodes)
    h = torch.randn(len(ranges), width)
    # The same traffic without any index: as many bytes read and written.
    source, target = h.to(dtype), torch.empty(len(ranges), width, dtype=dtype)
    variants: dict[str, Callable[[], object]] = {
        "record ranges": partial(store.record, 0, ranges, h, 1),
        "record scattered rows": partial(store.record, 0, scattered, h, 1),
        "stage scattered rows": partial(store.stage, 0, some),
        "copy": partial(target.copy_, source),
        "copy, converting from float32": partial(target.copy_, h),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    moved = 2 * target.nbytes

    def remark(what: str, seconds: float) -> str:
        ceiling = times["copy, converting from float32" if what.startswith("record") else "copy"]
        return f"{(h.nbytes + target.nbytes if 'record' in what or 'conv' in what else moved) / seconds / 1e9:5.1f} GB/s" + (
            "" if what.startswith("copy") else f", {100 * ceiling / seconds:.0f} % of the copy"
        )

    name = str(dtype).removeprefix("torch.")
    report.table(f"{len(ranges):,} rows of {width} in a {name} table", [(n, t, remark(n, t)) for n, t in times.items()])
    benchmark.extra_info["ranges"] = times["copy, converting from float32"] / times["record ranges"]
    benchmark.pedantic(store.record, args=(0, ranges, h, 1), rounds=1 if tiny else 5)


def bench_disk(benchmark: pytest.FixtureRequest, tiny: bool, report: Report, tmp_path: Path) -> None:
    """The same into and out of memory-mapped files that the page cache holds; the thread that writes is waited for."""
    nodes, width = (2_000, 16) if tiny else (600_000, 128)
    store = HistoryStore(nodes, [width], place="disk", folder=tmp_path / "tables")
    batch = ClusterBatches(torch.linspace(0, nodes, 11).long(), 5).epoch(0)[0]
    halo = torch.randperm(nodes)[: len(batch)].sort().values
    h, target = torch.randn(len(batch), width), torch.empty(len(batch), width)

    def record() -> None:
        store.record(0, batch, h, 1)
        store.stamp(0)  # waits

    variants: dict[str, Callable[[], object]] = {
        "record ranges": record,
        "stage scattered rows": partial(store.stage, 0, halo),
        "copy": partial(target.copy_, h),
    }
    times = best(variants, 1 if tiny else ROUNDS)
    share = {what: 100 * times["copy"] / seconds for what, seconds in times.items()}
    report.table(
        f"{len(batch):,} rows of {width} float32 in mapped files",
        [(what, t, "" if what == "copy" else f"{share[what]:.0f} % of the copy") for what, t in times.items()],
    )
    benchmark.pedantic(record, rounds=1 if tiny else 5)
    store.close()
