"""How much memory a run will take, before anything of it is loaded.

    python -m rest_triton.plan --dataset papers100m --model gcn --history disk

What is held for the whole run follows from shapes. What a step or an exact pass takes meanwhile is not a formula that could
fall behind the models: the engine itself runs once on tensors that have shapes but no memory, and what would be alive is
counted. Only the size of a batch's halo is a guess, for it depends on the edges.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from .config import Config, add_flags, flag, from_flags, parse_flags
from .data import metis as metis_worker
from .data.sizes import AS_PUBLISHED, Sizes, sizes_of
from .training.rehearsal import DTYPES, HEAP_HOLES, Tier, batch_rows, halo_rows, near, pinned_bytes, refreshed_rows, rehearse
from .utils.machine import available_memory, device_of, readable

When = Literal["held", "exact", "step", "prepare", "before"]
Limits = Mapping[Tier, int]

# Python, torch and compiled kernels, 500 MiB after a few steps on a tiny graph, and what BLAS keeps for itself on a large
# one: measured on two threads. tests/test_plan.py repeats it.
PROCESS = 530 << 20
CUDA_CONTEXT = 512 << 20  # assumed: differs with GPU and driver
LEAST_HIDDEN = 16


@dataclass(frozen=True)
class Item:
    """Memory that something takes. ``why``: what the number is made of. ``when``: for the whole run, only in an exact pass,
    in a step, or before the run."""

    name: str
    tier: Tier
    nbytes: int
    why: str
    when: When = "held"


HEADINGS: dict[When, str] = {
    "held": "for the whole run",
    "exact": "and in an exact pass over all nodes: the first fill, and evaluation",
    "step": "or while a batch is trained on",
    "prepare": "before all this, while nodes are put in the order of their clusters",
    "before": "not counted, a process of its own",
}


@dataclass(frozen=True)
class Plan:
    """What a run takes, and what there is. ``str()`` is a table for people."""

    sizes: Sizes
    settings: Config
    items: tuple[Item, ...]
    limits: Limits = field(default_factory=dict)

    def total(self, tier: Tier) -> int:
        """At the most: what is held and the larger one of pass and step, or what it takes to get there."""
        part = {when: sum(i.nbytes for i in self.items if i.tier == tier and i.when == when) for when in get_args(When)}
        return max(part["held"] + max(part["exact"], part["step"]), part["prepare"])

    @property
    def totals(self) -> dict[Tier, int]:
        return {tier: self.total(tier) for tier in get_args(Tier) if any(i.tier == tier for i in self.items)}

    @property
    def too_large(self) -> dict[Tier, int]:
        """What is needed of tiers that have less. A tier of unknown size has enough."""
        return {tier: need for tier, need in self.totals.items() if need > self.limits.get(tier, need)}

    def __str__(self) -> str:
        z, s = self.sizes, self.settings
        rows = batch_rows(s, z)
        tables, batches = "no tables", "all nodes in one batch"
        if s.base != "full":
            tables, batches = (
                f"{s.dtype} tables, {s.history}",
                (
                    f"batches of {s.batch_size} of {s.num_parts} clusters: {rows:,} nodes, with perhaps "
                    f"{halo_rows(z.nodes, z.edges, rows):,} around them (that depends on the edges)"
                ),
            )
        lines = [
            f"{z.name}: {z.nodes:,} nodes, {z.edges:,} edges ({'directed' if z.directed else 'undirected'}), "
            f"{z.features} features, {z.classes} classes" + (f" ({z.note})" if z.note else ""),
            f"{s.model}, {s.num_layers} layers of {s.hidden_channels}; {tables}; {s.method}; on {s.device}",
            batches,
        ]
        wide = max(len(item.name) for item in self.items)
        for when, heading in HEADINGS.items():
            items = [item for item in self.items if item.when == when and item.nbytes > 0]
            lines += ["", f"  {heading}"] if items else []
            lines += [f"    {i.name:{wide}}  {i.tier:4}  {readable(i.nbytes):>11}  {i.why}" for i in items]
        lines.append("")
        for tier, need in self.totals.items():
            have = self.limits.get(tier)
            verdict = "what there is is not known" if have is None else f"{readable(have):>11} available: " + (
                "fits" if need <= have else "does not fit"
            )  # fmt: skip
            lines.append(f"  {'at the most':{wide + 2}}  {tier:4}  {readable(need):>11}  {verdict}")
        return "\n".join(lines)


def plan(sizes: Sizes, settings: Config, limits: Limits | None = None) -> Plan:
    """What a run takes, item by item.

    Args:
        sizes: by :func:`sizes_of`. settings: of the run. limits: bytes there are, by tier, if they are known.

    Example::

        print(plan(sizes_of("products"), Config.of("products_gcn")))
    """
    for what in ("nodes", "features", "classes"):
        if getattr(sizes, what) < 1:
            raise ValueError(f"{sizes.name} has {getattr(sizes, what)} {what}; a model needs at least one")
    settings = _settled(settings)
    items = tuple(item for item in (*_held(sizes, settings), *_passing(sizes, settings)) if item.nbytes > 0)
    made = Plan(sizes, settings, items, {} if limits is None else limits)
    metis = metis_worker.peak_bytes(sizes.nodes, sizes.edges, metis_worker.index_dtype().itemsize)
    if settings.partition != "metis" or metis <= made.total("host"):
        return made
    return replace(made, items=(*items, Item("METIS", "host", metis, "at the most; streaming needs far less", "before")))


def _settled(settings: Config) -> Config:
    """With the device that ``auto`` is here; one that is named need not exist."""
    return settings.changed(device=device_of(settings.device, must_exist=False))


def _edge_bytes(z: Sizes) -> int:
    return 4 if z.nodes <= 2**31 else 8


def _csr(z: Sizes, edges: int) -> int:
    return 8 * (z.nodes + 1) + _edge_bytes(z) * edges


def _reversed(z: Sizes, s: Config) -> bool:
    """Whether there is a reverse of its own: also edges that are dropped need to know which is the mirror of which."""
    return z.directed or s.edge_dropout > 0.0


def _reverse(z: Sizes, s: Config) -> int:
    """Of the edges with self-loops: turned round, and each with the name of the original."""
    edges = z.edges + z.nodes
    return _csr(z, edges) + (4 if edges < 2**31 else 8) * edges if _reversed(z, s) else 0


def _features(z: Sizes) -> int:
    return z.nodes * z.features * z.feature_bytes


def _stored(z: Sizes) -> int:
    """The graph as it is loaded: without self-loops, its features as they are."""
    features = _features(z) if z.feature_nnz is None else 8 * (z.feature_nnz + z.nodes + 1)
    return _csr(z, z.edges) + features + _labels(z)


def _labels(z: Sizes) -> int:
    return z.nodes * ((z.classes if z.multilabel else 8) + 3)


def _held(z: Sizes, s: Config) -> Iterator[Item]:
    took = rehearse(z, s)
    here, n = near(s), z.nodes
    yield Item("process", "host", PROCESS, "Python, torch and compiled kernels: measured")
    if here == "GPU":
        yield Item("CUDA context", here, CUDA_CONTEXT, "assumed; differs with GPU and driver")
    graph = _csr(z, z.edges + n) + 4 * n + _reverse(z, s)
    yield Item("graph", here, graph, "CSR with self-loops, scales" + (", reverse with edge names" * _reversed(z, s)))
    dense = "" if z.feature_nnz is None else ", made dense"
    yield Item("features", here, _features(z), f"[{n:,}, {z.features}], {8 * z.feature_bytes} bits{dense}")
    yield Item("aggregated features", here, took.aggregated, "the first layer's, computed once, float32")
    yield Item("labels", "host", _labels(z) + 8 * n, "labels, masks, order of nodes")
    tables: Tier = {"device": here, "pinned": "host", "disk": "disk"}[s.history]
    sizes = [n * width * DTYPES[s.dtype].itemsize for width in took.widths]
    widths = f"{len(sizes)} of widths {', '.join(map(str, sorted(set(took.widths))))}, {s.dtype}"
    if s.history == "pinned" and here == "GPU":
        sizes = [pinned_bytes(size) for size in sizes]
        widths += "; torch rounds pinned memory up to a power of two"
    yield Item("history tables", tables, sum(sizes), widths)
    stamps: Tier = "disk" if s.history == "disk" else here
    yield Item("stamps", stamps, 4 * n * len(sizes), "int32 per row of a table")
    iterators = 1 + (refreshed_rows(s, z) > 0)
    yield Item(
        "ids of batches", here, iterators * 8 * n, f"int64, until an epoch ends{', and of refreshes' * (iterators - 1)}"
    )
    yield Item("position maps", here, took.maps, f"{round(took.maps / (4 * n))} of int32 per node")
    yield Item("staging buffers", here, took.staging, "rows of guessed halos, a quarter more")
    yield Item("weights", here, 16 * took.parameters, f"{took.parameters:,}, their gradients, Adam's two moments")
    yield Item("small blocks", here, HEAP_HOLES * took.heap, "of steps and passes: the heap keeps them, with holes; twice")
    if not z.prepared:
        files = _stored(z) - _features(z) * (z.name in AS_PUBLISHED)
        yield Item("prepared graph", "disk", files, "made once below the root; the download is not counted")


def _passing(z: Sizes, s: Config) -> Iterator[Item]:
    """What comes and goes."""
    took = rehearse(z, s)
    n = z.nodes
    waiting = s.history == "disk" and s.device == "cuda"
    ratio = f"up to {took.exact / max(1, 4 * n * s.hidden_channels):.1f} x [N, hidden]"
    yield Item("exact pass", near(s), took.exact, "pieces of layers, staged" if took.scratch else ratio, "exact")
    far: Tier = "disk" if s.history == "disk" else "host"
    yield Item("scratch tables", far, took.scratch, "layers in turn, float32", "exact")
    if near(s) == "GPU":
        yield Item("results", "host", 4 * n * z.classes, "of all nodes: they are scored on the host", "exact")
    yield Item("rows to be written", "host", took.exact_sent * waiting, "copies that wait for the disk", "exact")
    yield Item("activations", near(s), took.step, "of a batch: what autograd keeps, and gradients", "step")
    yield Item("rows to be written", "host", took.step_sent * waiting, "copies that wait for the disk", "step")
    ordered = _stored(z) + 12 * n + (0 if z.feature_nnz is None else _features(z))
    adjacency = _csr(z, z.edges + n) + 4 * n + 3 * _reverse(z, s) // 2
    yield Item("process", "host", PROCESS, "as above", "prepare")
    yield Item("graph in new order", "host", ordered, "edges, features, labels; the old one is mapped", "prepare")
    yield Item(
        "adjacency", "host", adjacency, "made from it" + (", with the scratch of its reverse" * _reversed(z, s)), "prepare"
    )


def limits_here(settings: Config, root: Path | str | None = None) -> dict[Tier, int]:
    """What this machine has: free memory of host and GPU, room on the disk of ``root``; default: of the settings' root."""
    folder = Path(settings.root if root is None else root).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    limits: dict[Tier, int] = {"host": available_memory(), "disk": shutil.disk_usage(existing).free}
    if _settled(settings).device == "cuda" and torch.cuda.is_available():
        limits["GPU"] = torch.cuda.mem_get_info()[0]
    return limits


