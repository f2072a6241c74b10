"""Train a graph neural network on a data set, with histories.

python -m rest_triton.train --dataset products                       # GCN with GAS, by the recipe products_gcn
python -m rest_triton.train --dataset products --method gas+rest     # and the histories refreshed
python -m rest_triton.train --resume runs/products-gcn-gas+rest-1    # go on with a run that was stopped
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.nn import Module

from .checkpoint import FREE
from .config import Config, add_flags, from_flags, recipes
from .malloc import keep_freed_memory

EXPECTED = (ValueError, OSError, ImportError, MemoryError, ArithmeticError)  # they say what to do: no traceback


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipe", help=f"settings to begin with: a YAML file, none, or one of {', '.join(recipes())}; default: the one "
        "for data set and model, if there is one",
    )  # fmt: skip
    parser.add_argument("--resume", type=Path, help="a run's folder, or one of its checkpoints: go on from there")
    parser.add_argument("--print-config", action="store_true", help="print all settings as YAML, and do nothing else")
    add_flags(parser)
    return parser


def resumed(path: Path, flags: dict[str, Any]) -> Config:
    """The configuration of a run that was stopped, with what may change: how long it is and what it shows."""
    folder = path.parent.parent if path.suffix == ".pt" else path
    file = folder / "config.yaml"
    if not file.is_file():
        raise ValueError(
            f"{folder} is not the folder of a run: it has no config.yaml; name one, such as runs/products-gcn-gas-1"
        )
    before = Config.of(str(file))
    for name, value in flags.items():
        if name == "recipe" or (name not in FREE and getattr(before, name) != value):
            raise ValueError(
                f"{name.replace('_', '-')} cannot be changed when a run goes on; it can change {', '.join(sorted(FREE))}. "
                "Start a new run instead"
            )
    return before.changed(**flags)


def main(arguments: Sequence[str] | None = None, model: type[Module] | None = None) -> None:
    """The command line. model: a class of one's own instead of ``--model``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    flags = vars(parser.parse_args(arguments))
    resume, print_config, recipe = flags.pop("resume"), flags.pop("print_config"), flags.pop("recipe")
    if recipe is not None:
        flags["recipe"] = recipe
    folders: list[Path] = []  # of the run, once it has begun
    try:
        config, recipe = from_flags(flags) if resume is None else (resumed(resume, flags), None)
        if print_config:
            print(config.to_yaml(), end="")
            return
        keep_freed_memory()
        from .session import train  # seconds, which a mistyped flag should not cost

        if recipe is not None:
            print(f"recipe {recipe}; --print-config shows it, flags change it")
        command = shlex.join(["python", "-m", "rest_triton.train", *arguments])
        train(config, model=model, resume=resume, command=command, began=folders.append)
    except KeyboardInterrupt:
        parser.exit(130, f"\ninterrupted{_advice(folders)}\n")
    except EXPECTED as error:
        parser.exit(1, f"{error}{_advice(folders) if isinstance(error, ArithmeticError) else ''}\n")


def _advice(folders: list[Path]) -> str:
    """The checkpoint that a run which stopped can go on from."""
    found = [path for folder in folders for path in sorted(folder.glob("**/checkpoints/epoch-*.pt"))]
    if not found:
        return "; no checkpoint had been written yet"
    return f"; the last good checkpoint is {found[-1]}: --resume {folders[0]} goes on from it"


if __name__ == "__main__":
    main()
