"""Run a study: a set of training runs that vary in something, with a table and a picture of the results.

python -m rest_triton.lab accuracy --dataset products                   # GAS, REST, REST-IS, full batch
python -m rest_triton.lab regimes --dataset graph.npz --quick --plan    # print the runs of the study
"""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config import Config, add_flags, parse_flags
from ..data.clusters import load_graph
from ..data.sizes import sizes_of
from ..training.logger import InUse
from ..training.trainer import PROCESSOR_TIME
from ..utils.errors import UserError, did_you_mean, is_users
from ..utils.malloc import keep_freed_memory
from ..utils.progress import notice, progress
from . import results
from .runner import diverged, execute, finished
from .studies import STUDIES
from .study import Base, Run, Study, base_for, planned

OWN = ("study", "quick", "seeds", "only", "out", "plan", "processor_time")


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {study.name:<14} {study.about}" for study in STUDIES.values())
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.lab", usage="%(prog)s STUDY --dataset NAME [flags]",
        description=f"{__doc__}\nstudies:\n{listed}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("study", metavar="STUDY", help="one of the above")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, epochs and points on an axis")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each case, from --seed on")
    parser.add_argument("--only", metavar="REGEX", help="only runs with a match in their names")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of the study (default: lab/<data set>-<study>)")
    parser.add_argument("--plan", action="store_true", help="print the runs and how many are left, and stop")
    parser.add_argument(
        "--processor-time", action="store_true", help="seconds are processor time, which other processes do not change"
    )
    parser.add_argument("--recipe", metavar="NAME", help="settings to begin with, as for rest_triton.train (default: none)")
    add_flags(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    flags = {name: value for name, value in parse_flags(parser, arguments).items() if value is not None}
    own = {name: flags.pop(name, None) for name in OWN}
    try:
        if own["study"] not in STUDIES:
            raise UserError(f"{own['study']!r} is not a study: {did_you_mean(own['study'], STUDIES)}")
        if "dataset" not in flags:
            raise UserError("dataset is missing; name one with --dataset, such as --dataset products")
        study = STUDIES[own["study"]]
        nodes = sizes_of(flags["dataset"], flags.get("root", "data")).nodes
        base = base_for(study, flags, quick=own["quick"], seeds=own["seeds"], nodes=nodes)
        if study.counts_training:
            base = _counted(base)
        out = own["out"] or _folder(flags["dataset"], study.name)
        runs = planned(study, base, out)
        chosen = _chosen(runs, own["only"])
        unfinished = [run for run in runs if not finished(run, study)]
        left = [run for run in chosen if run in unfinished]
        print(_plan(study, base.config, chosen, left), flush=True)
        if not own["plan"]:
            keep_freed_memory()
            if own["processor_time"]:
                os.environ[PROCESSOR_TIME] = "1"  # also for runs in processes of their own
            _study(study, runs, left, out, f"python -m rest_triton.lab {shlex.join(arguments)}")
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; repeat the command to go on\n")
    except Exception as error:
        if not is_users(error):
            raise
        parser.exit(1, f"{error}\n")


def _counted(base: Base) -> Base:
    """The base with the number of nodes, and of training nodes: 0 without a mask. A data set is prepared for that."""
    graph = load_graph(base.config)
    return replace(base, training=0 if graph.train_mask is None else int(graph.train_mask.sum()), nodes=graph.num_nodes)


def _folder(dataset: str, study: str) -> Path:
    name = Path(dataset).stem if dataset.endswith(".npz") else dataset
    return Path("lab") / re.sub(r"[^A-Za-z0-9.@=_+-]+", "-", f"{name}-{study}")


def _chosen(runs: list[Run], only: str | None) -> list[Run]:
    try:
        chosen = [run for run in runs if re.search(only or "", run.name)]
    except re.error as error:
        raise UserError(f"--only {only!r} is not a regular expression: {error}") from None
    if not chosen:
        raise UserError(f"--only {only!r} matches none of the {len(runs)} runs, such as {runs[0].name}; --plan lists them")
    return chosen


def _plan(study: Study, base: Config, chosen: list[Run], left: list[Run]) -> str:
    """The study's cases, base settings and number of runs, as text."""
    lines = [["case", "epochs", "runs", "left"]]
    for run in {run.case: run for run in chosen}.values():
        counts = (sum(other.case == run.case for other in runs) for runs in (chosen, left))
        lines += [[run.case, str(run.config.epochs), *map(str, counts)]]
    wide = max(len(line[0]) for line in lines)
    text = "\n".join(f"  {name:<{wide}}" + "".join(f"{value:>8}" for value in rest) for name, *rest in lines)
    settings = ("model", "num_layers", "hidden_channels", "batch_norm", "dropout", "lr", "batch_size", "num_parts", "epochs")
    shown = ", ".join(f"{name} {getattr(base, name)}" for name in settings)
    return f"{study.name}: {study.about}\nbase: {shown}\n{text}\n{len(chosen)} runs, {len(chosen) - len(left)} finished"


def _study(study: Study, runs: list[Run], left: list[Run], out: Path, command: str) -> None:
    """Do one run after the other, and write the results of all ended runs after each."""
    print(f"results in {out}", flush=True)
    begin = time.perf_counter()
    for number, run in enumerate(left, 1):
        try:
            with progress(f"{study.name}, run {number} of {len(left)}: {run.name}"):
                execute(study, run, command)
        except InUse:
            notice(f"{run.name} is skipped: another process does it")
            continue
        results.write(results.read(study, runs), out, command)
        minutes = (time.perf_counter() - begin) / 60
        state = "diverged" if diverged(run) else "finished"
        more = minutes / number * (len(left) - number)
        print(f"[{number}/{len(left)}] {run.name}: {state}; {minutes:.1f} min so far, about {more:.1f} left", flush=True)
    table = results.write(results.read(study, runs), out, command)
    print(f"\n{table}\n{out / 'README.md'}, {out / 'results.csv'}", flush=True)


if __name__ == "__main__":
    main()
