"""Tables in files, for tests: what they hold at a step, and processes that write them and are killed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rest_triton.history.disk import DiskTables

NODES, WIDTHS = 50, (3, 5)
FILES = ["rows_1.bin", "rows_2.bin", "stamp_1.bin", "stamp_2.bin"]


def tables(folder: Path, **changes: Any) -> DiskTables:
    arguments: dict[str, Any] = dict(num_nodes=NODES, widths=WIDTHS, dtype=torch.float32, fingerprint="cafe") | changes
    return DiskTables(folder, **arguments)


def write(to: DiskTables, step: int) -> None:
    to.opened()
    for rows, stamp in zip(to.rows, to.stamps, strict=True):
        rows.fill_(step)
        stamp.fill_(step)


def holds(found: DiskTables, step: int) -> bool:
    return all(bool((t == step).all()) for t in (*found.rows, *found.stamps))


def committed(folder: Path, step: int = 5) -> Path:
    made = tables(folder)
    write(made, step)
    made.commit(step)
    made.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


class Child:
    """A process that does ``work`` and is killed. It may call ``say`` to let :meth:`wait` return."""

    def __init__(self, work: Callable[[Callable[[bytes], Any]], None]) -> None:
        self.out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:  # nothing of pytest's may run here, whatever happens
            try:
                torch.set_num_threads(1)  # the parent's other threads are not there
                work(lambda what: os.write(into, what))
            except BaseException as error:
                os.write(into, str(error).encode())
            finally:
                os._exit(1)
        os.close(into)

    def wait(self) -> bytes:
        return os.read(self.out, 1000)

    def end(self, kill: bool = True) -> int:
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.out)
        return status


def edit(folder: Path, **changes: Any) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | changes))
