"""METIS against KaMinPar on one graph.

    python -m bench.partitioners --dataset products --num-parts 40 --batch-size 5 [--root data] [--seeds 3]

Each divides the graph in its child process, as training does, and nothing is taken from the cache. The table has a line for
each partitioner and seed. Memory is the largest resident set of the child. Halo rows are those of batches of --batch-size
clusters, for each row of a batch.
"""

import argparse
import time
from collections.abc import Sequence

import torch

from rest_triton.data.child import PartitionerFailedError
from rest_triton.data.datasets import load
from rest_triton.data.graph import Graph
from rest_triton.data.partition import arrange
from rest_triton.data.partitioners import CHILDREN
from rest_triton.ops import Adjacency
from rest_triton.sampling.halo_rows import halo_per_row
from rest_triton.utils.errors import UserError, reported
from rest_triton.utils.machine import available_memory, processor, readable

HEADINGS = ("partitioner", "seed", "cut", "balance", "halo rows per row", "seconds", "memory")


def measured(graph: Graph, name: str, num_parts: int, seed: int, batch_size: int) -> tuple[str, ...]:
    """The cells of a line."""
    program = CHILDREN[name]
    symmetric = graph.symmetrise()
    why = program.why_not(graph.num_nodes, symmetric.num_edges, available_memory())
    if why is not None:
        return program.TITLE, str(seed), why
    begin = time.perf_counter()
    try:
        found = program.run(symmetric.rowptr.numpy(), symmetric.col.numpy(), num_parts, seed)
    except PartitionerFailedError as error:
        return program.TITLE, str(seed), str(error)
    seconds = time.perf_counter() - begin
    made = arrange(graph, torch.from_numpy(found.cluster), num_parts, name)
    permuted = made.apply(graph)
    around = halo_per_row(Adjacency(permuted.rowptr, permuted.col), made.ptr, batch_size)
    shown = f"{100 * made.cut:.1f} %", f"{made.balance:.3f}", f"{around:.2f}", f"{seconds:.1f}", readable(found.memory)
    return program.TITLE, str(seed), *shown


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.partitioners", allow_abbrev=False)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--root", default="data")
    parser.add_argument("--num-parts", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=5, help="clusters in a batch, for its halo (default: 5)")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    with reported():
        graph = load(options.dataset, options.root)
        graph = Graph(graph.rowptr, graph.col, directed=graph.directed, name=graph.name, _checked=True)
        if not 1 <= options.batch_size <= options.num_parts <= graph.num_nodes:
            raise UserError(
                f"batch-size is {options.batch_size} and num-parts {options.num_parts}; the graph has {graph.num_nodes:,} "
                "nodes: give --batch-size up to --num-parts, and that up to the nodes"
            )
        print(f"{graph}; {options.num_parts} clusters, {options.batch_size} in a batch; {processor()}\n")
        print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
        for seed in range(options.seeds):
            for name in CHILDREN:
                cells = measured(graph, name, options.num_parts, seed, options.batch_size)
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
