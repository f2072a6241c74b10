"""Doing a study's runs: those that are finished are not repeated, those that were begun go on."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from ..config import Config, flag
from ..training.checkpoint import Unusable, write_whole
from ..training.logger import InUse, RunDirectory
from .study import Planned, Study

DIVERGED = "diverged.txt"  # in the folder of a run whose loss was not finite: the same settings would end the same way
ELSEWHERE = {"root", "run_dir", "device", "profile"}  # where a run is and what it shows, not what it computes
IN_USE = 75  # the exit code of a process that found a run in the hands of another
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def finished(run: Planned, study: Study) -> bool:
    """Whether nothing is left to do. ValueError if its folder holds a run with other settings."""
    file = run.folder / "config.yaml"
    if not file.is_file():
        return False
    there, wanted = asdict(Config.of(str(file))), asdict(run.config)
    differs = [
        f"{flag(name)} {there[name]!r} instead of {value!r}"
        for name, value in wanted.items()
        if name not in ELSEWHERE and there[name] != value
    ]
    if differs:
        raise ValueError(
            f"{run.folder} was begun with {', '.join(differs)}; name another folder with --out, or remove this one"
        )
    if (run.folder / DIVERGED).exists():
        return True
    summary = RunDirectory(run.folder).summary()
    return bool(summary and summary.get("finished")) and (not study.leaves or (run.folder / study.leaves).exists())


def execute(study: Study, config: Config, folder: Path, command: str) -> None:
    """One run, from where it stands to its end; what it prints goes to ``log.txt`` in its folder. InUse if another process
    is at it."""
    from ..training.diagnosis import NotFinite
    from ..training.run import train

    folder.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder)
    summary, begun = directory.summary(), (folder / "config.yaml").exists()
    with open(folder / "log.txt", "a") as log, redirect_stdout(log):
        try:
            if not (summary and summary.get("finished")):
                train(config, resume=folder if begun else None, command=command)
            if study.after is not None:
                study.after(config, folder)
        except NotFinite as error:
            write_whole(folder / DIVERGED, f"{error}\n".encode())
        except Unusable as error:
            raise ValueError(f"{error}; or remove {folder}, and the run begins anew") from None


def execute_apart(study: Study, config: Config, folder: Path, command: str) -> None:
    """The same in a process of its own."""
    asked = json.dumps(dict(study=study.name, config=asdict(config), folder=str(folder), command=command))
    child = subprocess.run([sys.executable, "-m", "rest_triton.lab.runner", str(os.getpid())], input=asked, text=True)
    if child.returncode in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if child.returncode == IN_USE:
        raise InUse(f"{folder} is being written by another process")
    if child.returncode:
        raise ValueError(f"the run in {folder} ended with exit code {child.returncode}; what it said is above")


def main(arguments: Sequence[str]) -> None:
    """The process of one run: it is told on standard input what to do, and does not outlive the one that started it."""
    from ..train import EXPECTED
    from ..utils.malloc import keep_freed_memory
    from .studies import STUDIES

    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != int(arguments[0]):
            sys.exit(1)
    asked = json.load(sys.stdin)
    keep_freed_memory()
    try:
        config = Config.from_mapping(asked["config"], "the run")
        execute(STUDIES[asked["study"]], config, Path(asked["folder"]), asked["command"])
    except KeyboardInterrupt:
        sys.exit(130)
    except InUse:
        sys.exit(IN_USE)
    except EXPECTED as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main(sys.argv[1:])
