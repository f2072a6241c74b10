"""Programs in another environment, for libraries that do not run beside this package's torch. They take turns with ours."""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PROGRAMS = Path(__file__).parent / "peers"
# What keep_freed_memory sets in this process, for glibc in another one.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(64 << 20)}


def hand_over(folder: Path, arrays: Mapping[str, Tensor], options: Mapping[str, Any]) -> Path:
    """Write what the programs read. Returns the folder."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.numpy())
    (folder / "options.json").write_text(json.dumps(dict(options, threads=torch.get_num_threads())))
    return folder


class Peer:
    """A program of ``bench/peers`` that runs a round at each call. ``counts`` holds what its last round counted.

    RuntimeError, with the last line of what it printed, if it fails.

    Args:
        python: of its environment. folder: by :func:`hand_over`. program, variant: which rounds it runs.
        keep_freed_memory: set its malloc as the commands of rest_triton set theirs.
        passive: its threads sleep while they wait. On a busy machine, two pools that wait in loops hardly advance.
    """

    def __init__(
        self,
        python: str,
        folder: Path,
        program: str,
        variant: str,
        *,
        keep_freed_memory: bool = False,
        passive: bool = False,
    ) -> None:
        self.name, self.log = f"{program}, {variant}", folder / f"{program}, {variant}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= dict(OMP_NUM_THREADS=str(torch.get_num_threads()))
        environment |= KEEP_FREED_MEMORY if keep_freed_memory else {}
        environment |= dict(OMP_WAIT_POLICY="PASSIVE") if passive else {}
        command = [python, str(PROGRAMS / f"{program}.py"), str(folder), variant]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self.counts: dict[str, int] = {}
        try:
            self._answer()
        except RuntimeError:
            self.close()
            raise

    def __call__(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer is missing, too
            print(file=self.process.stdin, flush=True)
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text().strip().splitlines() or ["it printed nothing"]
            raise RuntimeError(f"{self.name}: {said[-1]}")
        self.counts = json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()  # the end of its input ends the program
        self.process.stdout.close()
        self.process.wait()
