"""VR-GCN beside its steps: runs that were killed, planned memory, refusals."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from rest_triton.config import Config
from rest_triton.data.sizes import Sizes
from rest_triton.sampling.batch import Batch
from rest_triton.training import memory
from rest_triton.training.plan import plan
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError

from ..training.data import NODES, settings, small
from .test_vrgcn import MODELS, vrgcn


@pytest.fixture(autouse=True)
def on_one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


# Memory.


@pytest.mark.parametrize("model", [*MODELS, "gin"])
def test_the_plan_counts_tables_and_rows(model: str) -> None:
    """Rows are those of the mean layer, 30 % too many at most: the plan takes neighbours as drawn from all nodes."""
    config = settings(model=model, method="vrgcn", dtype="bfloat16", batch_nodes=20, fanout="3")
    loaded = small()
    edges = loaded.adj.num_edges - loaded.adj.num_nodes
    sizes = Sizes(nodes=loaded.graph.num_nodes, edges=edges, features=12, classes=5, name="small", prepared=True)
    planned = {array.name: array.nbytes for array in plan(sizes, config).arrays}
    trainer = Trainer(config, loaded)
    tables = trainer.history.all_tables
    assert planned["history tables"] == sum(table.rows.nbytes for table in tables)
    assert planned["stamps"] == sum(table.stamp.nbytes for table in tables)
    found = [trainer.method.prepare(trainer.engine, trainer.method.batches(1)[0], step) for step in range(20)]
    rows = mean(mean(batch.counts) for batch in found if batch.counts is not None)
    assert rows <= memory.Run(sizes, config).rows <= 1.3 * rows
    kept = mean(nbytes(batch) for batch in found)
    assert kept <= planned["samples"] <= 1.5 * kept


def nbytes(batch: Batch) -> int:
    """Of the samples, each array once, without the graph's."""
    found: dict[int, int] = {}
    for sample in batch.samples or ():
        if sample is not None and sample.adj.reverse is not None:
            arrays = [sample.by_node.rowptr, sample.by_node.col, sample.by_node.row_scale]
            for adj in (sample.adj, sample.adj.reverse):
                arrays += [adj.rowptr, adj.col, adj.row_scale, adj.col_scale]
            found |= {array.data_ptr(): array.nbytes for array in arrays if array is not None}
    return sum(found.values())


@pytest.mark.parametrize("model", ["gcn", "gcnii"])
def test_the_plan_counts_rows_of_far_tables(model: str, tmp_path: Path) -> None:
    """A buffer holds the rows of a layer, and all their neighbours."""
    config = settings(model=model, method="vrgcn", history="disk", batch_nodes=20, fanout="3")
    edges = small().adj.num_edges - NODES
    sizes = Sizes(nodes=small().graph.num_nodes, edges=edges, features=12, classes=5, name="small", prepared=True)
    run = memory.Run(sizes, config)
    trainer = Trainer(config, small(), folder=tmp_path / "history")
    trainer.begin()
    trainer.epoch(1)
    largest = max(buffer.rows.shape[0] for buffer in trainer.history._buffers.values())
    trainer.close()
    assert run.pulled <= largest <= 5 * small().graph.num_nodes // 4 and run.pulled > run.halo > 0


# What is refused.


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for model in ("gat", "pna"):
        yield dict(model=model), f"method is vrgcn, but model {model} does not sum over neighbours; give --method gas"
    yield dict(edge_dropout=0.2), "edge_dropout is 0.2, but method vrgcn samples neighbours instead; give --edge-dropout 0"
    for fanout in ("10,5", "0", "3,-1,2", "1,2,3,4", "x", ""):
        yield dict(fanout=fanout), f"fanout is '{fanout}'; .*one for each of the 3 layers, such as 10,10,10"
    yield dict(method="vrgcn+rest", gradient_frequency=1), "method vrgcn.rest has no tables of gradients"
    drift = dict(method="vrgcn+rest", frequency="auto", target_drift=0.1)
    yield drift, "target_drift is 0.1, but rows of a batch of method vrgcn.rest differ in age"


@pytest.mark.parametrize(("given", "message"), list(refusals()))
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(dataset="cora", num_layers=3, **(dict(method="vrgcn") | given))


def test_a_fan_out_has_no_effect_without_samples() -> None:
    said = Config(dataset="small").idle(["fanout", "batch_nodes"])
    assert {line.split(" ")[0] for line in said} == {"--fanout", "--batch-nodes"}
    assert all("vrgcn" in line and line.endswith("method is gas") for line in said)
    assert Config(dataset="small", method="vrgcn").idle(["fanout", "batch_nodes"]) == []
    assert Config(dataset="small", method="vrgcn", num_layers=3, fanout="4, 3,2").fanouts == (4, 3, 2)


def test_without_a_training_mask_it_is_refused() -> None:
    run = vrgcn("gcn")
    with pytest.raises(ValueError, match="vrgcn has batches of training nodes: make it with a graph that has a training"):
        type(run.trainer.method)(run.config, run.data.ptr, "cpu")
