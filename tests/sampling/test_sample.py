"""Sampled fields: the rows of each layer, the edges that they read, their weights, and what samples depend on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rest_triton.methods.sampled.base import SampledMethod
from rest_triton.ops import Adjacency, history_spmm
from rest_triton.sampling.batch import Batch, Lazy, PositionMaps
from rest_triton.sampling.sample import Sample, fields

from ..history.runs import NODES, Run

N = 2000


def big(directed: bool = False, weights: bool = False, scaled: bool = True) -> Adjacency:
    """A graph with a hub, and with rows without neighbours."""
    g = torch.Generator().manual_seed(3)
    edges = torch.randint(0, N - 10, (2, 12_000), generator=g)
    edges = torch.cat([edges, torch.stack([torch.full((900,), 7), torch.arange(900)])], 1)
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    edges = torch.unique(edges, dim=1)  # sorted by row
    rowptr = torch.nn.functional.pad(torch.bincount(edges[0], minlength=N).cumsum(0), (1, 0))
    row, column = torch.rand(2, N, generator=g) if scaled else (None, None)
    count = edges.shape[1]
    named = dict(edge_weight=torch.rand(count, generator=g), edge_id=torch.randperm(count, generator=g)) if weights else {}
    return Adjacency(rowptr, edges[1].int(), row_scale=row, col_scale=column, **named)


GRAPH = big()


def field(targets: Tensor, *fanouts: int | None, seed: int = 1, adj: Adjacency = GRAPH, **options: Any) -> Batch:
    maps = PositionMaps(N)
    batch = fields(adj, targets, fanouts, maps, seed, **options)
    assert all(torch.equal(free, maps._new()) for free in maps._free) and len(maps._free) == 1
    return batch


def neighbours(sample: Sample | None, rows: Tensor) -> dict[int, list[int]]:
    """The sampled neighbours of each row."""
    assert sample is not None
    bounds = sample.by_node.rowptr.tolist()
    col = sample.by_node.col.tolist()
    return {row: col[bounds[i] : bounds[i + 1]] for i, row in enumerate(rows.tolist())}


def of_layers(batch: Batch) -> list[dict[int, list[int]]]:
    assert batch.samples is not None
    return [neighbours(sample, batch.block(layer).rows.rows) for layer, sample in enumerate(batch.samples)]


TARGETS = torch.randperm(N, generator=torch.Generator().manual_seed(5))[:500]


# What samples depend on.


def test_samples_are_the_same_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    found = []
    for count in (1, 2):
        threads(count)
        batch = field(TARGETS, 3, 4)
        assert batch.samples is not None
        arrays = [(s.adj.rowptr, s.adj.col, s.by_node.col) for s in batch.samples if s is not None]
        found.append((batch.rows, batch.counts, [array for three in arrays for array in three]))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    assert all(map(torch.equal, found[0][2], found[1][2])) and len(found[0][2]) == 6


def test_samples_of_a_row_do_not_depend_on_the_other_rows() -> None:
    """Rows in another order, and a batch of another size: a row has the same sample in every layer that computes it."""
    whole = of_layers(field(TARGETS, 3, 4))
    for other in (TARGETS.flip(0), TARGETS[:20], torch.arange(N)):
        for ours, theirs in zip(whole, of_layers(field(other, 3, 4)), strict=True):
            common = ours.keys() & theirs.keys()
            assert len(common) >= 20 and all(ours[row] == theirs[row] for row in common)
    assert sorted(field(TARGETS, 3, 4).rows.tolist()) == sorted(field(TARGETS.flip(0), 3, 4).rows.tolist())


def test_samples_depend_on_seed_layer_and_row() -> None:
    """Also layer 1 of a seed and layer 0 of the next one differ."""
    everyone, degree = torch.arange(N), GRAPH.rowptr.diff()
    many = torch.nonzero(degree > 20).squeeze(1).tolist()
    first, second = of_layers(field(everyone, 3, 3))
    other = of_layers(field(everyone, 3, 3, seed=2))[0]
    for a, b in ((first, second), (first, other), (second, other)):
        assert sum(a[row] == b[row] for row in many) < 0.05 * len(many)
    places = [[GRAPH.col[GRAPH.rowptr[row] :].tolist().index(first[row][0]) for row in many]]
    assert len(set(places[0])) > 8  # not the same places in each row


@pytest.mark.parametrize("method", ["vrgcn", "graphfm-ib", "refresh"])
def test_samples_of_a_run_depend_on_seed_step_and_draw(method: str) -> None:
    options: dict[str, Any] = dict(method=method, batch_nodes=12, fanout="2")
    run, again, other = Run("gcn", **options), Run("gcn", **options), Run("gcn", **options, seed=1)
    everyone = Batch(NODES, nodes=torch.arange(NODES))

    def taken(run: Run, step: int, draw: int = 0) -> list[int]:
        batch = run.trainer.method.prepare(run.engine, everyone, step, draw=draw)
        assert batch.samples is not None and batch.samples[1] is not None
        return batch.samples[1].by_node.col.tolist()

    found = [taken(run, 1), taken(run, 2), taken(run, 1, 1), taken(run, 2, 1), taken(other, 1)]
    assert found[:4] == [taken(again, 1), taken(again, 2), taken(again, 1, 1), taken(again, 2, 1)]
    assert len({tuple(of) for of in found}) == 5
    run.losses(3)  # whatever was computed before
    assert taken(run, 1) == found[0]


# Rows and edges.


@pytest.mark.parametrize("fanouts", [(3, 4), (None, 2, 5), (1, None), (N, N), (2, None, 3)])
def test_each_layer_has_the_rows_that_the_next_one_reads(fanouts: tuple[int | None, ...]) -> None:
    """Targets first, then new nodes, each once. Every row has distinct neighbours, all of them if the fan-out allows."""
    batch = field(TARGETS[:30], *fanouts)
    rows, counts, samples = batch.rows, batch.counts, batch.samples
    assert counts is not None and samples is not None and counts[-1] == 30 and counts[0] == len(rows)
    assert torch.equal(rows[:30], TARGETS[:30]) and len(set(rows.tolist())) == len(rows)
    for layer, (fanout, sample) in enumerate(zip(fanouts, samples, strict=True)):
        if fanout is None:
            assert sample is None and counts[layer] == counts[layer + 1]
            continue
        assert sample is not None
        source, known = batch.block(layer).source.rows, set(rows[: counts[layer + 1]].tolist())
        of_row = neighbours(sample, batch.block(layer).rows.rows)
        for row, taken in of_row.items():
            everyone = GRAPH.col[GRAPH.rowptr[row] : GRAPH.rowptr[row + 1]].tolist()
            assert set(taken) <= set(everyone) and len(set(taken)) == len(taken) == min(fanout, len(everyone))
        assert known | {node for taken in of_row.values() for node in taken} == set(source.tolist())
        assert torch.equal(sample.adj.rowptr, sample.by_node.rowptr)
        assert torch.equal(source[sample.adj.col.long()], sample.by_node.col.long())
        lacking = [i for i, (row, taken) in enumerate(of_row.items()) if len(taken) < int(GRAPH.rowptr.diff()[row])]
        assert sample.partial.tolist() == lacking
        assert sample.complete == (fanout >= int(GRAPH.rowptr.diff().max())) and sample.outside is None


KINDS = {"undirected": {}, "directed": dict(directed=True), "weights": dict(weights=True), "plain": dict(scaled=False),
    "directed, weights": dict(directed=True, weights=True)}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fanout", [1, 4, N])
def test_an_aggregate_weighs_degree_over_fan_out(kind: str, fanout: int) -> None:
    """By hand, with its gradient. In the sample of all neighbours it is that of the graph."""
    adj = big(**KINDS[kind])
    batch = field(TARGETS, fanout, adj=adj)
    assert batch.samples is not None and batch.samples[0] is not None
    sample, source = batch.samples[0], batch.block(0).source.rows
    dense = torch.zeros(len(TARGETS), len(source), dtype=torch.float64)
    place = {node: i for i, node in enumerate(source.tolist())}
    for i, (row, taken) in enumerate(neighbours(sample, TARGETS).items()):
        start, end = int(adj.rowptr[row]), int(adj.rowptr[row + 1])
        columns = adj.col[start:end].tolist()
        for node in taken:
            edge, weight = start + columns.index(node), (end - start) / len(taken)
            if adj.row_scale is not None and adj.col_scale is not None:
                weight *= float(adj.row_scale[row] * adj.col_scale[node])
            if adj.edge_weight is not None and adj.edge_id is not None:
                weight *= float(adj.edge_weight[adj.edge_id[edge]])
            dense[i, place[node]] = weight
    x = torch.randn(len(source), 5, requires_grad=True)
    out = history_spmm(
        sample.adj, sample.rows, sample.position, x, None, x_rows=sample.inside, row_position=sample.row_position
    )
    torch.testing.assert_close(out.double(), dense @ x.double(), rtol=1e-4, atol=1e-5)
    g = torch.randn_like(out)
    out.backward(g)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), dense.T @ g.double(), rtol=1e-4, atol=1e-5)
    assert sample.adj.reverse is not None
    turned = history_spmm(sample.adj.reverse, sample.inside, sample.row_position, g)
    torch.testing.assert_close(turned.double(), dense.T @ g.double(), rtol=1e-4, atol=1e-5)
    table = torch.zeros(N, 5)
    table[source] = x.detach()
    by_node = history_spmm(sample.by_node, sample.rows, ~torch.arange(N).int(), None, table)
    torch.testing.assert_close(by_node, out.detach(), rtol=1e-5, atol=1e-6)
    if fanout == N:
        assert torch.equal(by_node, history_spmm(adj, TARGETS, ~torch.arange(N).int(), None, table))


def test_known_rows_of_the_last_layer_are_neither_computed_nor_sampled() -> None:
    def known(nodes: Tensor) -> Tensor:
        return nodes % 3 == 0

    targets = TARGETS[:40]
    batch = field(targets, 4, 4, known=known)
    assert batch.samples is not None and batch.counts is not None
    first, last = batch.samples
    assert first is not None and last is not None and first.outside is None and last.outside is not None
    computed = batch.block(1).source.rows
    assert known(last.outside).all() and not known(computed[40:]).any() and len(last.outside) > 10
    columns = torch.cat([computed, last.outside])
    assert torch.equal(columns[last.adj.col.long()], last.by_node.col.long())
    plain = of_layers(field(targets, 4, 4))[1]
    assert neighbours(last, targets) == plain
    assert set(columns.tolist()) == set(targets.tolist()) | {node for taken in plain.values() for node in taken}
    reading = last.reading(in_place=True)
    assert torch.equal(reading[: len(computed)], torch.arange(len(computed)).int())
    assert torch.equal(reading[len(computed) :], ~last.outside.int())
    assert torch.equal(last.reading(in_place=False)[len(computed) :], ~torch.arange(len(last.outside)).int())


def test_an_empty_batch_and_rows_without_neighbours() -> None:
    batch = field(TARGETS[:0], 3, 3)
    assert batch.counts == (0, 0, 0) and len(batch) == 0
    alone = torch.arange(N - 10, N)
    batch = field(alone, 3, 3)
    assert batch.counts == (10, 10, 10) and torch.equal(batch.rows, alone)
    assert batch.samples is not None and all(s is not None and s.complete and s.adj.num_edges == 0 for s in batch.samples)


# Batches.


def test_an_epoch_has_every_training_node_once() -> None:
    """In an order of (seed, epoch) alone."""
    options: dict[str, Any] = dict(method="vrgcn", batch_nodes=13, fanout="2")
    run, again, other = Run("gcn", **options), Run("gcn", **options), Run("gcn", **options, seed=1)
    assert run.graph.train_mask is not None
    training = torch.nonzero(run.graph.train_mask).squeeze(1)

    def epoch(run: Run, number: int) -> list[list[int]]:
        return [batch.rows.tolist() for batch in run.trainer.method.batches(number)]

    first = epoch(run, 1)
    assert [len(batch) for batch in first[:-1]] == [13] * (len(first) - 1) and 0 < len(first[-1]) <= 13
    assert sorted(node for batch in first for node in batch) == training.tolist()
    assert epoch(again, 1) == first and epoch(run, 2) != first and epoch(other, 1) != first
    batches = run.trainer.method.batches(1)
    assert isinstance(batches, Lazy) and [batch.rows.tolist() for batch in batches[1:3]] == first[1:3]
    few = Run("gcn", **options, max_steps=1, accumulate=2)
    assert epoch(few, 1) == first[:2] and len(few.step()) == 2


def test_refreshes_and_measurements_are_of_groups_of_all_nodes() -> None:
    run = Run("gcn", method="vrgcn", batch_nodes=13, batch_size=2, fanout="2")
    method = run.trainer.method
    assert isinstance(method, SampledMethod) and method.ptr.tolist() == [*range(0, NODES, 7), NODES]
    for batches in (method.cover(), method.refresh_batches(2, 0).epoch(0)):
        assert sorted(node for batch in batches for node in batch.rows.tolist()) == list(range(NODES))
        assert all(len(batch.clusters) <= 2 for batch in batches)
