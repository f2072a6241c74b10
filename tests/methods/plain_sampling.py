"""Neighbour sampling without tables, as a method: what methods that sample are without what they add."""

import pytest

from rest_triton.config import Config
from rest_triton.history.history import INPUT
from rest_triton.methods.engine import Engine
from rest_triton.methods.registry import METHODS
from rest_triton.methods.sampled.base import SampledMethod
from rest_triton.nn import HistoryGNN

from ..history.runs import Run


class PlainSampling(SampledMethod):
    """Nothing is kept. A first layer whose input is recomputed for the halo reads all neighbours, as in all methods."""

    fills = False

    def begin(self, engine: Engine, step: int) -> None:
        pass

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        return {INPUT: []}


def plain(model: str, method: str, **options: object) -> Run:
    """A run by this instead of ``method``, of which it has the settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, Config(dataset="small", method=method).base, PlainSampling)
        return Run(model, method=method, **options)  # type: ignore[arg-type]
