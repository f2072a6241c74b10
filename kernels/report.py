"""What the compiled kernels cost, without a GPU at hand.

    python -m rest_triton.kernels.report                          every kernel, for sm_80, sm_90, sm_100 and gfx942
    python -m rest_triton.kernels.report --kernel spmm --width 128 --target sm_90
    python -m rest_triton.kernels.report --kernel spmm --width 128 --target sm_90 --variant fp32 --loops
    python -m rest_triton.kernels.report --kernel activate --dump out/                 PTX, SASS and TTGIR as files

A row is over budget when it spills, or needs more registers than its settings allow; then the exit status is 1.
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
    # Triton decides between compiling and interpreting when a kernel is defined, so it is too late for unsetting it.
    sys.exit("The report compiles kernels, which Triton cannot do while it interprets them: unset TRITON_INTERPRET.")

from .gpu.binary import TARGETS, Launch, compile_launch, cost, loops, mix, sass, signature
from .gpu.cases import cases

_COLUMNS = {
    "kernel": "kernel", "variant": "variant", "width": "width", "target": "target", "registers": "regs",
    "budget": "budget", "spills": "spills", "shared": "shared", "occupancy": "occupancy", "binary": "binary",
    "load_bits": "load bits", "in_flight": "in flight",
}  # fmt: skip


def jobs(targets: Iterable[str], kernels: Iterable[str] = (), widths: Iterable[int] = (), variant: str = "") -> list:
    """(case number, launch number, target) of everything to compile, each binary once; empty filters take all."""
    kernels, widths, seen, found = set(kernels), set(widths), set(), []
    for target in targets:
        for i, case in enumerate(_CASES):
            if (widths and case.width not in widths) or not re.search(variant, case.variant):
                continue
            for j, launch in enumerate(case.launches(target)):
                key = (target, launch.name, str(signature(launch)))
                if key not in seen and (not kernels or launch.name in kernels):
                    seen.add(key)
                    found.append((i, j, target))
    return found


_CASES = list(cases())


def _compile(job: tuple[int, int, str]) -> tuple[dict, Launch, object]:
    i, j, target = job
    case, launch = _CASES[i], _CASES[i].launches(target)[j]
    amd = TARGETS[target].backend == "hip"
    row = dict(kernel=launch.name, variant=case.variant, width=case.width, target=target,
               budget=launch.settings.vgprs if amd else launch.settings.registers)  # fmt: skip
    compiled = compile_launch(launch, target)
    return row | asdict(cost(compiled, target)), launch, compiled


def measure(job: tuple[int, int, str]) -> dict:
    """The row of one job. A kernel that does not compile is a row with an error, so that the others are still seen."""
    try:
        return _compile(job)[0]
    except Exception as error:  # whatever the compiler raises belongs into the report
        i, j, target = job
        case = _CASES[i]
        return dict(kernel=case.launches(target)[j].name, variant=case.variant, width=case.width, target=target,
                    error=f"{type(error).__name__}: {error}")  # fmt: skip


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


def show_loops(job: tuple[int, int, str]) -> str:
    """What the loops of an NVIDIA binary execute: instructions per kind, and per neighbour row in an inner loop."""
    row, launch, compiled = _compile(job)
    settings, text = launch.settings, []
    text.append(f"{row['kernel']}, {row['variant']}, width {row['width']}, {row['target']}: {settings.constants}")
    for body in loops(sass(compiled)):
        counts = mix(body)
        rows = settings.K if settings.K and counts["row loads"] else None
        text.append(f"  loop of {len(body)} instructions" + (f", {rows} rows" if rows else ""))
        for kind, count in counts.most_common():
            text.append(f"    {count:5d}" + (f"  {count / rows:6.2f} per row" if rows else "") + f"  {kind}")
    return "\n".join(text)


def dump(job: tuple[int, int, str], folder: Path) -> None:
    """Writes every stage of the compilation into ``folder``."""
    row, _, compiled = _compile(job)
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", "-".join(str(row[key]) for key in ("kernel", "variant", "width", "target")))
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
