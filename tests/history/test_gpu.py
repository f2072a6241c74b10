"""On a GPU: the same losses as on a CPU, streams and all, and a step in which the host waits for nothing."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from rest_triton.history.streams import CudaStreams

from .runs import MODELS, Run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("place", ["device", "pinned", "disk"])
@pytest.mark.parametrize(("method", "frequency"), [("gas", 1), ("gas+rest", 1), ("gas+rest", 3), ("gas+rest-is", 3)])
@pytest.mark.parametrize("model", MODELS)
def test_losses_as_on_a_cpu(model: str, method: str, frequency: int, place: str, tmp_path: Path) -> None:
    run = Run(model, method=method, frequency=frequency, device="cuda", history=place, folder=tmp_path / "tables")
    assert isinstance(run.history.streams, CudaStreams)
    got = torch.tensor(run.losses(10))
    run.trainer.close()
    expected = torch.tensor(Run(model, method=method, frequency=frequency).losses(10))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


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
    run = Run(model, method="gas+rest", device="cuda", history=place)
    engine = run.engine
    batch, other = (run.batch(*clusters).with_halo(engine.inputs.adj) for clusters in ((0, 3), (1, 2)))
    assert run.graph.y is not None
    y = batch.take(run.graph.y).cuda()
    for step in (1, 2):  # the first one allocates
        with no_waiting() if step == 2 else nullcontext():
            engine.refresh(other, step)
            engine.train(batch, step, lambda logits: F.cross_entropy(logits, y))
            engine.update(run.trainer.optimizer)
