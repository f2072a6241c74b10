"""What the programs of this folder share: their input, and rounds on request.

Each is started as ``PYTHON PROGRAM FOLDER VARIANT`` by :mod:`bench.peer`, in an environment without rest_triton. It reads
the arrays of the folder and runs a round to warm up. Then it runs a round for each line of its input, and prints what the
round counted.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

Counts = dict[str, int]
Round = Callable[[], Counts]


def load(folder: Path) -> SimpleNamespace:
    """``options.json`` and every array of a folder, as attributes."""
    arrays = {path.stem: torch.from_numpy(np.load(path)) for path in folder.glob("*.npy")}
    return SimpleNamespace(**arrays, **json.loads((folder / "options.json").read_text()))


def serve(variants: Mapping[str, Callable[[SimpleNamespace], Round]]) -> None:
    """Run rounds of the variant that the command line names."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    given = load(Path(sys.argv[1]))
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    run = variants[sys.argv[2]](given)
    print(json.dumps(run()), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), file=answers, flush=True)
