"""Features and their aggregate in other places and formats: losses are bitwise those of the device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton.config import Config
from rest_triton.nn import inputs
from rest_triton.ops import history_spmm
from rest_triton.utils.errors import UserError

from ..history.runs import MODELS, NODES, Run, same_results

OPTIONS: dict[str, dict[str, Any]] = {
    "gas+rest": {}, "gas+rest-is": {}, "lmc+rest": {}, "graphfm": dict(push_momentum=0.3), "mvs": {}, "vrgcn": {},
    "sage": {}, "ladies": {}, "cluster": {}, "saint-node": {}, "full": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PIECE_ROWS", 50)


@pytest.mark.parametrize("model", MODELS)
def test_models_on_disk(model: str, tmp_path: Path) -> None:
    """Also with dropout of edges, for which neighbours' features are read in each step."""
    for more in ({}, dict(edge_dropout=0.3, directed=True)) if model not in ("gat", "pna") else ({},):
        here = Run(model, method="gas+rest", **more)
        far = Run(model, method="gas+rest", features="disk", folder=tmp_path / str(len(more)), **more)
        assert not far.engine.inputs.features.in_place and here.engine.inputs.features.in_place
        assert far.losses(6) == here.losses(6) and same_results(far, here)
        assert far.trainer.evaluate(error=True) == here.trainer.evaluate(error=True)


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("model", ["gcn", "gcn-norm", "gcnii"])
def test_methods_on_disk(model: str, method: str, tmp_path: Path) -> None:
    here = Run(model, method=method, **OPTIONS[method])
    far = Run(model, method=method, features="disk", folder=tmp_path, **OPTIONS[method])
    assert far.losses(6) == here.losses(6) and same_results(far, here)
    assert torch.equal(far.engine.exact(), here.engine.exact())


def test_a_second_run_reads_the_files_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run("gcn", features="disk", folder=tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.rows")) == ["aggregated-gcn-float32.rows", "features-float32.rows"]
    monkeypatch.setattr("rest_triton.nn.inputs.history_spmm", lambda *arguments: pytest.fail("it is computed again"))
    second = Run("gcn", features="disk", folder=tmp_path)
    assert torch.equal(first.engine.inputs.aggregated().rows, second.engine.inputs.aggregated().rows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_rows_are_the_same_in_every_place(dtype: str, tmp_path: Path) -> None:
    runs = [
        Run("gcn-norm", features=place, feature_dtype=dtype, folder=tmp_path / place)
        for place in ("device", "pinned", "disk")
    ]
    made = runs[0].engine.inputs
    kind = getattr(torch, dtype)
    assert made.features.rows.dtype == made.aggregated().rows.dtype == kind
    exact = history_spmm(made.adj, torch.arange(NODES), made.outside(), None, made.features.rows)
    assert torch.equal(made.aggregated().rows, exact.to(kind))
    losses = [run.losses(6) for run in runs]
    assert losses[0] == losses[1] == losses[2]
    exact_losses = Run("gcn-norm").losses(6)
    assert losses[0] != exact_losses and losses[0] == pytest.approx(exact_losses, rel=2e-2)


def test_float16_features_are_not_widened(tmp_path: Path) -> None:
    x = torch.randn(NODES, 12).half()
    run = Run("gcn", x=x, features="disk", folder=tmp_path)
    assert torch.equal(run.engine.inputs.features.rows, x)
    assert run.engine.inputs.aggregated().rows.dtype == torch.float32


def test_sgc_is_refused() -> None:
    with pytest.raises(
        UserError, match="features is disk in float32, but sgc aggregates them on the device in float32; give"
    ):
        Config(dataset="small", method="sgc", features="disk")
