"""What the compiled kernels cost, without a GPU at hand.

    python -m rest_triton.kernels.report                          every kernel, for sm_80, sm_90, sm_100 and gfx942
    python -m rest_triton.kernels.report --kernel spmm --width 128 --target sm_90
    python -m rest_triton.kernels.report --kernel spmm --width 128 --target sm_90 --variant fp32 --loops
    python -m rest_triton.kernels.report --kernel activate --dump out/                 PTX, SASS and TTGIR as files

A row is over budget when it spills, or needs more registers than its settings allow; then the exit status
is 1.
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

if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
    # Triton decides between compiling and interpreting when a kernel is defined, so it is too late for
    # unsetting it.
    sys.exit("The report compiles kernels, which Triton cannot do while it interprets them: unset TRITON_INTERPRET.")

from triton.compiler import CompiledKernel

from .gpu.binary import TARGETS, Launch, compile_launch, cost, loops, mix, sass
from .gpu.cases import cases

_COLUMNS = {
    "kernel": "kernel", "variant": "variant", "width": "width", "target": "target", "registers": "regs",
    "budget": "budget", "spills": "spills", "shared": "shared", "occupancy": "occupancy", "binary": "binary",
    "load_bits": "load bits", "in_flight": "in flight",
}  # fmt: skip


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


def over_budget(row: dict) -> bool:
    return "error" in row or row["spills"] > 0 or row["registers"] > row["budget"]


def table(rows: list[dict]) -> str:
    """The rows for a person to read."""
    lines = [list(_COLUMNS.values())]
    for row in rows:
        if "error" in row:
            lines.append([row["kernel"], row["variant"], str(row["width"]), row["target"], row["error"].splitlines()[0]])
            continue
        shown = dict(row, occupancy=f"{row['occupancy']:.0%}", in_flight=row["in_flight"] or "-")
        lines.append([str(shown[name]) for name in _COLUMNS] + ["OVER BUDGET"] * over_budget(row))
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
    """Writes the stages of the compilation into ``folder``."""
    _, compiled = _compile(job)
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", "-".join(map(str, _title(job).values())))
    for stage in ("ttgir", "ptx", "amdgcn"):
        if stage in compiled.asm:
            (folder / f"{name}.{stage}").write_text(compiled.asm[stage])
    if "cubin" in compiled.asm:
        (folder / f"{name}.sass").write_text(sass(compiled))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rest_triton.kernels.report", description=__doc__.splitlines()[0])
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", default=[], help="kernels, such as spmm or spmm_hub_sum (default: all)")
    parser.add_argument("--width", nargs="+", type=int, default=[], help="widths (default: all)")
    parser.add_argument("--variant", default="", help="only variants that this regular expression finds")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--loops", action="store_true", help="print the instructions of the loops instead (NVIDIA)")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write PTX, SASS and so on into DIR instead")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    work = jobs(options.target, options.kernel, options.width, options.variant)
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
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        for row in pool.map(measure, work, chunksize=4):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {len(work)} compiled", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    over = sum(map(over_budget, rows))
    print(json.dumps(rows) if options.json else f"{table(rows)}\n{len(rows)} binaries, {over} over budget")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