Change = dict[str, Any]


def _changes(s: Config) -> list[list[Change]]:
    """What could be changed, kind by kind, the least harmful kind first, and in each the smallest step first."""
    halves = [s.batch_size >> i for i in range(1, s.batch_size.bit_length())]
    smaller: list[Change] = [{"batch_size": count} for count in halves]
    smaller += [{"num_parts": s.num_parts << i, "batch_size": 1} for i in range(1, 5)]
    wide = s.hidden_channels
    narrower = [wide >> i for i in range(1, wide.bit_length()) if wide >> i >= LEAST_HIDDEN]
    return [
        [{"dtype": "bfloat16"}] if s.dtype == "float32" else [],
        [{"history": "pinned"}] if s.device == "cuda" and s.history == "device" else [],
        smaller,
        [{"history": "disk"}] if s.history != "disk" else [],
        [{"hidden_channels": width} for width in narrower],
    ]


def smallest_change(sizes: Sizes, settings: Config, limits: Limits) -> str | None:
    """The flags that make a run fit, or None if no change of one or two settings does.

    In the order of least harm: tables in bfloat16, pinned instead of on the GPU, smaller batches, on disk, a narrower model.
    """
    kinds = _changes(settings)
    pairs = ({**a, **b} for one, two in combinations(kinds, 2) for a, b in product(one, two) if not a.keys() & b.keys())
    for change in (*(change for kind in kinds for change in kind), *pairs):
        if not plan(sizes, replace(settings, **change), limits).too_large:
            return " ".join(f"{flag(name)} {value}" for name, value in change.items())
    return None


