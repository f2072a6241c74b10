"""The runs of a study. Finished runs are skipped, stopped runs are resumed from their last checkpoints."""

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
from typing import Any

from ..config import Config, flag
from ..training.checkpoint import Unusable
from ..training.diagnosis import NotFinite
from ..training.logger import InUse
from ..training.run import train
from ..utils.errors import UserError, is_users
from ..utils.files import write_whole
from ..utils.malloc import keep_freed_memory
from .study import Run, Study

DIVERGED = "diverged.txt"  # marks a run that had a loss that is not finite; it is not repeated
# Settings that do not change a run's results.
ELSEWHERE = {"root", "run_dir", "device", "profile", "history", "features", "memory_budget", "device_budget"}
IN_USE = 75  # the exit code for a run that another process is doing
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def finished(run: Run, study: Study) -> bool:
    """Whether a run is finished. Raises UserError if its folder holds a run with other settings."""
    file = run.folder / "config.yaml"
    if not file.is_file():
        return False
    way_out = "name another folder with --out, or remove it"
    try:
        stored, current = asdict(Config.of(str(file))), asdict(run.config)
    except ValueError as error:
        raise UserError(f"{run.folder} holds a run of another version: {error}; {way_out}") from None
    differs = [
        f"{flag(name)} {stored[name]!r} instead of {value!r}"
        for name, value in current.items()
        if name not in ELSEWHERE and stored[name] != value
    ]
    if differs:
        raise UserError(f"{run.folder} was begun with {', '.join(differs)}; {way_out}")
    return ended(run, study)


def ended(run: Run, study: Study) -> bool:
    """Whether a run is finished, by the files in its folder alone."""
    return diverged(run) or (bool(summary(run)) and _measured(run, study))


def diverged(run: Run) -> bool:
    return (run.folder / DIVERGED).exists()


def _measured(run: Run, study: Study) -> bool:
    return not study.leaves or (run.folder / study.leaves).exists()


def summary(run: Run) -> dict[str, Any]:
    """The content of summary.json, empty if the run has not ended."""
    try:
        content = json.loads((run.folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if content.get("finished") else {}


def execute(study: Study, run: Run, command: str) -> None:
    """Do or resume a run. Its output goes to log.txt in its folder.

    Raises InUse if another process is doing it.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.folder / "log.txt", "a") as log, redirect_stdout(log):
        if not summary(run) and study.apart:
            _train_apart(run, command, log)
        elif not summary(run):
            _train(run.config, command)
        if study.after is not None and not diverged(run) and not _measured(run, study):
            study.after(run)


def _train(config: Config, command: str) -> None:
    folder = Path(config.run_dir)
    try:
        train(config, resume=folder if (folder / "config.yaml").exists() else None, command=command)
    except NotFinite as error:
        write_whole(folder / DIVERGED, f"{error}\n".encode())
    except Unusable as error:
        raise UserError(f"{error}; or remove {folder} to start the run again") from None


def _train_apart(run: Run, command: str, log: Any) -> None:
    """Train in a separate process."""
    program = [sys.executable, "-m", "rest_triton.lab.runner", str(os.getpid()), command]
    code = subprocess.run(program, input=json.dumps(asdict(run.config)), text=True, stdout=log).returncode
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code == IN_USE:
        raise InUse(f"{run.folder} is being written by another process")
    if code:
        raise UserError(f"the run in {run.folder} ended with exit code {code}; its message is above")


def main(arguments: Sequence[str]) -> None:
    """The process of one run. It reads the configuration from standard input, and ends with its parent."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != int(arguments[0]):
            sys.exit(1)
    keep_freed_memory()
    try:
        _train(Config.from_mapping(json.load(sys.stdin), "the run"), arguments[1])
    except KeyboardInterrupt:
        sys.exit(130)
    except InUse:
        sys.exit(IN_USE)
    except Exception as error:
        if not is_users(error):
            raise
        sys.exit(f"{error}")


if __name__ == "__main__":
    main(sys.argv[1:])
