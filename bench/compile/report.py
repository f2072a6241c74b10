"""What the compiled Triton kernels cost, without a GPU.

    python -m bench.compile.report                            every kernel, for sm_80, sm_90, sm_100 and gfx942
    python -m bench.compile.report --quick                    the few that the tests compile
    python -m bench.compile.report --kernel spmm --width 128 --target sm_90
    python -m bench.compile.report --kernel spmm --width 128 --target sm_90 --variant fp32 --loops
    python -m bench.compile.report --kernel activate --dump out/                 PTX, SASS and TTGIR as files

The exit status is 1 if a binary breaks a rule of :func:`faults`: it spills, exceeds its budget of registers, uses
atomics, or loads rows in pieces.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch
from triton.compiler import CompiledKernel

from .binary import TARGETS, Launch, compile_launch, cost, loops, mix, sass
from .cases import DTYPES, cases

_COLUMNS = {
    "kernel": "kernel", "variant": "variant", "width": "width", "target": "target", "registers": "regs",
    "budget": "budget", "spills": "spills", "shared": "shared", "occupancy": "occupancy", "binary": "binary",
    "load_bits": "load bits", "in_flight": "in flight",
}  # fmt: skip
ROW_LOOPS = ("spmm", "spmm_hub_segment", "edge_grad")  # kernels whose loop reads rows of neighbours


_CASES = list(cases())
Job = tuple[int, str, str]  # number of the case, kernel, target


def jobs(targets: Iterable[str], kernels: Iterable[str] = (), widths: Iterable[int] = (), variant: str = "") -> list[Job]:
    """What to compile; empty filters take all."""
    kernels, widths = set(kernels), set(widths)
    return [
        (i, name, target)
        for target in targets
        for i, case in enumerate(_CASES)
        if (not widths or case.width in widths) and re.search(variant, case.variant)
        for name in case.launches(target)
        if not kernels or name in kernels
    ]


def quick(work: list[Job]) -> list[Job]:
    """The jobs that every run of the tests compiles.

    - For each target, the last case of each kernel: the lists in ``cases`` end with every option switched on.
    - For gfx942, whose compiler is the fastest, each variant at one width: every branch is compiled once.
    - For sm_90, the loops over rows at the widths that fill a warp.
    """
    last = {(name, target): i for i, name, target in work}
    first: dict[tuple[str, str], int] = {}
    for i, name, target in work:
        if target == "gfx942":
            first.setdefault((name, _CASES[i].variant), i)

    def chosen(job: Job) -> bool:
        i, name, target = job
        case = _CASES[i]
        full_rows = name == "spmm" and case.variant in DTYPES and case.width in (100, 128, 256)
        return (
            last[name, target] == i
            or (target == "gfx942" and first[name, case.variant] == i)
            or (target == "sm_90" and (full_rows or (name in ROW_LOOPS and case.variant.endswith("everything"))))
        )

    return [job for job in work if chosen(job)]


def _title(job: Job) -> dict:
    i, name, target = job
    return dict(kernel=name, variant=_CASES[i].variant, width=_CASES[i].width, target=target)


def _compile(job: Job) -> tuple[Launch, CompiledKernel]:
    i, name, target = job
    launch = _CASES[i].launches(target)[name]
    return launch, compile_launch(launch, target)


def measure(job: Job) -> dict:
    """The row of one job. A kernel that does not compile is a row with an error, so that the others are still seen."""
    try:
        launch, compiled = _compile(job)
        amd = TARGETS[job[2]].backend == "hip"
        budget = launch.settings.vgprs if amd else launch.settings.registers
        return _title(job) | dict(budget=budget) | asdict(cost(compiled, job[2]))
    except Exception as error:  # whatever the compiler raises belongs into the report
        return _title(job) | dict(error=f"{type(error).__name__}: {error}")


def faults(row: dict) -> list[str]:
    """The rules that a binary breaks."""
    if "error" in row:
        return [row["error"]]
    kernel, variant, width = row["kernel"], row["variant"], row["width"]
    broken = {
        "it spills registers": row["spills"] > 0,
        "it exceeds its budget of registers": row["registers"] > row["budget"],
        "it uses atomics, whose order differs from run to run": row["atomics"] > 0,
    }
    if row["target"].startswith("sm_") and kernel in ROW_LOOPS:
        full = width in (128, 256)
        # Rows of 100 float32 are a multiple of 16 bytes, although not of 16 elements.
        wide = full or (width == 100 and variant == "fp32")
        broken["it loads rows with less than 16 bytes per lane"] = wide and row["load_bits"] != 128
        # One memory latency per tile. The assembler may break it to save registers: see Settings.registers.
        broken["it uses a row before all 8 loads of the tile are issued"] = (
            full and not _of_two_dtypes(variant) and row["in_flight"] != 8
        )
    return [rule for rule, is_broken in broken.items() if is_broken]


def _of_two_dtypes(variant: str) -> bool:
    """Whether x and history differ, so that the tile is two smaller ones."""
    sources = re.match(r"x (\w+), history (\w+)", variant)
    return sources is not None and sources[1] != sources[2] and "None" not in sources.groups()


def table(rows: list[dict]) -> str:
    """The rows for a person to read."""
    lines = [list(_COLUMNS.values())]
    for row in rows:
        if "error" in row:
            lines.append([row["kernel"], row["variant"], str(row["width"]), row["target"], row["error"].splitlines()[0]])
            continue
        shown = dict(row, occupancy=f"{row['occupancy']:.0%}", in_flight=row["in_flight"] or "-")
        lines.append([str(shown[name]) for name in _COLUMNS] + ["; ".join(faults(row))])
    widths = [max(len(line[i]) for line in lines if len(line) > i) for i in range(len(_COLUMNS))]
    pad = lambda i, cell: cell.ljust(widths[i]) if i < 4 else cell.rjust(widths[i] if i < len(widths) else 0)  # noqa: E731
    return "\n".join("  ".join(pad(i, cell) for i, cell in enumerate(line)).rstrip() for line in lines)


def show_loops(job: Job) -> str:
    """What the loops of an NVIDIA binary execute: instructions per kind, and per neighbour row in an inner loop."""
    launch, compiled = _compile(job)
    text = [", ".join(map(str, _title(job).values())) + f": {launch.settings.constants}"]
    for body in loops(sass(compiled)):
        counts = mix(body)
        rows = launch.settings.K if counts["row loads"] else None
        text.append(f"  loop of {len(body)} instructions" + (f" for {rows} rows" if rows else ""))
        for kind, count in counts.most_common():
            text.append(f"    {count:5d}" + (f"  {count / rows:6.2f} per row" if rows else "") + f"  {kind}")
    return "\n".join(text)


def dump(job: Job, folder: Path) -> None:
    """Write the stages of the compilation into ``folder``."""
    _, compiled = _compile(job)
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", "-".join(map(str, _title(job).values())))
    for stage in ("ttgir", "ptx", "amdgcn"):
        if stage in compiled.asm:
            (folder / f"{name}.{stage}").write_text(compiled.asm[stage])
    if "cubin" in compiled.asm:
        (folder / f"{name}.sass").write_text(sass(compiled))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile.report", description=__doc__.splitlines()[0])
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", default=[], help="kernels, such as spmm or spmm_hub_sum (default: all)")
    parser.add_argument("--width", nargs="+", type=int, default=[], help="widths (default: all)")
    parser.add_argument("--variant", default="", help="only variants that this regular expression finds")
    parser.add_argument("--quick", action="store_true", help="of these, only those that the tests compile")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--loops", action="store_true", help="print the instructions of the loops instead (NVIDIA)")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write PTX, SASS and so on into DIR instead")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        # Triton decides between compiling and interpreting when a kernel is defined: unsetting it here is too late.
        parser.error("Triton cannot compile kernels while it interprets them: unset TRITON_INTERPRET")
    work = jobs(options.target, options.kernel, options.width, options.variant)
    work = quick(work) if options.quick else work
    if not work:
        parser.error("no kernel fits --kernel, --width and --variant")
    if options.loops:
        print("\n".join(show_loops(job) for job in work if TARGETS[job[2]].backend == "cuda"))
        return 0
    if options.dump:
        for job in work:
            dump(job, options.dump)
        return 0

    rows = []
    # A launcher's torch ops would wait for ever for the threads of this process, which a forked one does not have.
    with ProcessPoolExecutor(options.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for row in pool.map(measure, work, chunksize=4):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {len(work)} compiled", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    bad = sum(bool(faults(row)) for row in rows)
    print(json.dumps(rows) if options.json else f"{table(rows)}\n{len(rows)} binaries, {bad} break a rule")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
