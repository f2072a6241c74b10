"""On a GPU: the same losses as on a CPU, streams and all, and a step in which nobody waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rest_triton.nn.scene import Scene

from rest_triton.history.history import History
from rest_triton.history.streams import CudaStreams
from rest_triton.methods.engine import Engine

from .runs import MODELS, NODES, Run, graph

pytestmark = pytest.mark.gpu


def on_gpu(model: str, **store: object) -> Run:
    run = Run(model)
    run.graph = graph()
    run.model.cuda()
    assert isinstance(run.graph.x, torch.Tensor)
    run.store = History(NODES, run.model.widths, device="cuda", **store)
    run.engine = Engine(Scene(run.graph.adjacency("gcn").to("cuda"), run.graph.x.cuda(), run.store, seed=7), run.model)
    run.optimizer = torch.optim.Adam(run.model.parameters(), lr=0.02)
    for batches in (run.batches, run.refresh_batches):
        batches.device = torch.device("cuda")
    assert run.graph.y is not None and run.graph.train_mask is not None
    run.graph = replace(run.graph, y=run.graph.y.cuda(), train_mask=run.graph.train_mask.cuda())
    run.engine.fill()
    return run


@pytest.mark.parametrize("place", ["device", "pinned", "disk"])
@pytest.mark.parametrize(("method", "frequency"), [("gas", 0), ("rest", 1), ("rest", 3), ("is", 1), ("is", 3)])
@pytest.mark.parametrize("model", MODELS)
def test_losses_as_on_a_cpu(model: str, method: str, frequency: int, place: str, tmp_path: Path) -> None:
    options = dict(place=place) | (dict(folder=tmp_path / "tables") if place == "disk" else {})
    run = on_gpu(model, **options)
    assert isinstance(run.store.streams, CudaStreams)
    got = torch.tensor(run.losses(10, method, frequency))
    run.store.close()
    torch.testing.assert_close(got, torch.tensor(Run(model).losses(10, method, frequency)), rtol=1e-3, atol=1e-3)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize("model", ["gcn", "appnp", "gcnii"])
def test_no_step_waits_for_the_device(model: str, place: str) -> None:
    run = on_gpu(model, place=place)
    adj = run.engine.scene.adj
    batch, other = (b.epoch(0)[0].with_halo(adj) for b in (run.batches, run.refresh_batches))
    assert run.graph.y is not None
    y = batch.take(run.graph.y)
    for number in (1, 2):  # the first one allocates
        with no_waiting() if number == 2 else nullcontext():
            run.engine.step(batch, number, lambda logits: F.cross_entropy(logits, y), run.optimizer, refresh=[other])
