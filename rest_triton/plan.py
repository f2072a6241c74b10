"""Print the memory that a run takes, and settings that fit its budgets, without loading data.

python -m rest_triton.plan --dataset papers100m --model gcn --memory-budget 48GiB --device-budget 14GiB
"""

import argparse
import sys
from collections.abc import Sequence

from .config import FREE_MEMORY, add_flags, from_flags, parse_flags
from .data.sizes import sizes_of
from .training.advice import refusal, suggestions
from .training.plan import limits_here, plan
from .utils.errors import reported


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.plan", usage="%(prog)s --dataset NAME [flags]", allow_abbrev=False,
        description="Print the memory that a run of rest_triton.train with the same flags would take. Nothing is loaded. "
        "A given --device-budget plans for a GPU, also where there is none.",
    )  # fmt: skip
    parser.add_argument("--recipe", metavar="NAME", help="as for rest_triton.train")
    parser.add_argument(
        "--search", action="store_true", help="print the best settings that fit, also if the given ones do: at most five, "
        "by the bytes that a step moves on the slowest link",
    )  # fmt: skip
    add_flags(parser)
    options = parse_flags(parser, sys.argv[1:] if arguments is None else arguments)
    search = options.pop("search")
    with reported():
        settings, _ = from_flags(options)
        if settings.device == "auto" and settings.device_budget != FREE_MEMORY:
            settings = settings.changed(device="cuda")
        estimate = plan(sizes_of(settings.dataset, settings.root), settings, limits_here(settings, elsewhere=True))
    print(estimate)
    found = suggestions(estimate) if search or estimate.too_large else []
    if found:
        print("\nsettings that fit, by bytes that a step moves for each row of a batch, on the disk before other links:")
        for number, one in enumerate(found, 1):
            print(f"  {number}  {one}")
    if estimate.too_large:
        print(f"\n{refusal(estimate, found)}")


if __name__ == "__main__":
    main()
