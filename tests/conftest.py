"""Fixtures of all tests: Triton's interpreter if there is no GPU, and NaN in memory that is not written."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # decides how kernels are decorated: before triton is imported

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CUDA = torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not CUDA:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


def _poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("rest_triton.") and not isinstance(tensor, torch._subclasses.FakeTensor):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0x55)
        return tensor

    return poisoned


@pytest.fixture(autouse=True)
def poison_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, so that a row which no kernel writes makes a test fail."""
    monkeypatch.setattr(torch, "empty", _poisoning(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _poisoning(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", _poisoning(torch.Tensor.new_empty))


PLACES = [
    pytest.param(("cpu", "kernel"), id="cpu"),
    pytest.param(
        ("cpu", "triton"),
        id="interpreter",
        marks=[
            pytest.mark.skipif(CUDA, reason="if there is a GPU, Triton's kernels are compiled for it, not interpreted"),
            pytest.mark.thorough,
        ],
    ),
    pytest.param(("cuda", "kernel"), id="gpu", marks=pytest.mark.gpu),
]
COMPILED = [PLACES[0], PLACES[2]]  # for what cannot go wrong in an interpreter, such as threads


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each backend in turn: the device to put tensors on, with the backend switched on."""
    from rest_triton.ops import use_backend

    device, backend = request.param
    with use_backend(backend):
        yield torch.device(device)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads and restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
