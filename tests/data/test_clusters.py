"""load_data: the data of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_triton.config import Config
from rest_triton.data import kaminpar, partitioners
from rest_triton.data.clusters import load_data
from rest_triton.utils.errors import UserError

from .test_convert import fields


def config(root: Path, **arrays: Any) -> Config:
    np.savez(root / "mine.npz", **fields(**arrays))
    return Config(dataset=str(root / "mine.npz"), root=str(root), num_parts=4, batch_size=2, device="cpu")


def test_the_partition_is_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioners, "AUTO", ("kaminpar", "metis"))
    monkeypatch.setattr(kaminpar, "why_not", lambda *_: "it is too large")
    data = load_data(config(tmp_path))
    summary = data.partition_summary
    why = "KaMinPar cannot divide mine: it is too large"
    assert (summary["asked"], summary["method"], summary["fallback"]) == ("auto", "metis", why)
    assert (summary["num_parts"], summary["num_nodes"]) == (4, 40) and 0 <= summary["cut"] <= 1 <= summary["balance"]
    assert json.loads(json.dumps(summary)) == summary and f"({why})" in data.about


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(x=None), "has no features; training needs"),
        (dict(y=None, train_mask=None), "has no labels and no train_mask"),
        (dict(val_mask=np.zeros(40, bool)), "val_mask of .* selects no node"),
    ],
)
def test_a_data_set_that_cannot_be_trained_on(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_data(config(tmp_path, **arrays))
