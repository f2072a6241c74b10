"""The pipelines of LMC and VR-GCN compute what our methods compute, from the same weights, tables and samples."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench import lmc_pipeline, pygas_models
from bench.bench_epoch import clustered, network
from bench.lmc_pipeline import LMC
from bench.vrgcn_pipeline import VRGCN
from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.history.history import GRADIENT
from rest_triton.sampling import sample
from rest_triton.training.trainer import Trainer

PARTS = 8


def settings(root: Path, method: str, **changes: Any) -> Config:
    common: dict[str, Any] = dict(
        dataset="synthetic:nodes=300,edges=1200,features=9,classes=5", root=str(root), device="cpu", model="gcn",
        num_layers=3, hidden_channels=16, dropout=0.0, num_parts=PARTS, batch_size=2, partition="random", lr=0.02,
    )  # fmt: skip
    return Config(**(common | dict(method=method) | changes))


def same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    found = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        mine, other = parameter.grad, found[name].grad
        assert other is not None
        if mine is None:  # a bias before a BatchNorm: theirs has the gradient that rounding makes
            assert float(other.abs().max()) < 1e-5, name
            continue
        assert float((mine - other).abs().max()) <= 1e-6 + 1e-5 * float(mine.abs().max()), name


def lmc(root: Path, *, beta: float, score: str, **changes: Any) -> tuple[Trainer, LMC]:
    config = settings(root, "lmc-coded", beta=beta, score=score, **changes)
    ours = Trainer(config, load_data(config))
    graph, ptr = clustered(config)
    model = network(lmc_pipeline.GCN, config, graph, ours.model)
    theirs = LMC(graph, ptr, config.batch_size, model, lr=config.lr, beta=beta, score=score, product="matmul")
    ours.begin()
    theirs.fill()
    return ours, theirs


@pytest.mark.parametrize("product", ["matmul", "reduce"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("beta", "score"), [(0.9, "linear"), (0.5, "sin"), (0.0, "linear"), (1.0, "const")])
def test_lmc_steps_are_those_of_lmc_coded(tmp_path: Path, beta: float, score: str, norm: bool, product: str) -> None:
    ours, theirs = lmc(tmp_path, beta=beta, score=score, batch_norm=norm, lr=0.002)
    theirs.product = product
    for table, mine in zip(theirs.histories, ours.history.tables, strict=True):
        torch.testing.assert_close(table, mine.rows, rtol=1e-4, atol=1e-5)  # filled
    ours.model.train()
    theirs.model.train()
    steps = 0
    for epoch in (1, 2):
        for batch in ours.method.batches(epoch):
            (loss,) = ours.update([batch])
            assert theirs.step(theirs.subgraph(batch)) == pytest.approx(float(loss), rel=1e-4), steps
            same_gradients(ours.model, theirs.model)
            theirs.model.load_state_dict(ours.model.state_dict(), strict=False)  # Adam magnifies rounding near zero
            steps += 1
    assert steps == 8
    for table, mine in zip(theirs.histories, ours.history.tables, strict=True):
        torch.testing.assert_close(table, mine.rows, rtol=1e-4, atol=1e-5)
    for table, mine in zip(theirs.gradients, ours.history.kinds[GRADIENT], strict=True):
        assert mine.rows.abs().sum() > 0
        torch.testing.assert_close(table, mine.rows, rtol=1e-3, atol=1e-6)


def test_lmc_reads_the_tables(tmp_path: Path) -> None:
    """Both tables have a weight with 0.9 and linear, and none with the authors' setting for arxiv."""
    for beta, score, reads in ((0.9, "linear", True), (1.0, "const", False)):
        for tables in ("histories", "gradients"):
            results = []
            for factor in (1.0, 2.0):
                _, theirs = lmc(tmp_path, beta=beta, score=score)
                theirs.epoch(0)
                for table in getattr(theirs, tables):
                    table.mul_(factor)
                theirs.model.train()
                theirs.step(theirs.subgraph(theirs.batches.epoch(1)[0]))
                results.append(theirs.model.convs[0].lin.weight.grad)
            assert torch.equal(*results) != reads, tables


def test_fixed_batches_are_cut_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path, "lmc-coded")
    graph, ptr = clustered(config)
    model = lmc_pipeline.GCN(graph.num_features, 16, graph.num_classes or 0, 3, dropout=0.5, batch_norm=True)
    model.joint_norm = True
    theirs = LMC(graph, ptr, 2, model, lr=0.01, fixed=True, product="matmul")
    theirs.fill()
    monkeypatch.setattr(LMC, "subgraph", lambda *arguments: pytest.fail("a batch is cut again"))
    first = theirs.epoch(1)
    assert len(first) == 4
    for epoch in range(2, 30):
        last = theirs.epoch(epoch)
    assert sum(last) < sum(first)


