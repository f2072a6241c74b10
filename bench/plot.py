"""Draw what a session of bench/ measured.

    python -m bench.plot [RESULTS.json] [--out docs/figures]

    ops.png             each op on each case: the fastest alternative's time, relative to ours
    alternatives.png    each op: every alternative
    roofline.png        bandwidth of ours, as a share of what the machine reaches
    epochs.png          whole epochs, and what they are spent on
    frequency.png       what refreshing more often costs
    growth.png          how time and memory grow

as far as there are records for them; beside them the records, as results.json and results.csv, so that each picture has its
numbers.
"""

import argparse
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from rest_triton.training.checkpoint import write_whole

from .bars import alternatives, of_ops, of_roofline, ops, roofline
from .curves import frequency, growth, of_frequency, of_growth
from .epochs import epochs, of_epochs
from .loading import is_scale, load
from .results import LATEST, Record, write

OUT = Path(__file__).parents[1] / "docs" / "figures"
PICTURES: dict[str, Callable[[Sequence[Record], Mapping[str, Any]], Figure | None]] = {
    "ops.png": ops, "alternatives.png": alternatives, "roofline.png": roofline, "epochs.png": epochs,
    "frequency.png": frequency, "growth.png": growth,
}  # fmt: skip


def png(figure: Figure) -> bytes:
    """With a palette, which takes a third of the bytes: pictures are kept by git, one after the other."""
    drawn, kept = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(kept, "PNG", optimize=True)
    return kept.getvalue()


def without_picture(records: Sequence[Record]) -> str:
    """Which records no picture shows, as a line; empty if each is in one."""
    selections = (of_ops, of_roofline, of_epochs, of_frequency, of_growth)
    shown = {record for selection in selections for record in selection(records)}
    # What the machine can do at best is in the roofline, as the ceiling of others.
    left = [record for record in records if record not in shown and not is_scale(record)]
    kinds = dict.fromkeys(f"{record.bench} ({record.mode})" for record in left)
    return f"{len(left)} records are in no picture: {', '.join(kinds)}" if left else ""


def draw(out: Path, machine: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    """All pictures, and the records beside them. Returns what was drawn and what was not, as lines."""
    said = []
    for name, picture in PICTURES.items():
        figure = picture(records, machine)
        if figure is not None:
            write_whole(out / name, png(figure))
            said.append(f"{out / name}")
        else:
            old = "; the one that is there is of another session" if (out / name).exists() else ""
            said.append(f"{name}: no records for it{old}")
    with TemporaryDirectory() as folder:
        for path in write(Path(folder) / "results", dict(machine), list(records)):
            write_whole(out / path.name, path.read_bytes())
            said.append(f"{out / path.name}")
    left = without_picture(records)
    return [*said, left] if left else said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description="Draw what a session of bench/ measured")
    parser.add_argument("results", metavar="RESULTS.json", type=Path, nargs="?", default=LATEST, help="default: %(default)s")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=OUT, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        machine, records = load(options.results)
    except (ValueError, OSError) as error:
        # Expected ones say what to do; a traceback would hide it.
        parser.exit(2, f"{error}\n")
    try:
        said = draw(options.out, machine, records)
    except OSError as error:
        parser.exit(2, f"{options.out} cannot be written ({error}); name another folder with --out\n")
    print(*said, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
