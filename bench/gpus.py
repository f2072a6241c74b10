"""The GPUs that estimates are made for, and where each number about them comes from.

No number here was measured by us. ``DATA_SHEET`` names what vendors publish, checked against summaries of their sheets, not
the sheets themselves; everything else is an assumption, and ``estimate.py`` prints it as one.
"""

import re
from dataclasses import dataclass, fields

# Fields taken from data sheets and architecture white papers of NVIDIA and AMD.
DATA_SHEET = {
    "memory_bandwidth", "cache_bytes", "multiprocessors", "warps", "clock", "flops", "pcie", "lanes",
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One device. Bytes, seconds, hertz; per multiprocessor (NVIDIA's SM, AMD's compute unit) where it says so."""

    name: str
    variant: str
    target: str  # what kernels are compiled for
    pattern: str  # finds the name that torch gives the device
    memory_bandwidth: float  # of HBM
    cache_bytes: int  # what all multiprocessors share: L2, on MI300X the infinity cache
    multiprocessors: int
    warps: int  # that a multiprocessor holds at most
    lanes: int  # of a warp
    clock: float  # the highest
    flops: float  # float32, without tensor cores
    pcie: float  # one direction
    cache_bandwidth: float  # between that cache and all multiprocessors
    float_warps: float  # float32 instructions per cycle and multiprocessor, each of a whole warp
    latency: float  # of a load from HBM, with the memory busy
    cache_latency: float  # of one that the shared cache answers
    pcie_latency: float  # of a load from the host's memory
    sector: int  # bytes that the shortest access moves
    launch: float  # from one kernel's end to the next one's beginning, and its first program's start
    efficiency: float = 0.85  # the share of HBM's bandwidth that row-wise access reaches
    pcie_efficiency: float = 0.8  # the share of the link's that loads by a kernel reach: packets have headers

    @property
    def issue(self) -> float:
        """Instructions per second that all multiprocessors issue: NVIDIA's has four schedulers, one a cycle each."""
        return 4 * self.clock * self.multiprocessors


GPUS = (
    Gpu(
        "A100", "SXM4, 80 GB", "sm_80", r"A100-SXM\d?-80GB",
        memory_bandwidth=2039e9, cache_bytes=40 * 2**20, multiprocessors=108, warps=64, lanes=32, clock=1.41e9,
        flops=19.5e12, pcie=31.5e9,
        cache_bandwidth=5120 * 1.41e9,  # 5120 bytes a cycle: NVIDIA's white paper
        float_warps=2, latency=0.6e-6, cache_latency=0.2e-6, pcie_latency=2e-6, sector=32, launch=3e-6,
    ),
    Gpu(
        "H100", "SXM5, 80 GB", "sm_90", r"H100 80GB HBM3",
        memory_bandwidth=3350e9, cache_bytes=50 * 2**20, multiprocessors=132, warps=64, lanes=32, clock=1.98e9,
        flops=66.9e12, pcie=63e9,
        cache_bandwidth=5120 * 1.98e9,  # not published: A100's bytes a cycle
        float_warps=4, latency=0.7e-6, cache_latency=0.2e-6, pcie_latency=2e-6, sector=32, launch=3e-6,
    ),
    Gpu(
        "MI300X", "OAM, 192 GB", "gfx942", r"MI300X",
        memory_bandwidth=5300e9, cache_bytes=256 * 2**20, multiprocessors=304, warps=32, lanes=64, clock=2.1e9,
        flops=163.4e12, pcie=63e9,
        cache_bandwidth=17.2e12,  # of the infinity cache: AMD's white paper
        float_warps=1, latency=0.8e-6, cache_latency=0.3e-6, pcie_latency=2.5e-6, sector=64, launch=5e-6,
    ),
)  # fmt: skip


def named(name: str) -> Gpu | None:
    """The GPU that torch calls ``name``, or None: another memory or link makes another device, so a PCIe card is not its
    SXM sister."""
    return next((gpu for gpu in GPUS if re.search(gpu.pattern, name)), None)


def find(names: list[str]) -> list[Gpu]:
    """GPUs by their short names; all without any."""
    known = {gpu.name: gpu for gpu in GPUS}
    for name in names:
        if name not in known:
            raise ValueError(
                f"{name!r} is not in the table of GPUs; choose from {', '.join(known)} or add it to bench/gpus.py"
            )
    return [known[name] for name in names] if names else list(GPUS)


def kinds() -> dict[str, str]:
    """What each number is: a vendor's figure or our assumption."""
    numbers = [field.name for field in fields(Gpu) if field.type in (int, float)]
    return {name: "data sheet" if name in DATA_SHEET else "assumption" for name in numbers}
