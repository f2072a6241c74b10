"""What the compiled kernels need, read from their binaries: registers, resident warps, and the instructions of each loop.

Compiling takes minutes and no GPU. What was read is kept beside the page that was made from it (``STORED``), so that the
page can be made again, and checked, in no time.
"""

import json
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import triton
from triton import knobs

from rest_triton.kernels.gpu.binary import TARGETS, Launch, compile_launch, cost, loops, mix, sass

from .launches import tiny
from .streams import PRECISIONS

STORED = Path(__file__).with_name("gpu_binaries.json")
WIDTHS = (128, 256)
Key = tuple[str, int, str, str]  # kernel, width, precision, target

# The loops of a binary in their order, by what one turn of them handles: an edge block, a tile of rows.
_LOOPS = {
    "spmm": [("tile", "block", "tail"), ("search", "tile", "block", "tail")],  # a hub's row bisects the list of hubs
    "spmm_hub_segment": [("search", "tile", "block", "tail")],
    "edge_grad": [("tile", "block"), ("wide", "tile", "block")],
    "activate": [()],
}


@dataclass(frozen=True)
class Binary:
    """One compiled kernel. ``parts``: instructions by kind, of each loop and of what is in none ("program"); None where
    they cannot be told (AMD, or loops that are not the expected ones)."""

    registers: int
    spills: int
    shared: int
    occupancy: float
    in_flight: int  # 16-byte loads that a lane issues before it uses the first; 0 if unknown
    parts: dict[str, dict[str, int]] | None


@cache
def keys(targets: tuple[str, ...] = ("sm_80", "sm_90", "gfx942")) -> list[Key]:
    names = tiny(WIDTHS[0], PRECISIONS[0], 32)
    return [(name, width, p.name, target) for target in targets for p in PRECISIONS for width in WIDTHS for name in names]


def read(key: Key) -> Binary:
    """Compiles a kernel and reads its binary."""
    _check_compiling()
    name, width, precision, target = key
    p = next(p for p in PRECISIONS if p.name == precision)
    recorded = tiny(width, p, TARGETS[target].warp_size)[name]
    compiled = compile_launch(Launch(recorded.kernel, recorded.arguments, recorded.settings), target)
    found = cost(compiled, target)
    parts = _parts(name, sass(compiled)) if TARGETS[target].backend == "cuda" else None
    return Binary(found.registers, found.spills, found.shared, found.occupancy, found.in_flight, parts)


def _check_compiling() -> None:
    if knobs.runtime.interpret:
        raise RuntimeError(
            "kernels cannot be compiled while Triton interprets them: unset TRITON_INTERPRET, or use --stored"
        )


def _parts(name: str, code: str) -> dict[str, dict[str, int]] | None:
    found = loops(code)
    titles = next((t for t in _LOOPS.get(name, [("tile",)]) if len(t) == len(found)), None)
    if titles is None:
        return None
    # What pads a binary behind its end is never run.
    straight: Counter = mix([line for line in code.splitlines() if line.endswith(";") and not line.startswith("NOP")])
    for body in found:
        straight -= mix(body)
    named = {"program": straight} | {title: mix(body) for title, body in zip(titles, found, strict=True)}
    return {title: dict(sorted(counts.items())) for title, counts in named.items()}


def read_all(wanted: list[Key], processes: int = 2) -> dict[Key, Binary]:
    _check_compiling()
    # Not forked: torch's threads, which this process may have started by now, do not live on in a fork that waits for them.
    with ProcessPoolExecutor(max_workers=processes, mp_context=get_context("spawn")) as pool:
        return dict(zip(wanted, pool.map(read, wanted, chunksize=4), strict=True))


def store(binaries: dict[Key, Binary], path: Path = STORED) -> None:
    """One line for each, so that a difference can be read."""
    lines = [json.dumps([*key, asdict(binary)]) for key, binary in binaries.items()]
    body = ",\n".join(lines)
    path.write_text(f'{{"triton": "{triton.__version__}", "binaries": [\n{body}\n]}}\n')


def stored(path: Path = STORED) -> tuple[str, dict[Key, Binary]]:
    """(Triton's version, what was read)."""
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there; python -m bench.estimate --out FILE compiles and writes it") from None
    return held["triton"], {tuple(key): Binary(**binary) for *key, binary in held["binaries"]}
