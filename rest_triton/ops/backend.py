"""The choice of an op's implementation: the kernels of the tensors' device, the plain-torch definitions, or Triton.

Two context managers, ``use_backend`` and ``debug``, hold for the block that they open.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

BACKENDS = ("kernel", "torch", "triton")

_backend = "kernel"
_debug = os.environ.get("REST_TRITON_DEBUG", "0") not in ("", "0")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run all ops inside the block by another backend.

    ``"kernel"``, the default: the fast kernels of the device. ``"torch"``: the plain-torch definitions, which are slow and
    differentiated by torch, for debugging and comparison. ``"triton"``: the Triton kernels, also for tensors in host
    memory. That needs Triton's interpreter: set ``TRITON_INTERPRET=1`` before the first import of triton.

        with use_backend("torch"):
            expected = history_spmm(adj, rows, position, x, history)
    """
    global _backend
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; it can be {', '.join(map(repr, BACKENDS))}")
    before, _backend = _backend, name
    try:
        yield
    finally:
        _backend = before


@contextmanager
def debug(enabled: bool = True) -> Iterator[None]:
    """Check the values of all indices inside the block, too. This takes about as long as the ops.

    ``REST_TRITON_DEBUG=1`` in the environment turns it on for the whole process.
    """
    global _debug
    before, _debug = _debug, enabled
    try:
        yield
    finally:
        _debug = before


def runs_definition() -> bool:
    """Whether ops are computed by their definitions."""
    return _backend == "torch"


def debugging() -> bool:
    """Whether the values of indices are checked."""
    return _debug


def kernels(device: torch.device) -> ModuleType:
    """The launchers for tensors on a device. They are imported on first use: Numba and Triton are both optional."""
    on_gpu = device.type == "cuda" or _backend == "triton"
    return importlib.import_module("rest_triton.kernels.gpu" if on_gpu else "rest_triton.kernels.cpu")


def splits_hubs(device: torch.device) -> bool:
    """Whether the kernels of a device split long rows, so that an adjacency must list them."""
    return device.type == "cuda" or _backend == "triton"
