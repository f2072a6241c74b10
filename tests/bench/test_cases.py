"""The cases of the ops: their names, their sizes, and that dropout's elements are checked."""

from pathlib import Path

import pytest
import torch

from bench.bench_activate import Layer, off_pattern, off_table
from bench.cases import AGGREGATES, DTYPES, SOURCES, UNIFORM, Case, Room, fitting
from rest_triton.data.datasets.synthetic import SHAPES

from .batches import clustered, room


def test_every_graph_width_and_dtype_is_among_them() -> None:
    assert {case.graph for case in AGGREGATES} == {*SOURCES, UNIFORM}
    assert {case.width for case in AGGREGATES} == {47, 128, 256}
    assert {case.dtype for case in AGGREGATES} == set(DTYPES)
    assert len({str(case) for case in AGGREGATES}) == len(AGGREGATES)
    assert set(SOURCES) <= set(SHAPES)


def test_the_scale_shrinks_until_it_fits() -> None:
    shape = SHAPES["products"]
    assert fitting(shape, 0.1, 1 << 50) == 0.1
    small = fitting(shape, 1.0, 1 << 30)
    assert small < 1 and shape.scaled(small).bytes_needed <= (1 << 30) / 5 < shape.scaled(2 * small).bytes_needed


def test_names_say_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("bench.cases.available_memory", lambda: 1 << 50)
    monkeypatch.setattr("bench.cases.clustered", lambda *args: asked.append(args))
    full = Room(False, "synthetic:arxiv", "data", torch.device("cpu"))
    name, _ = full._clustered(Case("products", 128))
    assert name == "products@0.1, 5 of 40 clusters"
    assert asked[0][:5] == ("synthetic:products@0.1,features=1", "data", 40, 5, "stream")
    on_gpu = Room(False, "synthetic:arxiv", "data", torch.device("cuda"))
    assert on_gpu._clustered(Case("products", 128))[0] == "products@1, 5 of 40 clusters"
    real = Room(False, "arxiv30.npz", "data", torch.device("cpu"))
    assert real._clustered(Case("arxiv", 128))[0] == "arxiv30.npz, 40 of 80 clusters"
    assert real._clustered(Case("reddit", 128))[0] == "reddit@0.25, 10 of 40 clusters"


def test_a_batch_of_clusters(tmp_path: Path) -> None:
    name, b = room(tmp_path).build(Case("products", 128, "float16"))
    assert name.endswith("2 of 8 clusters, width 16, float16")
    assert b.table.dtype == torch.float16 and b.x.dtype == torch.float32 and b.table.shape == (b.adj.num_nodes, 16)
    assert torch.equal(b.position[b.rows], torch.arange(len(b.rows), dtype=torch.int32))
    outside = torch.unique(b.columns[b.position[b.columns] < 0])
    assert torch.equal(b.halo, outside) and 0 < b.in_batch < 1
    assert f"{len(b.rows):,} rows, {b.edges:,} edges" in b.describe()


def test_dropout_is_checked_by_what_passed(tmp_path: Path) -> None:
    layer = Layer(clustered(tmp_path, 16, "float32"))
    inputs = layer.h, layer.norm.weight, layer.norm.bias
    grad = torch.randn_like(layer.h)
    errors = layer.errors(inputs, True, grad)

    def found(y: torch.Tensor) -> list[float]:
        return errors([y, *torch.autograd.grad(y, inputs, grad)])

    for run in (layer.ours_with_moments, layer.torchs_with_moments):
        assert max(found(run())) < 1e-5
    assert found(layer.torchs_with_moments() * 2)[0] > 0.5
    assert found(layer.torchs_with_moments() * 0)[0] == torch.inf  # nobody passed
    y = layer.torchs_with_moments()
    assert found(torch.relu(layer.norm(layer.h)))[0] == torch.inf  # everybody passed
    assert not errors([y])[0] <= 1.0  # the table is not as the variant wrote it


def test_patterns_and_rounding() -> None:
    z = torch.tensor([[1.0, -1.0] * 500])
    half = (torch.arange(1000) % 4 == 0)[None]
    assert off_pattern(z, half) == 0
    assert off_pattern(z, half.roll(1)) == torch.inf  # the negative ones
    a = torch.rand(10, 4)
    assert off_table(a.double(), a.bfloat16()) == 0 and off_table(a.double(), a + 0.1) > 0.01
