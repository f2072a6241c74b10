"""Train a graph neural network on a data set, with histories.

python -m rest_triton.train --dataset products                       # GCN with GAS, by the recipe products_gcn
python -m rest_triton.train --dataset products --method gas+rest     # refresh the histories, too
python -m rest_triton.train --resume runs/products-gcn-gas+rest-1    # resume a run that was stopped
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import MODELS, Config, add_flags, flag, from_flags, parse_flags, read_recipe
from .utils.errors import UserError, did_you_mean, reported
from .utils.malloc import keep_freed_memory

# Torch takes seconds to import. Modules that need it are imported after the flags are checked.
if TYPE_CHECKING:
    from .nn import HistoryGNN


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, usage="%(prog)s --dataset NAME [flags]", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--recipe", metavar="NAME", help="settings to begin with: the path of a YAML file, a shipped recipe such as "
        "products_gcn, or none. Default: the shipped recipe for data set and model, if there is one",
    )  # fmt: skip
    parser.add_argument("--resume", metavar="FOLDER", type=Path, help="resume a run: its folder, or one of its checkpoints")
    parser.add_argument("--print-config", action="store_true", help="print all settings as YAML, and do nothing else")
    add_flags(parser)
    return parser


def _folder(run: Path) -> Path:
    """The folder of a run, given the folder or one of its checkpoints."""
    return run.parent.parent if run.suffix == ".pt" else run


def resumed(path: Path, flags: dict[str, Any]) -> Config:
    """The configuration of a stopped run with ``flags``. Only settings that do not change its results may differ."""
    folder = _folder(path)
    file = folder / "config.yaml"
    if not file.is_file():
        raise UserError(
            f"{folder} is not the folder of a run: it has no config.yaml; name one, such as runs/products-gcn-gas-1"
        )
    for name in ("recipe", "run_dir"):
        if name in flags:
            raise UserError(f"{flag(name)} is for new runs: a resumed run has its settings and its folder; leave it out")
    from .training.checkpoint import FREE

    before = Config.of(str(file))
    after = before.changed(**flags)
    for name in flags:
        old, new = getattr(before, name), getattr(after, name)
        if old != new and name not in FREE:
            raise UserError(
                f"{flag(name)} is {new}, but {folder} was begun with {old}; a resumed run can change only "
                f"{', '.join(flag(n) for n in sorted(FREE - {'run_dir'}))}: leave it out, or start a new run"
            )
    if (before.runs == 1) != (after.runs == 1):
        raise UserError(
            f"--runs is {after.runs}, but {folder} was begun with {before.runs}; one run lies in the folder itself, several "
            "in folders of their own: leave it out, or start a new run"
        )
    return after


def main(arguments: Sequence[str] | None = None, model: "type[HistoryGNN] | None" = None) -> None:
    """The command line. model: a custom class instead of ``--model``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    program = "python -m rest_triton.train" if model is None else f"python {sys.argv[0]}"
    parser = _parser(program)
    flags = {name: value for name, value in parse_flags(parser, arguments).items() if value is not None}
    resume, print_config = flags.pop("resume", None), flags.pop("print_config")
    if model is not None:
        flags["model"] = model.__name__.lower()  # for names and reports; no recipe has it
    folders = [] if resume is None else [_folder(resume)]  # the run's folder, once it exists
    try:
        with reported():
            config, recipe = from_flags(flags) if resume is None else (resumed(resume, flags), None)
            if model is None and config.model not in MODELS:
                way_out = "" if resume is None else "; resume a custom model with the program that trained it"
                raise UserError(f"model is {config.model!r}: {did_you_mean(config.model, MODELS)}{way_out}")
            if print_config:
                print(config.to_yaml(), end="")
                return
            keep_freed_memory()
            from .training.run import train

            for line in config.idle(flags) if resume is None else ():
                print(line)
            if recipe is not None:
                own = f" for {config.base}" if read_recipe(recipe, config.method) != read_recipe(recipe) else ""
                print(f"recipe {recipe}{own}; --print-config shows it, flags change it")
            train(config, model=model, resume=resume, command=f"{program} {shlex.join(arguments)}", began=folders.append)
    except KeyboardInterrupt:
        parser.exit(130, f"\ninterrupted; {_advice(folders)}\n")
    except ArithmeticError as error:
        from .training.diagnosis import NotFinite

        if not isinstance(error, NotFinite):
            raise
        parser.exit(1, f"{error}; a smaller --lr or --clip 1 may help; {_advice(folders)}\n")


def _advice(folders: list[Path]) -> str:
    """Advice on how to resume a run that stopped."""
    checkpoints = [path for folder in folders for path in folder.glob("**/checkpoints/epoch-*.pt")]
    if not checkpoints:
        return "no checkpoint had been written yet"
    last = max(checkpoints, key=lambda path: path.stat().st_mtime_ns)
    return f"the last checkpoint is {last}: go on from it with --resume {shlex.quote(str(folders[0]))}"


if __name__ == "__main__":
    main()