def refuse_if_too_large(sizes: Sizes, settings: Config, limits: Limits | None = None) -> Plan:
    """The plan of a run that fits; MemoryError with a way out if it does not.

    Args:
        limits: bytes there are, by tier; default: what this machine has free.
    """
    made = plan(sizes, settings, limits_here(settings) if limits is None else limits)
    if made.too_large:
        raise MemoryError(_refusal(made))
    return made


def _refusal(made: Plan) -> str:
    needs = ", ".join(
        f"{readable(need)} of {'GPU memory' if tier == 'GPU' else 'host memory' if tier == 'host' else 'disk'} "
        f"({readable(made.limits[tier])} available)"
        for tier, need in made.too_large.items()
    )
    change = smallest_change(made.sizes, made.settings, made.limits)
    way_out = f"it fits with {change}" if change else "no change of one or two settings makes it fit; take a larger machine"
    return f"{made.sizes.name} with {made.settings.model} needs {needs}; {way_out}"


def bytes_of(text: str) -> int:
    """``40GiB``, ``40GB``, ``512MiB`` or plain bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)?", text.strip().upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it as 40GiB, 512MiB or a number of bytes")
    prefix, base = (found[2] or "")[:1], 1024 if "I" in (found[2] or "") else 1000
    return int(float(found[1]) * base ** " KMGT".index(prefix or " "))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.plan", usage="%(prog)s --dataset NAME [flags]", allow_abbrev=False,
        description="Print the memory that a run of rest_triton.train with the same flags would take. Nothing is loaded.",
    )  # fmt: skip
    parser.add_argument("--recipe", metavar="NAME", help="as for rest_triton.train")
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        type=bytes_of,
        help="such as 40GiB; default: what is free on the GPU, if there is one",
    )
    add_flags(parser)
    options = parse_flags(parser, sys.argv[1:] if arguments is None else arguments)
    gpu_memory = options.pop("gpu_memory")
    try:
        settings, _ = from_flags(options)
        limits = limits_here(settings) | ({} if gpu_memory is None else {"GPU": gpu_memory})
        made = plan(sizes_of(settings.dataset, settings.root), settings, limits)
    except (ValueError, OSError) as error:
        # Expected ones say what to do; a traceback would hide it.
        parser.exit(1, f"{error}\n")
    print(made)
    if made.too_large:
        print(f"\n{_refusal(made)}")


if __name__ == "__main__":
    main()
