"""The page of estimates, docs/gpu-estimate.md: the same text for the same numbers."""

from collections import Counter
from collections.abc import Iterable, Iterator

from .binaries import WIDTHS, Binary
from .binaries import Key as BinaryKey
from .gpu_shapes import SHAPES, Shape
from .gpus import GPUS, Gpu, kinds
from .roofline import Estimate
from .streams import PRECISIONS
from .traffic import FORMULAS, KERNELS, binary_of

Key = tuple[str, int, str, str]  # shape, width, precision, kernel

_BOUNDS = {
    "memory": "bytes / (HBM bandwidth * efficiency)",
    "cache": "bytes of all accesses / bandwidth of the cache that all multiprocessors share",
    "latency": "rounds of waiting * latency / resident programs. Little's law turned around: the binary's registers tell how"
    " many programs are resident, and a round brings what the binary loads before it waits. For the lower time,"
    " what is read again is waited for as long as the cache takes",
    "longest": "rounds of the longest program * latency: one long row, while the rest of the GPU may be idle",
    "issue": "instructions of the binary's loops * how often they run / 4 per cycle and multiprocessor; shuffles 1,"
    " float32 at its own rate. NVIDIA only",
    "flops": "float32 operations / peak",
    "bus": "bytes in page-locked memory of the host / (PCIe bandwidth * efficiency)",
    "bus latency": "rounds over the bus * its latency / programs, of which there are 32",
}

_INTRODUCTION = """\
# The Triton kernels on GPUs: estimates

**Every time on this page is an ESTIMATE. No kernel of this project has ever run on a GPU.** The times are arithmetic on
byte formulas, on what compilers made of the kernels, on vendors' data sheets and on assumptions that are listed. They say
what a kernel could reach and what would stop it; they do not say that it does.

    python -m bench.estimate --out docs/gpu-estimate.md       makes this page (minutes: every kernel is compiled)
    python -m bench.estimate --stored                         prints it from what was read from the binaries then
    python -m bench.estimate --json estimates.json            everything, bound by bound

The binaries are Triton {triton}'s. On a machine with one of these GPUs the same command also measures every launch with cold
caches and prints estimate, measurement and their ratio; `pytest -m gpu tests/bench` fails if a kernel is faster than its
bytes can move, because then a formula here is wrong.

## How to read it

A time is the largest of the bounds below, plus the launch. Two times are given: the lower if every row is read from memory
once and found in the cache whenever it is needed again, the higher if it never is. Behind them stands which bound decides
(one word if it is the same for both). Clusters make batches whose neighbours are shared, so the lower is what a good order
of rows is for.

{bounds}
Not in it: programs are taken to be spread evenly, rows of memory to be hit at random, translation of addresses (TLB) to cost
nothing, and all but one row of a batch to have the mean number of edges. Edge dropout and residuals are off.
"""


def page(
    triton: str, gpus: Iterable[Gpu], estimates: dict[str, dict[Key, Estimate]], binaries: dict[BinaryKey, Binary]
) -> str:
    """The whole page."""
    gpus = list(gpus)
    bounds = table(["bound", "time"], ([name, text.replace("*", "\u00d7")] for name, text in _BOUNDS.items()))
    parts = [_INTRODUCTION.format(triton=triton, bounds=bounds), *_devices(), *_shapes(), *_traffic()]
    for gpu in gpus:
        parts += _device(gpu, estimates[gpu.name], binaries)
    return "\n".join(parts) + "\n"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


_SCALES = {
    "memory_bandwidth": (1e9, "GB/s"), "cache_bytes": (2**20, "MiB"), "clock": (1e6, "MHz"), "flops": (1e12, "TFLOP/s"),
    "pcie": (1e9, "GB/s"), "cache_bandwidth": (1e9, "GB/s"), "latency": (1e-6, "us"), "cache_latency": (1e-6, "us"),
    "pcie_latency": (1e-6, "us"),
    "sector": (1, "bytes"), "launch": (1e-6, "us"), "efficiency": (0.01, "%"), "pcie_efficiency": (0.01, "%"),
}  # fmt: skip


def _devices() -> Iterator[str]:
    yield "## The devices: data sheets and assumptions\n"
    rows = []
    for name, kind in kinds().items():
        scale, unit = _SCALES.get(name, (1, ""))
        rows.append([name.replace("_", " "), *(f"{getattr(g, name) / scale:,.10g} {unit}".strip() for g in GPUS), kind])
    yield table(["", *(f"{g.name} ({g.variant}, {g.target})" for g in GPUS), "kind"], rows)
    yield (
        "Data sheets were read in summaries by others. Cache bandwidths of A100 (5,120 bytes per cycle) and MI300X (its"
        " infinity cache) are said to be the vendors' own;"
        " H100's is not published, A100's bytes per cycle are taken for it. *float warps* are float32 instructions per"
        " cycle and multiprocessor, *sector* is what the shortest access moves, *launch* what an empty kernel costs.\n"
    )