def test_a_joint_norm_is_over_batch_and_halo(tmp_path: Path) -> None:
    _, theirs = lmc(tmp_path, beta=1.0, score="const", batch_norm=True)
    model: Any = theirs.model
    model.train()
    subgraph = theirs.subgraph(theirs.batches.epoch(0)[0])
    with torch.no_grad():
        moved = model.bns[0](subgraph.adj @ subgraph.x @ model.convs[0].lin.weight.t()).relu_()
        model.joint_norm = True
        seen = []
        model.activate = lambda layer, h: seen.append(type(model).activate(model, layer, h)) or seen[-1]
        theirs.logits(subgraph)
    torch.testing.assert_close(seen[0], moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("products", [("matmul", "matmul"), ("reduce", "reduce")])
@pytest.mark.parametrize("norm", [False, True])
def test_vrgcn_steps_are_ours_on_the_same_sample(
    tmp_path: Path, norm: bool, products: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, "vrgcn", batch_nodes=40, fanout="3", batch_norm=norm, lr=0.002)
    ours = Trainer(config, load_data(config))
    graph, _ = clustered(config)
    theirs = VRGCN(
        graph, 40, network(pygas_models.GCN, config, graph, ours.model), lr=config.lr, fanout=3, products=products
    )
    drawn: list[Any] = []
    sampling = sample.sample_neighbours
    monkeypatch.setattr(
        sample, "sample_neighbours", lambda *a, **o: drawn.append((a[1], *sampling(*a, **o))) or drawn[-1][1:]
    )

    def replayed(rows: Tensor) -> tuple[Tensor, Tensor]:
        of, rowptr, edge = drawn.pop(0)
        assert torch.equal(rows, of)
        return rowptr, edge

    monkeypatch.setattr(theirs, "draw", replayed)
    ours.begin()
    theirs.fill()
    for table, mine in zip(theirs.histories, ours.history.tables, strict=True):
        torch.testing.assert_close(table, mine.rows, rtol=1e-4, atol=1e-5)
        mine.rows.mul_(1.3)  # not exact: else the forward does not depend on the sample
        table.copy_(mine.rows)
    ours.model.train()
    theirs.model.train()
    for batch in list(ours.method.batches(1))[:3]:
        (loss,) = ours.update([batch])
        assert len(drawn) == 2
        assert theirs.step(batch.rows) == pytest.approx(float(loss), rel=1e-4)
        same_gradients(ours.model, theirs.model)
        theirs.model.load_state_dict(ours.model.state_dict(), strict=False)
    for table, mine in zip(theirs.histories, ours.history.tables, strict=True):
        torch.testing.assert_close(table, mine.rows, rtol=1e-4, atol=1e-5)


def test_vrgcn_draws_uniformly_without_replacement(tmp_path: Path) -> None:
    config = settings(tmp_path, "vrgcn")
    graph, _ = clustered(config)
    made = VRGCN(graph, 40, pygas_models.GCN(graph.num_features, 8, graph.num_classes or 0, 3), lr=0.01, fanout=3)
    nodes, rowptr = torch.arange(graph.num_nodes), made.graph.rowptr
    degree, counts = rowptr.diff(), torch.zeros(made.graph.col.numel())
    draws = 2000
    for _ in range(draws):
        pointers, edge = made.draw(nodes)
        assert torch.equal(pointers.diff(), degree.clamp(max=3)) and len(edge.unique()) == len(edge)
        counts[edge] += 1
    row = torch.repeat_interleave(nodes, degree)
    assert torch.equal(torch.bucketize(edge, rowptr, right=True) - 1, torch.repeat_interleave(nodes, pointers.diff()))
    p = (3 / degree[row]).clamp(max=1)
    error = (counts / draws - p) / (p * (1 - p) / draws).sqrt().clamp_min(1e-9)
    assert error.abs().max() < 5 and (error.square().sum() / (p < 1).sum()).sqrt() < 1.1


def test_vrgcn_epochs_learn(tmp_path: Path) -> None:
    config = settings(tmp_path, "vrgcn")
    graph, _ = clustered(config)
    model = pygas_models.GCN(graph.num_features, 16, graph.num_classes or 0, 3, dropout=0.5, batch_norm=True)
    made = VRGCN(graph, 40, model, lr=0.01, fanout=3)
    made.fill()
    first = made.epoch(0)
    assert len(first) == -(-len(made.training) // 40)
    for epoch in range(1, 20):
        last = made.epoch(epoch)
    assert sum(last) < sum(first)
