"""What epochs are said to compute: counted against dense matrices and by hand."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bench import bench_methods, work
from bench.harness import Bench
from rest_triton.data.clusters import load_data
from rest_triton.ops import Adjacency, history_spmm
from rest_triton.sampling.batch import Batch
from rest_triton.training.trainer import Trainer

from ..history import runs
from .test_harness import FakeBenchmark

WIDTHS = [7, 5, 5, 3]


def size_of(*nodes: int) -> tuple[work.Size, torch.Tensor, torch.Tensor, torch.Tensor]:
    adj = runs.graph().adjacency("gcn")
    batch = Batch(runs.NODES, nodes=torch.tensor(nodes))
    ones = Adjacency(adj.rowptr, adj.col)
    everywhere = torch.arange(-1, ~runs.NODES, -1, dtype=torch.int32)
    dense = history_spmm(ones, torch.arange(runs.NODES), everywhere, None, torch.eye(runs.NODES))
    return work.size(adj, batch), dense, batch.rows, batch.halo(adj)


def test_sizes() -> None:
    size, dense, rows, halo = size_of(3, 50, 4, 117, 8)
    both = torch.cat([rows, halo])
    assert (size.rows, size.halo) == (5, len(halo)) and size.halo > 5
    assert size.edges == dense[rows].sum() and size.all == dense[halo].sum()
    assert size.across == dense[halo][:, rows].sum() == dense[rows][:, halo].sum()
    assert size.within == dense[halo][:, both].sum()
    assert size.across < size.within < size.all


def test_without_a_halo_all_methods_compute_the_same() -> None:
    size = size_of(*range(runs.NODES))[0]
    assert (size.halo, size.within, size.all) == (0, 0, 0)
    plain = work.gas(size, WIDTHS)
    assert work.graphfm(size, WIDTHS) == work.lmc_coded(size, WIDTHS) == plain
    assert work.bound(plain, plain, dict(products=0.5, aggregates=0.2, activations=0.2, others=0.1)) == pytest.approx(1)


def test_all_neighbours_are_the_work_of_gas() -> None:
    size = size_of(*range(runs.NODES))[0]
    layers = range(len(WIDTHS) - 1)
    made = [work.sampled(size.rows, size.edges if layer else 0, 0, layer, WIDTHS) for layer in layers]
    assert sum(made, work.Work()) == work.gas(size, WIDTHS)
    whole = work.sampled(size.rows, 0, size.edges, 1, WIDTHS)  # without gradients
    assert 2 * whole.edges == made[1].edges and whole.products == made[1].products


def test_work_by_hand() -> None:
    size = work.Size(rows=10, halo=4, edges=30, across=6, within=9, all=20)
    products = [wide * narrow for wide, narrow in pairwise(WIDTHS)]
    gas = work.gas(size, WIDTHS)
    assert gas.products == 10 * (2 * products[0] + 3 * products[1] + 3 * products[2])
    assert gas.edges == 2 * 30 * (5 + 5) and gas.rows == 2 * 10 * (5 + 5)
    graphfm = work.graphfm(size, WIDTHS)
    assert graphfm.products - gas.products == 4 * (products[0] + products[1])
    assert graphfm.edges - gas.edges == 6 * (7 + 5)
    coded = work.lmc_coded(size, WIDTHS)
    assert coded.products - gas.products == 4 * (products[0] + 2 * products[1] + 2 * products[2])
    assert coded.edges - gas.edges == 9 * (1 + 7 + 2 * 5 + 2 * 5)
    first = work.gas(replace(size, transforms_first=True), WIDTHS)
    assert first.products - gas.products == 2 * 4 * products[2]
    assert first.edges - gas.edges == 2 * 30 * (3 - 5)
    shares = dict(products=0.5, aggregates=0.3, activations=0.1, others=0.1)
    more = work.Work(2 * gas.products, 3 * gas.edges, 5 * gas.rows)
    assert work.bound(more, gas, shares) == pytest.approx(0.5 * 2 + 0.3 * 3 + 0.2 * 5)


@pytest.mark.parametrize("method", ["vrgcn", "refresh"])
def test_edges_that_samples_read(method: str, tmp_path: Path) -> None:
    """At a fan-out of all neighbours and one batch of all training nodes, every row reads all its neighbours."""
    bench = Bench(FakeBenchmark(), True, "", str(tmp_path), torch.device("cpu"))
    config = bench_methods.config_of(bench, 40, method).changed(batch_nodes=400, fanout="1000")
    made = Trainer(config, load_data(config))
    epoch, reads = bench_methods.counted(made)
    epoch()
    adj = made.loaded.adj
    assert made.loaded.graph.train_mask is not None
    rows, edges = torch.nonzero(made.loaded.graph.train_mask).squeeze(1), 0
    computed = len(rows)
    for _ in range(2):
        edges += int((adj.rowptr[rows + 1] - adj.rowptr[rows]).sum())
        rows = torch.cat([rows, Batch(adj.num_nodes, nodes=rows).halo(adj)])
        computed += len(rows)
    assert (reads.sampled, reads.everything, reads.rows) == (edges, 0, computed)  # complete samples need no other sum
    assert reads.done.edges == 2 * edges * config.hidden_channels
    few = Trainer(config.changed(fanout="1"), made.loaded)
    epoch, reads = bench_methods.counted(few)
    epoch()
    assert 0 < reads.sampled < reads.everything if method == "vrgcn" else reads.everything == 0 < reads.sampled


@pytest.mark.parametrize(("found", "word"), [(1.0, "holds"), (2.0, "MISSED")])
def test_targets_are_printed(found: float, word: str) -> None:
    bench = Bench(FakeBenchmark(), True, "", "", torch.device("cpu"))
    bench.judge("a", found, most=1.5)
    bench.judge("b", 4.0 - found, least=2.5)
    assert [line.split()[0] for line in bench.lines] == [word, word]
    kept = bench.benchmark.extra_info["targets"]
    assert kept["a"] == dict(found=found, limit=1.5, kind="at most", holds=word == "holds")