def _shapes() -> Iterator[str]:
    yield "## The batches\n"
    head = ["", "rows", "edges", "halo", "edges inside", "longest row", "hubs (edges)", "what it is"]
    yield table(head, ([*_shape(s), s.source] for s in SHAPES))
    yield "Only arxiv is counted. Elsewhere the halo, the edges inside and the hubs (2 % of the edges) are assumptions.\n"


def _shape(s: Shape) -> list[str]:
    counts = [f"{n:,}" for n in (s.rows, s.edges, s.halo)]
    return [s.name, *counts, f"{s.share:.0%}", f"{s.longest:,}", f"{s.hubs} ({s.hub_edges:,})"]


def _traffic() -> Iterator[str]:
    yield "## Bytes\n"
    yield (
        "R rows, E edges (spmm: of rows that are no hubs; hub kernels: of the hubs), H rows of the halo, D features, B"
        " blocks of features; S segments and h hubs of the batch, P partial rows; x and t bytes of an element of activations"
        " and table, s that of whichever a neighbour is in. *Once* counts each element once, *always* each access, in"
        " sectors of 32 bytes where elements lie scattered: millions of bytes at products, width 128, fp32. Far bytes stand"
        " apart. Not written out: lists of hubs and vectors over features, which stay in caches.\n"
    )
    shape, p = SHAPES[1], PRECISIONS[0]
    rows = []
    for name, formula in KERNELS.items():
        work = formula(shape, 128, p, 32)
        once, always, far = (b / 1e6 for b in (work.bytes(), work.bytes(32), work.bytes(far=True)))
        rows.append([f"`{name}`", FORMULAS[name], f"{once:,.1f}", f"{always:,.1f}", f"{far:,.1f}" if far else ""])
    yield table(["kernel", "bytes of all accesses", "once", "always", "far"], rows)


def _device(gpu: Gpu, estimates: dict[Key, Estimate], binaries: dict[BinaryKey, Binary]) -> Iterator[str]:
    yield f"## {gpu.name} ({gpu.variant}): estimates\n"
    columns = [(p.name, width) for p in PRECISIONS for width in WIDTHS]
    head = ["", *(f"{name}, {width}" for name, width in columns)]
    yield "Compiled: registers of a thread, resident warps over the most possible, 16-byte loads in flight where counted.\n"
    names = dict.fromkeys(map(binary_of, KERNELS))
    yield table(head, ([f"`{k}`", *(_binary(binaries[k, w, p, gpu.target]) for p, w in columns)] for k in names))
    needed = gpu.memory_bandwidth * gpu.latency / gpu.multiprocessors / 1024
    yield (
        f"In flight per multiprocessor at products, KiB, in the mean over a program's life; bandwidth \u00d7 latency asks"
        f" for {needed:.0f}:\n"
    )
    near = [k for k in names if k not in ("spmm_hub_sum", "column_sum")]  # these two are over before it matters
    flying = {k: [estimates[SHAPES[1].name, w, p, k].in_flight for p, w in columns] for k in near}
    yield table(head, ([f"`{k}`", *(f"{n / 1024:.0f}" for n in found)] for k, found in flying.items()))
    for shape in SHAPES:
        yield f"{shape.name}, microseconds:\n"
        yield table(head, ([f"`{k}`", *(_cell(estimates[shape.name, w, p, k]) for p, w in columns)] for k in KERNELS))
    yield _deciding(estimates)


def _binary(b: Binary) -> str:
    return f"{b.registers}, {b.occupancy:.0%}" + (f", {b.in_flight}" if b.in_flight else "")


def _cell(e: Estimate) -> str:
    low, high = microseconds(e.low), microseconds(e.high)
    bounds = dict.fromkeys((e.low_bound, e.high_bound))
    return f"{low if low == high else f'{low} to {high}'}: {', '.join(bounds)}"


def microseconds(seconds: float) -> str:
    """Two digits: an estimate has no more."""
    return f"{float(f'{1e6 * seconds:.2g}'):,.10g}"


def _deciding(estimates: dict[Key, Estimate]) -> str:
    counts = [Counter(getattr(e, side) for e in estimates.values()) for side in ("low_bound", "high_bound")]
    said = ["; ".join(f"{name} {n}" for name, n in sorted(c.items(), key=lambda i: (-i[1], i[0]))) for c in counts]
    return f"What decides, over these {len(estimates)}: for the lower time {said[0]}; for the higher {said[1]}.\n"
