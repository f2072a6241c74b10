"""Print the memory that a run takes, without loading data.

python -m rest_triton.plan --dataset papers100m --model gcn --history disk
"""

import argparse
import re
import sys
from collections.abc import Sequence

from .config import add_flags, from_flags, parse_flags
from .data.sizes import sizes_of
from .training.plan import limits_here, plan, refusal
from .utils.errors import reported


def bytes_of(text: str) -> int:
    """The bytes of a size such as ``40GiB``, ``40GB``, ``512MiB`` or ``1024``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it as 40GiB, 512MiB or a number of bytes")
    prefix, base = (match[2] or "")[:1], 1024 if "I" in (match[2] or "") else 1000
    return int(float(match[1]) * base ** " KMGT".index(prefix or " "))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.plan", usage="%(prog)s --dataset NAME [flags]", allow_abbrev=False,
        description="Print the memory that a run of rest_triton.train with the same flags would take. Nothing is loaded.",
    )  # fmt: skip
    parser.add_argument("--recipe", metavar="NAME", help="as for rest_triton.train")
    parser.add_argument("--gpu-memory", metavar="SIZE", type=bytes_of, help="such as 40GiB; default: the GPU's free memory")
    add_flags(parser)
    options = parse_flags(parser, sys.argv[1:] if arguments is None else arguments)
    gpu_memory = options.pop("gpu_memory")
    with reported():
        settings, _ = from_flags(options)
        limits = limits_here(settings) | ({} if gpu_memory is None else {"GPU": gpu_memory})
        estimate = plan(sizes_of(settings.dataset, settings.root), settings, limits)
    print(estimate)
    if estimate.too_large:
        print(f"\n{refusal(estimate)}")


if __name__ == "__main__":
    main()
