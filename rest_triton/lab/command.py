"""Study what stale histories cost: a set of training runs, and what came out of them as CSV, pictures and a paragraph.

python -m rest_triton.lab accuracy --dataset products                   # GAS, REST, REST-IS, full batch
python -m rest_triton.lab regimes --dataset graph.npz --quick --plan    # what it would run, and how long that takes
"""

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import add_flags, parse_flags
from ..data.sizes import sizes_of
from ..train import EXPECTED
from ..training.logger import InUse
from ..utils.errors import did_you_mean
from ..utils.malloc import keep_freed_memory
from ..utils.progress import notice, progress
from ..utils.text import duration, percent
from . import tables, words
from .files import replace_file
from .plan import Estimates, described
from .results import read
from .runner import DIVERGED, execute, execute_apart, finished
from .studies import STUDIES
from .study import Base, Planned, Study, base_for, planned

OWN = ("study", "quick", "seeds", "only", "out", "plan", "recipe")


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {study.name:<14} {study.question}" for study in STUDIES.values())
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.lab", usage="%(prog)s STUDY --dataset NAME [flags]",
        description=f"{__doc__}\nstudies:\n{listed}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("study", metavar="STUDY", help="one of the above")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, epochs and points on an axis")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each setting, from --seed on")
    parser.add_argument("--only", metavar="REGEX", help="only the runs whose names have a match")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="of the study, new or one to go on with (default: lab/<data set>-<study>)"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan with an estimate of time, and stop")
    parser.add_argument("--recipe", metavar="NAME", help="settings to begin with, as for rest_triton.train (default: none)")
    add_flags(parser)
    return parser


def _folder(dataset: str, study: str) -> Path:
    name = Path(dataset).stem if dataset.endswith(".npz") else dataset
    return Path("lab") / re.sub(r"[^A-Za-z0-9.@=_+-]+", "-", f"{name}-{study}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    flags = {name: value for name, value in parse_flags(parser, arguments).items() if value is not None}
    own = {name: flags.pop(name, None) for name in OWN[:-1]}
    try:
        if own["study"] not in STUDIES:
            raise ValueError(f"{own['study']!r} is not a study: {did_you_mean(own['study'], STUDIES)}")
        study = STUDIES[own["study"]]
        if "dataset" not in flags:
            raise ValueError("dataset is missing; name one with --dataset, such as --dataset products")
        nodes = sizes_of(flags["dataset"], flags.get("root", "data")).nodes
        base = base_for(study, flags, quick=own["quick"], seeds=own["seeds"], nodes=nodes)
        out = own["out"] or _folder(flags["dataset"], study.name)
        all_runs = planned(study, base, out)
        chosen = _chosen(all_runs, own["only"])
        keep_freed_memory()
        _study(study, base, all_runs, chosen, out, own["plan"], f"python -m rest_triton.lab {shlex.join(arguments)}")
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; the same command goes on where this one stopped\n")
    except EXPECTED as error:
        parser.exit(1, f"{error}\n")


def _chosen(runs: list[Planned], only: str | None) -> list[Planned]:
    if only is None:
        return runs
    try:
        chosen = [run for run in runs if re.search(only, run.name)]
    except re.error as error:
        raise ValueError(f"--only {only!r} is not a regular expression: {error}") from None
    if not chosen:
        raise ValueError(f"--only {only!r} matches none of the {len(runs)} runs, such as {runs[0].name}; --plan lists them")
    return chosen


def _study(
    study: Study, base: Base, all_runs: list[Planned], chosen: list[Planned], out: Path, plan: bool, command: str
) -> None:
    """The plan, then run after run; results are written anew after each, of all that have ended, chosen now or before."""
    left = {run.name for run in all_runs if not finished(run, study)}
    todo = [run for run in chosen if run.name in left]
    estimates = Estimates(out / "estimates.json")
    with progress("timing a few steps of") as shown:
        estimates.measure(todo, shown.say)
    print(described(study, base, chosen, todo, estimates), flush=True)
    if plan:
        return
    print(f"results in {out}", flush=True)
    expected = [estimates.seconds(run.config, apart=study.apart) or 0.0 for run in todo]
    took, pace = 0.0, 1.0
    for number, run in enumerate(todo):
        begin = time.perf_counter()
        try:
            with progress(f"{study.name}, run {number + 1} of {len(todo)}: {run.name}"):
                (execute_apart if study.apart else execute)(study, run.config, run.folder, command)
        except InUse:
            notice(f"{run.name} is being done by another process: it is left to it")
            continue
        took += time.perf_counter() - begin
        pace = took / max(1e-9, sum(expected[: number + 1]))
        more = pace * sum(expected[number + 1 :])
        write(study, base, all_runs, out)
        print(f"[{number + 1}/{len(todo)}] {_line(run)}" + (f"; about {duration(more)} left" if more else ""), flush=True)
    results = write(study, base, all_runs, out)
    print(f"\n{results}\n{out / 'results.md'}, {out / 'results.csv'}", flush=True)


def _line(run: Planned) -> str:
    from ..training.report import read_run

    if (run.folder / DIVERGED).exists():
        return f"{run.name}: {(run.folder / DIVERGED).read_text().strip()}"
    found = read_run(run.folder)
    best = "" if found.best is None else f"validation {percent(found.best[1])}, test {percent(found.best[2])}, "
    return f"{run.name}: {best}{duration(found.seconds)}"


def write(study: Study, base: Base, runs: Sequence[Planned], out: Path) -> str:
    """results.csv, curves.csv, the pictures and results.md, of all runs that have ended. Returns the text."""
    results = read(study, base, runs)
    text = words.write(results)
    tables.write_runs(out / "results.csv", results.outcomes)
    tables.write_epochs(out / "curves.csv", results.outcomes)
    pictures: dict[str, Any] = study.draw(results) if any(not o.diverged for o in results.outcomes) else {}
    for name, picture in pictures.items():
        replace_file(out / name, picture)
    shown = "".join(f"\n![{name.removesuffix('.png')}]({name})\n" for name in pictures)
    replace_file(out / "results.md", f"{text}{shown}".encode())
    return text
