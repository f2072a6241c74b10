"""Synthetic graphs: degree-corrected block models in the shape of well-known data sets or of any other size.

Nodes belong to blocks, blocks to classes. Degrees follow a power law. Of the edges, 60 % stay in their block, 20 % in their
class. Features carry a weak signal of the class, so that neighbours help. Some nodes differ from their block and some labels
are wrong, so that no model is always right. The same name gives the same graph on any number of threads.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...kernels._hash import seed_key
from ...kernels.cpu import synthetic as kernels
from ...ops.memory import new_rows
from ...utils.errors import UserError, did_you_mean
from ...utils.machine import available_memory, readable
from .. import csr
from ..graph import Graph

PREFIX = "synthetic:"
REVISION = 1  # raise it when the same name gives another graph, so that stored graphs are prepared again

BLOCK_SIZE = 1000  # nodes
LOCAL, SAME_CLASS = 0.6, 0.2  # shares of edges that stay in their block, in their class
EXPONENT = 2.5  # of the power law of degrees
MISFITS = 0.08  # share of nodes of another class than their block
WRONG_LABELS = 0.08
SIGNAL = 2.0  # length of a class's centre, in standard deviations of the noise


@dataclass(frozen=True)
class Shape:
    """The size of a synthetic graph. ``edges`` counts both directions; as drawn duplicates are removed, up to a percent may
    be missing. ``train`` and ``val`` are shares of the nodes; the others are for testing."""

    nodes: int
    edges: int
    features: int = 64
    classes: int = 10
    train: float = 0.5
    val: float = 0.2
    seed: int = 0

    def scaled(self, factor: float) -> "Shape":
        return replace(self, nodes=max(1, round(self.nodes * factor)), edges=round(self.edges * factor))

    @property
    def bytes_needed(self) -> int:
        """The peak memory of :func:`generate`: the drawn edges and their CSR, or the CSR and the features."""
        return max(12 * self.edges, 4 * self.edges + 4 * self.nodes * self.features) + 64 * self.nodes


#: Published sizes (symmetric) and shares of training and validation nodes.
SHAPES = {
    "arxiv": Shape(169_343, 2_315_598, 128, 40, 0.537, 0.176),
    "products": Shape(2_449_029, 123_718_280, 100, 47, 0.0803, 0.0161),
    "reddit": Shape(232_965, 23_213_838, 602, 41, 0.659, 0.102),
    "papers100m": Shape(111_059_956, 3_231_371_744, 128, 172, 0.0109, 0.0011),
}


def parse(name: str) -> Shape:
    """The shape of a name such as ``synthetic:products@0.1`` or ``synthetic:nodes=20000,edges=300000``.

    Fields of :class:`Shape` can follow a shape's name after a comma.
    """
    first, *rest = name.removeprefix(PREFIX).split(",")
    shape, factor = None, 1.0
    if "=" in first:
        rest = [first, *rest]
    else:
        known, at, scale = first.partition("@")
        if known not in SHAPES:
            raise UserError(
                f"{name!r} is not a known shape; {did_you_mean(known, SHAPES)} (or sizes: synthetic:nodes=2000,edges=9000)"
            )
        shape = SHAPES[known]
        try:
            factor = float(scale) if at else 1.0
        except ValueError:
            factor = math.nan
        if not 0 < factor < math.inf:
            raise UserError(f"{name!r} is scaled by {scale!r}; it must be a positive number, as in synthetic:{known}@0.1")
    types = {key: float if key in ("train", "val") else int for key in Shape.__dataclass_fields__}
    given: dict[str, Any] = {}
    for item in rest:
        key, _, value = item.partition("=")
        if key not in types:
            raise UserError(f"{name!r} has {key!r}; {did_you_mean(key, types)}")
        try:
            given[key] = types[key](value)
        except ValueError:
            raise UserError(f"{name!r} has {key}={value!r}; it must be a number") from None
    if shape is None:
        missing = [key for key in ("nodes", "edges") if key not in given]
        if missing:
            raise UserError(f"{name!r} lacks {' and '.join(missing)}, as in synthetic:nodes=20000,edges=300000")
        shape = Shape(**given)
    else:
        shape = replace(shape.scaled(factor), **given)
    _check(name, shape)
    return shape


def _check(name: str, shape: Shape) -> None:
    for key, least in (("nodes", 2), ("edges", 0), ("features", 1), ("classes", 1), ("seed", 0)):
        if getattr(shape, key) < least:
            raise UserError(f"{name!r} has {getattr(shape, key)} {key}; there must be at least {least}")
    if shape.edges > shape.nodes * (shape.nodes - 1) // 4:
        raise UserError(
            f"{name!r} has {shape.edges} edges among {shape.nodes} nodes; at most "
            f"{shape.nodes * (shape.nodes - 1) // 4}, a quarter of all ordered pairs, can be drawn"
        )
    if shape.edges // 2 >= 2**31 or shape.nodes >= 2**31:
        raise UserError(f"{name!r} has {shape.nodes} nodes and {shape.edges} edges; below 2^31 and 2^32 can be drawn")
    if not (shape.train >= 0 and shape.val >= 0 and shape.train + shape.val <= 1):
        raise UserError(
            f"{name!r} has shares train={shape.train}, val={shape.val}; they must lie in [0, 1] and add up to at most 1"
        )


def generate(shape: Shape, name: str = "synthetic") -> Graph:
    """Generate the graph in time linear in nodes and edges, on all of torch's threads."""
    need, have = shape.bytes_needed, available_memory()
    if need > have:
        raise UserError(
            f"{name} needs {readable(need)} of memory while it is generated, {readable(have)} are free; "
            f"use a smaller shape, {0.8 * have / need:.2g} times as large"
        )
    n, rng = shape.nodes, np.random.default_rng(shape.seed)
    block_class = _classes_of_blocks(-(-n // BLOCK_SIZE), shape.classes, rng)
    class_blocks = np.searchsorted(block_class, np.arange(shape.classes + 1)).astype(np.int32)
    latent = _replace_share(np.repeat(block_class, BLOCK_SIZE)[:n], MISFITS, shape.classes, rng)
    label = _replace_share(latent, WRONG_LABELS, shape.classes, rng)
    factor, offset = _scrambling(n, rng)

    weight = _weights(n, rng)

    def draw(count: int, once: int) -> csr.Csr:
        stubs = torch.from_numpy(_degrees(weight, count, rng))
        owner = torch.repeat_interleave(torch.arange(n, dtype=torch.int32), stubs.diff())
        source, target = kernels.edges(
            owner, stubs, BLOCK_SIZE, torch.from_numpy(block_class), torch.from_numpy(class_blocks), n, factor, offset,
            LOCAL, SAME_CLASS, seed_key(16 * shape.seed + once),
        )  # fmt: skip
        return csr.from_edges(source, target, n, mirror=True)

    rowptr, col = draw(shape.edges // 2, 0)
    for once in range(1, 9):  # duplicates are removed: draw more until nearly all edges exist
        missing = shape.edges - col.numel()
        if missing > shape.edges // 200:
            rowptr, col = csr.union((rowptr, col), draw(missing // 2, once))

    centres = torch.from_numpy(rng.standard_normal((shape.classes, shape.features), np.float32))
    centres /= centres.norm(dim=1, keepdim=True)
    x = new_rows(n, shape.features, torch.float32, torch.device("cpu"))
    kernels.features(torch.from_numpy(latent), centres, SIGNAL, factor, offset, x, seed_key(16 * shape.seed + 15))
    place = torch.from_numpy((np.arange(n) * factor + offset) % n)
    y = torch.empty(n, dtype=torch.int64)
    y[place] = torch.from_numpy(label).long()
    share = torch.from_numpy(rng.random(n))
    train, val = share < shape.train, (share >= shape.train) & (share < shape.train + shape.val)
    return Graph(
        rowptr, col, x, y, train, val, ~(train | val), num_classes=shape.classes, directed=False, name=name, _checked=True
    )


def _classes_of_blocks(blocks: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The class of each block, int32[blocks], ascending. Low classes are larger; each has a block if there are enough."""
    first = np.arange(min(classes, blocks))
    others = classes * rng.random(blocks - len(first)) ** 1.5
    return np.sort(np.concatenate([first, others.astype(np.int64)])).astype(np.int32)


def _replace_share(values: np.ndarray, share: float, classes: int, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(len(values)) < share, rng.integers(0, classes, len(values), dtype=np.int32), values)


def _scrambling(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """(factor, offset) of the permutation i -> (i * factor + offset) mod n, which spreads the blocks over all ids."""
    factor = int(n * 0.618) | 1
    while math.gcd(factor, n) != 1:
        factor += 2
    return factor, int(rng.integers(0, n))


def _weights(n: int, rng: np.random.Generator) -> np.ndarray:
    """Power-law weights, float64[n], that sum to 1. The tail is cut at twice the square root of n."""
    weight = (1.0 - rng.random(n)) ** (-1.0 / (EXPONENT - 1.0))
    np.minimum(weight, 2.0 * math.sqrt(n), out=weight)
    return weight / weight.sum()


def _degrees(weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The prefix sum of how many edges each node draws, int64[n + 1]; about ``count`` in total."""
    share = weight * count
    degree = np.floor(share)
    degree += rng.random(len(weight)) < share - degree
    return np.concatenate([[0], np.cumsum(degree.astype(np.int64))])
