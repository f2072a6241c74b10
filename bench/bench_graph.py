"""Making a graph out of edges, beside what one would do with torch and SciPy, and beside copying the bytes once."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rest_triton.data import csr
from rest_triton.data.datasets import synthetic

from .measure import Report, best


def by_torch(source: Tensor, target: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    key = torch.unique(target.long() * nodes + source)
    return torch.nn.functional.pad(torch.bincount(key // nodes, minlength=nodes).cumsum(0), (1, 0)), (key % nodes).int()


def by_scipy(source: Tensor, target: Tensor, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    import scipy.sparse

    ones = np.ones(source.numel(), np.int8)
    matrix = scipy.sparse.coo_matrix((ones, (target.numpy(), source.numpy())), (nodes, nodes)).tocsr()
    matrix.sort_indices()
    return matrix.indptr, matrix.indices


def bench_building(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    nodes, edges, rounds = (2_000, 20_000, 1) if tiny else (500_000, 20_000_000, 5)
    g = torch.Generator().manual_seed(0)
    source, target = (torch.randint(0, nodes, (edges,), generator=g, dtype=torch.int32) for _ in range(2))
    rowptr, col = csr.from_edges(source, target, nodes, deduplicate=True)
    order = torch.randperm(nodes, generator=g)
    for their_rowptr, their_col in (by_torch(source, target, nodes), by_scipy(source, target, nodes)):
        assert torch.equal(rowptr, torch.as_tensor(their_rowptr).long())
        assert torch.equal(col, torch.as_tensor(their_col))
    both = torch.empty(2, edges, dtype=torch.int32)
    variants: dict[str, Callable[[], object]] = {
        "from_edges": lambda: csr.from_edges(source, target, nodes, deduplicate=True),
        "torch: unique of target * N + source": lambda: by_torch(source, target, nodes),
        "SciPy: coo.tocsr, sort_indices": lambda: by_scipy(source, target, nodes),
        "copying the edges once": lambda: both.copy_(torch.stack([source, target])),
        "symmetrise": lambda: csr.symmetrise(rowptr, col),
        "reverse": lambda: csr.reverse(rowptr, col),
        "reverse, with the names of edges": lambda: csr.reverse_with_names(rowptr, col),
        "permute": lambda: csr.permute(rowptr, col, order),
        "with_self_loops": lambda: csr.with_self_loops(rowptr, col),
        "fingerprint": lambda: csr.fingerprint(rowptr, col),
    }
    times = best(variants, rounds)
    ours = times["from_edges"]
    report.table(
        f"a graph of {nodes:,} nodes from {edges:,} edges in any order, each once",
        [
            (what, t, f"{1e9 * t / edges:.1f} ns per edge" + (f", {t / ours:.1f} times from_edges" if ":" in what else ""))
            for what, t in times.items()
        ],
    )
    benchmark.extra_info["against_torch"] = times["torch: unique of target * N + source"] / ours
    benchmark.pedantic(csr.from_edges, args=(source, target, nodes), rounds=1 if tiny else 3)


def bench_synthetic(benchmark: pytest.FixtureRequest, tiny: bool, report: Report) -> None:
    """The full shape of products."""
    shape = synthetic.parse("synthetic:nodes=1000,edges=8000" if tiny else "synthetic:products")
    times = best({"generate": lambda: synthetic.generate(shape)}, 1 if tiny else 2)
    report.table(
        f"synthetic graph: {shape.nodes:,} nodes, {shape.edges:,} edges, {shape.features} features",
        [("generate", times["generate"], f"{1e9 * times['generate'] / shape.edges:.0f} ns per edge")],
    )
    benchmark.pedantic(synthetic.generate, args=(shape,), rounds=1)
