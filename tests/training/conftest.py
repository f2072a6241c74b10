"""Tiny tensors on one thread (see tests/one_thread.py), and what tests of resuming share."""

import pytest

from rest_triton.training import run as session

from ..one_thread import on_one_thread
from .resuming import Data

__all__ = ["on_one_thread"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data.make(tmp_path_factory.mktemp("data"))


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave reports out of runs that are only compared."""
    monkeypatch.setattr(session, "write_report", lambda path: None)
