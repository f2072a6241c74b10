"""How fast the Triton kernels should be on GPUs that are not here: an ESTIMATE, and what is measured where one is.

    python -m bench.estimate                             compile every kernel, print the page
    python -m bench.estimate --stored                    the same from what was read from the binaries last time
    python -m bench.estimate --out docs/gpu-estimate.md  write the page, and keep what was read from the binaries
    python -m bench.estimate --json FILE                 every bound of every launch, and measurements, for programs

On one of the GPUs of ``bench/gpus.py`` every launch is also measured, and set beside its estimate. Then the exit status is 1
if a kernel is faster than its bytes can move.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from .binaries import STORED, WIDTHS, Binary, keys, read_all, store, stored
from .binaries import Key as BinaryKey
from .estimate_page import page
from .gpu_shapes import SHAPES, Shape
from .gpu_timing import Comparison, EventTimer, Key, compare, fits, launches_on, measure
from .gpus import GPUS, Gpu, find, named
from .roofline import Estimate, estimate
from .streams import PRECISIONS, Precision
from .traffic import KERNELS, binary_of


def cells(shapes: Sequence[Shape] = SHAPES) -> list[tuple[Shape, int, Precision]]:
    return [(shape, width, p) for shape in shapes for width in WIDTHS for p in PRECISIONS]


def estimates(gpu: Gpu, binaries: dict[BinaryKey, Binary], shapes: Sequence[Shape] = SHAPES) -> dict[Key, Estimate]:
    """Every kernel at every shape, width and precision."""
    return {
        (shape.name, width, p.name, kernel): estimate(
            formula(shape, width, p, gpu.lanes), binaries[binary_of(kernel), width, p.name, gpu.target], gpu
        )
        for shape, width, p in cells(shapes)
        for kernel, formula in KERNELS.items()
    }


def at_hand() -> Gpu | None:
    """The GPU of this machine, if there are estimates for it."""
    return named(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def measured(gpu: Gpu, expected: dict[Key, Estimate], shapes: Sequence[Shape] = SHAPES) -> list[Comparison]:
    """Everything that fits the GPU's memory, measured; each comparison is printed as it comes."""
    device = torch.device("cuda", torch.cuda.current_device())
    timer = EventTimer(device, gpu.cache_bytes)
    fitting = [cell for cell in cells(shapes) if fits(*cell, torch.cuda.mem_get_info(device)[0])]
    found = []
    for comparison in compare(expected, measure(fitting, timer, launches_on(device, gpu), KERNELS)):
        print(comparison.line, flush=True)
        found.append(comparison)
    return found


def as_json(all_estimates: dict[str, dict[Key, Estimate]], comparisons: list[Comparison]) -> list[dict]:
    """A row for each launch; ``measured`` is null where nothing was."""
    here = at_hand()
    seconds = {(here.name, *comparison.key): comparison.seconds for comparison in comparisons} if here else {}
    names = ("gpu", "shape", "width", "precision", "kernel")
    return [
        dict(zip(names, (gpu, *key), strict=True), measured=seconds.get((gpu, *key)), **asdict(e))
        for gpu, found in all_estimates.items()
        for key, e in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.estimate", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the page there instead of printing it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--stored", action="store_true", help=f"do not compile, take {STORED.name}")
    parser.add_argument("--gpu", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(g.name for g in GPUS)} (all)")
    parser.add_argument("--no-measure", action="store_true", help="on such a GPU: only estimate")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        gpus = find(options.gpu)
        if options.out and options.gpu:
            raise ValueError(f"--out writes the page of all GPUs, and --gpu names {options.gpu}; leave one away")
        if options.stored:
            version, binaries = stored()
        else:
            version, binaries = triton.__version__, read_all(keys(tuple(gpu.target for gpu in gpus)), options.jobs)
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        parser.error(str(error))
    found = {gpu.name: estimates(gpu, binaries) for gpu in gpus}
    text = page(version, gpus, found, binaries)
    if options.out:
        options.out.write_text(text)
        if not options.stored:
            store(binaries)  # the page and what it was made from belong together
    else:
        print(text)

    here, comparisons = at_hand(), []
    if here is not None and here.name in found and not options.no_measure:
        print(f"Measured on {torch.cuda.get_device_name()}; ratio = measured / low estimate", flush=True)
        comparisons = measured(here, found[here.name])
    elif torch.cuda.is_available() and here is None:
        print(f"{torch.cuda.get_device_name()} is not in bench/gpus.py: nothing is measured")
    if options.json:
        options.json.write_text(json.dumps(as_json(found, comparisons), indent=1) + "\n")
    return int(any(comparison.verdict.startswith("IMPOSSIBLE") for comparison in comparisons))


if __name__ == "__main__":
    sys.exit(main())
