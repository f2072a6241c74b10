"""What was measured, as files: JSON with the machine it was measured on, and CSV with a line for each record."""

import csv
import json
import platform
import subprocess
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rest_triton.utils.machine import processor

LATEST = Path(__file__).parent / "results" / "latest.json"
PACKAGES = ("torch", "triton", "numba", "numpy", "torch-geometric", "torch-sparse", "pyg-lib", "dgl")


@dataclass(frozen=True)
class Record:
    """One thing that was measured.

    Args:
        bench: which benchmark, such as "spmm". case: on what, such as "products@0.25, width 128, float32".
        what: "ours", or the name of an alternative. mode: "forward", "backward", "both", "epoch", "part of an epoch" …
        seconds: the best round; None if it gave no right result, and then ``note`` says why.
        noise: the median's distance from the best, as a share of it.
        bytes: that it has to move, by formula. ceiling: GB/s that this machine reaches at the same kind of access, and
        ceiling_name, what that was measured by. memory: the most bytes that it held beyond its inputs.
        error: the largest difference from float64, relative to the largest value. x: where on the axis of a growth curve.
    """

    bench: str
    case: str
    what: str
    mode: str
    seconds: float | None
    noise: float | None = None
    bytes: int | None = None
    ceiling: float | None = None
    ceiling_name: str = ""
    memory: int | None = None
    error: float | None = None
    x: float | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, float | None]:
        """What makes two records of different sessions the same measurement."""
        return self.bench, self.case, self.what, self.mode, self.x

    @property
    def gbps(self) -> float | None:
        return None if self.bytes is None or not self.seconds else self.bytes / self.seconds / 1e9

    @property
    def of_ceiling(self) -> float | None:
        return None if self.gbps is None or not self.ceiling else self.gbps / self.ceiling


COLUMNS = (*(f.name for f in fields(Record)), "gbps", "of_ceiling")


def about(*, malloc: str, tiny: bool) -> dict[str, Any]:
    """The machine, the versions and the commit of now. tiny: shapes on which times mean nothing."""
    import torch

    return {
        "processor": processor(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "system": platform.platform(), "python": platform.python_version(), "versions": versions(), "commit": commit(),
        "malloc": malloc, "tiny": tiny, "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return "no commit"
    return run.stdout.strip() or "no commit"


def write(path: Path, machine: dict[str, Any], records: list[Record]) -> tuple[Path, Path]:
    """``path`` with the ending .json, and with .csv; both are returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = path.with_suffix(".json"), path.with_suffix(".csv")
    as_json.write_text(json.dumps({"machine": machine, "records": [asdict(r) for r in records]}, indent=1) + "\n")
    with open(as_csv, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for record in records:
            cells = (getattr(record, name) for name in COLUMNS)
            rows.writerow("" if cell is None else cell for cell in cells)
    return as_json, as_csv


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """What :func:`write` wrote: (machine, records)."""
    try:
        found = json.loads(path.read_text())
        return found["machine"], [Record(**record) for record in found["records"]]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there; pytest bench/ --benchmark-only writes bench/results/latest.json"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not hold results of bench/ ({error}); name a .json that bench/ wrote") from None
