"""Made-up results of a whole session, in the forms in which benchmarks record them."""

from pathlib import Path
from typing import Any

from bench.results import Record, write

MACHINE: dict[str, Any] = dict(
    processor="A Processor, 2 cores", threads=2, gpu="", system="Linux", python="3.11", versions={"torch": "2.13.0"},
    commit="abc1234", malloc="as it comes", time="2026-11-18T03:05:03+00:00",
)  # fmt: skip
CASES = ("arxiv@1, 40 of 80 clusters, width 128, float32", "products@0.1, 5 of 40 clusters, width 256, bfloat16")
READING, COPYING = "only reading its rows, asked for ahead", "a copy of as many bytes"
MODEL = "GCN 3 x 256, 40 of 80 clusters, arxiv30"


def of_ops() -> list[Record]:
    """history_spmm takes 10 ms on both cases; its alternatives 2 and 3 times as long on the first, 4 and 3 times on the
    second. scatter_rows is slower than its alternative, and one alternative of activate is wrong."""
    found = []
    for case, by_csr in zip(CASES, (2, 4), strict=True):
        for mode in ("forward", "backward", "both"):
            found += [
                Record("history_spmm", case, "ours", mode, 0.01, 0.05, 280_000_000, 40.0, READING),
                Record("history_spmm", case, "pull + cat + CSR @ dense, int64", mode, 0.01 * by_csr, 0.1),
                Record("history_spmm", case, "pull + cat + sparse.mm(sum), int64", mode, 0.03, 0.02),
                Record("history_spmm", case, f"limit: {READING}", mode, 0.007, 0.02, 280_000_000),
            ]
    return [
        *found,
        Record("activate", "84,000 x 256", "ours", "both", 0.02, 0.1, 500_000_000, 36.0, COPYING),
        Record("activate", "84,000 x 256", "BatchNorm1d + ReLU + index_put + F.dropout", "both", 0.2, 0.1),
        Record("activate", "84,000 x 256", "a wrong one", "both", None, note="WRONG: both is off by 3.0e-01"),
        Record("scatter_rows", "60,000 rows", "ours", "forward", 0.004, 0.1, 100_000_000, 20.0, COPYING),
        Record("scatter_rows", "60,000 rows", "table[index] = rows", "forward", 0.003, 0.1),
        Record("scatter_rows", "60,000 rows", "a copy, for scale", "forward", 0.001, 0.1),
    ]


def of_epochs() -> list[Record]:
    shares = dict(data=0.1, aggregate=0.2, dense=0.5, activate=0.1, other=0.1)
    return [
        Record("epoch", MODEL, "ours", "epoch", 1.3, 0.02),
        Record("epoch", MODEL, "ours + REST-IS", "epoch", 1.69, 0.02),
        Record("epoch", MODEL, "PyGAS's pipeline", "epoch", 3.9, 0.05),
        Record("epoch", MODEL, "Python and dispatch", "overhead", 0.013),
        *(Record("epoch", MODEL, part, "part", 1.3 * share) for part, share in shares.items()),
        *(Record("epoch", f"{MODEL} (PyGAS's pipeline)", part, "part", 3.9 * share) for part, share in shares.items()),
    ]


def of_frequency() -> list[Record]:
    return [Record("frequency", MODEL, "ours", "epoch", 1.3 * (1 + f / 4), 0.02, x=f) for f in range(4)]


def of_growth() -> list[Record]:
    """Time in proportion to edges and not at all to clusters in a batch, memory like the square root of edges."""
    found = []
    for x in (1, 4, 16, 64):
        found.append(Record("growth", "edges", "ours", "time", 0.5 * x, x=1e6 * x))
        found.append(Record("growth", "edges", "ours", "memory", 0.5 * x, memory=int(1e9 * x**0.5), x=1e6 * x))
        found.append(Record("growth", "clusters in a batch", "ours", "time", 2.0, x=x))
    return found


def all_records() -> list[Record]:
    return [*of_ops(), *of_epochs(), *of_frequency(), *of_growth()]


def written(path: Path, records: list[Record], **machine: Any) -> str:
    return str(write(path, MACHINE | machine, records)[0])
