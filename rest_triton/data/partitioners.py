"""Partitioners: their names, what auto takes, the memory they need, and how they are run."""

from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ..utils.errors import UserError, did_you_mean
from ..utils.machine import available_memory
from ..utils.progress import Progress, notice
from . import kaminpar, metis
from .child import PartitionerFailedError
from .graph import Graph

PARTITIONERS = ("auto", "kaminpar", "metis", "random")
AUTO = ("kaminpar", "metis")  # what auto takes: the first of these that is installed, has the memory and finishes
CHILDREN: dict[str, ModuleType] = {"kaminpar": kaminpar, "metis": metis}
REMOVED = "stream"  # a partitioner of version 0.1; its clusters are still read


def choices_of(method: str) -> tuple[str, ...]:
    """The partitioners that ``method`` may run, in this order."""
    return AUTO if method == "auto" else (method,)


def refuse_partitioner(name: str) -> None:
    """UserError if there is no partitioner of this name."""
    if name == REMOVED:
        raise UserError(f"partition is {name!r}, which is gone; give --partition kaminpar")
    if name not in PARTITIONERS:
        raise UserError(f"partition is {name!r}: {did_you_mean(name, PARTITIONERS)}")


def peak_bytes(method: str, nodes: int, edges: int) -> tuple[str, int]:
    """(the partitioner that takes the least memory of those that ``method`` may run, its peak), ("", 0) if none runs.

    For an undirected graph. ``edges`` counts both directions.
    """
    installed = [CHILDREN[choice] for choice in choices_of(method) if choice in CHILDREN and CHILDREN[choice].installed()]
    peaks = [(program.TITLE, int(program.peak_bytes(nodes, edges))) for program in installed]
    return min(peaks, key=lambda peak: peak[1], default=("", 0))


def divide(
    graph: Graph, num_parts: int, choices: tuple[str, ...], seed: int, folder: Path | None, shown: Progress
) -> tuple[Tensor, str, str | None]:
    """The cluster of each node, int32[N]; the first of ``choices`` that found it; why those before it did not."""
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int32), choices[0], None
    if num_parts == graph.num_nodes:
        return torch.arange(num_parts, dtype=torch.int32), choices[0], None
    if choices == ("random",):
        return _random(graph.num_nodes, num_parts, seed), "random", None
    shown.say("symmetrising")
    graph = graph.symmetrise()
    failed: list[str] = []
    for choice in choices:
        program = CHILDREN[choice]
        shown.say(program.TITLE)
        why = program.why_not(graph.num_nodes, graph.num_edges, available_memory())
        if why is None:
            try:
                found = program.run(graph.rowptr.numpy(), graph.col.numpy(), num_parts, seed, folder)
                return torch.from_numpy(found.cluster), choice, "; ".join(failed) or None
            except PartitionerFailedError as error:
                why = str(error)
        failed.append(f"{program.TITLE} cannot divide {graph.name}: {why}")
        if choice != choices[-1]:
            notice(f"{failed[-1]}. {CHILDREN[choices[len(failed)]].TITLE} is tried instead")
    others = [f"--partition {name}" for name in (*CHILDREN, "random") if name not in choices]
    raise UserError(f"{'; '.join(failed)}; mend that, or give {' or '.join(others)}")


def _random(nodes: int, num_parts: int, seed: int) -> Tensor:
    shuffled = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    return (shuffled % num_parts).to(torch.int32)
