"""From what a kernel does, what its binary needs and what a GPU can do to the time it should take. An ESTIMATE.

Every bound is a time that the launch cannot beat on the numbers assumed; the largest decides. Two such times are given:
``low``, if each item is read from memory once and comes from the cache afterwards, and ``high``, if nothing is ever found
there. A launch should fall between them.

    memory     bytes / (bandwidth x efficiency)
    cache      bytes of all accesses / the shared cache's bandwidth
    latency    rounds x latency / resident programs: Little's law, bytes in flight = bandwidth x latency, turned around;
               for ``low`` what is read again is waited for as long as the cache takes
    longest    rounds of the longest program x latency: however idle the rest of the GPU is
    issue      instructions / (4 per cycle and multiprocessor), or of shuffles and float32 at their own rates
    flops      float32 operations / the peak
    bus        bytes in the host's memory / (the link's bandwidth x efficiency)
    bus latency  rounds over the bus x its latency / programs
"""

from dataclasses import dataclass
from math import ceil

from .binaries import Binary
from .gpus import Gpu
from .streams import Work


@dataclass(frozen=True)
class Estimate:
    """Seconds, launch included. ``floor`` needs no assumption about efficiency, latency or caches: a measurement below it
    means that a formula here is wrong."""

    low: float
    high: float
    low_bound: str  # what decides
    high_bound: str
    floor: float
    bounds: dict[str, tuple[float, float]]  # by name: (low, high)
    resident: int  # programs at a time, on the whole GPU
    in_flight: int  # bytes per multiprocessor, in the mean


def resident_programs(work: Work, binary: Binary, gpu: Gpu) -> int:
    """Programs that run at the same time: as many as registers leave room for, or all there are."""
    warps = round(binary.occupancy * gpu.warps)
    return max(min(work.programs, warps // work.warps * gpu.multiprocessors), 1)


def issue_seconds(work: Work, binary: Binary, gpu: Gpu) -> float:
    """Time to issue all instructions; 0 where they are not known."""
    if binary.parts is None:
        return 0.0
    kinds = dict.fromkeys(("all", "shuffles", "multiply and add"), 0)
    for part, times in work.runs.items():
        counts = binary.parts.get(part, {})
        kinds["all"] += times * work.warps * sum(counts.values())
        for kind in ("shuffles", "multiply and add"):
            kinds[kind] += times * work.warps * counts.get(kind, 0)
    cycles = max(kinds["all"] / 4, kinds["shuffles"], kinds["multiply and add"] / gpu.float_warps)
    return cycles / (gpu.clock * gpu.multiprocessors)


def estimate(work: Work, binary: Binary, gpu: Gpu) -> Estimate:
    least, most = work.bytes(), work.bytes(gpu.sector)
    resident = resident_programs(work, binary, gpu)
    bandwidth = gpu.memory_bandwidth * gpu.efficiency
    # A tile's loads go out together, unless the compiler kept fewer in flight than the settings ask for.
    waits = ceil(work.loads / binary.in_flight) if work.loads and binary.in_flight else 1
    near = work.rounds - work.far_rounds - work.cached_rounds
    # What is read again comes from the cache, and so sooner: the mean over all that is waited for.
    sooner = gpu.cache_latency + (gpu.latency - gpu.cache_latency) * least / max(most, 1)
    waited = [near * waits * latency + work.cached_rounds * gpu.cache_latency for latency in (sooner, gpu.latency)]
    bounds = {
        "memory": (least / bandwidth, most / bandwidth),
        "cache": (most / gpu.cache_bandwidth,) * 2,
        "latency": (waited[0] / resident, waited[1] / resident),
        "longest": (work.longest * waits * sooner, work.longest * waits * gpu.latency),
        "issue": (issue_seconds(work, binary, gpu),) * 2,
        "flops": (work.flops / gpu.flops,) * 2,
        "bus": tuple(b / (gpu.pcie * gpu.pcie_efficiency) for b in (work.bytes(far=True), work.bytes(gpu.sector, far=True))),
        "bus latency": ((near * gpu.latency + work.far_rounds * gpu.pcie_latency) / resident * (work.far_rounds > 0),) * 2,
    }
    low_bound, high_bound = (max(bounds, key=lambda name: bounds[name][side]) for side in (0, 1))
    # What is written may stay in the cache until after the kernel's end; what is read has to come from memory, as the cache
    # is cold.
    written = max(work.bytes(write=True) - gpu.cache_bytes, 0)
    floor = max(
        (work.bytes(write=False) + written) / gpu.memory_bandwidth,
        work.bytes(far=True) / gpu.pcie,
        work.flops / gpu.flops,
    )
    low, high = bounds[low_bound][0], bounds[high_bound][1]
    moved = most + work.bytes(gpu.sector, far=True)
    in_flight = round(moved / max(work.rounds * waits, 1) * resident / gpu.multiprocessors)
    return Estimate(low + gpu.launch, high + gpu.launch, low_bound, high_bound, floor, bounds, resident, in_flight)
