"""Prepare a data set and divide it into clusters, without training.

    python -m rest_triton.prepare --dataset products --root data --num-parts 40

Training needs only the files below the root. They can be copied to a machine without the data set or a network.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from .config import parse_flags
from .data.datasets import DATASETS, load
from .data.graph import Graph
from .data.partition import partition
from .data.partitioners import PARTITIONERS, refuse_partitioner
from .utils.errors import reported
from .utils.machine import readable
from .utils.malloc import keep_freed_memory


def describe(graph: Graph) -> str:
    """A few lines of text about a graph."""
    degree = graph.degree
    lines = [str(graph)]
    if graph.num_nodes:
        mean, most, isolated = graph.num_edges / graph.num_nodes, int(degree.max()), int((degree == 0).sum())
        lines.append(f"  degree: mean {mean:.1f}, most {most:,}; {isolated:,} nodes without neighbours")
    masks = {name: getattr(graph, f"{name}_mask") for name in ("train", "val", "test")}
    shares = [f"{name} {int(mask.sum()):,}" for name, mask in masks.items() if mask is not None]
    if shares:
        lines.append(f"  nodes: {', '.join(shares)}")
    lines.append(f"  {readable(graph.nbytes)}; structure {graph.fingerprint}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.prepare", description="Prepare a data set and its clusters.", allow_abbrev=False
    )
    names = ", ".join(DATASETS)
    parser.add_argument("--dataset", required=True, help=f"{names}; synthetic:<shape>[@scale]; or the path of an .npz")
    parser.add_argument("--root", default="data", help="folder for downloads and prepared graphs (default: data)")
    parser.add_argument("--split", type=int, default=0, help="which split, of data sets that have several (default: 0)")
    parser.add_argument("--num-parts", type=int, help="also divide it into this number of clusters")
    names = ", ".join(PARTITIONERS)
    parser.add_argument("--partition", "--method", default="auto", help=f"how to divide it: {names} (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="of the division (default: 0)")
    options = argparse.Namespace(**parse_flags(parser, sys.argv[1:] if arguments is None else arguments))
    keep_freed_memory()
    try:
        with reported():
            _prepare(options)
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; what was finished is kept\n")


def _prepare(options: argparse.Namespace) -> None:
    refuse_partitioner(options.partition)
    begin = time.perf_counter()
    graph = load(options.dataset, options.root, split=options.split)
    print(describe(graph))
    print(f"  ready after {time.perf_counter() - begin:.1f} s")
    if options.num_parts is not None:
        begin = time.perf_counter()
        clusters = partition(graph, options.num_parts, method=options.partition, seed=options.seed, root=options.root)
        print(clusters.describe())
        print(f"  ready after {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
