"""Who computes an op: the kernels of the tensors' device, the plain-torch definitions, or Triton by force.

Two switches, both scoped: ``use_backend`` and ``debug``.
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

    ``"kernel"`` (the default) takes the fast kernels of the device, ``"torch"`` the plain-torch definitions: slow, readable,
    differentiated by torch itself, for debugging and comparison. ``"triton"`` takes the Triton kernels also for tensors in
    ordinary memory, which only Triton's interpreter can do (``TRITON_INTERPRET=1`` before the first import of triton).

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
    """Check the values of all indices inside the block, not only shapes and dtypes. Costs about as much as the ops do.

    ``REST_TRITON_DEBUG=1`` in the environment turns it on for the whole process.
    """
    global _debug
    before, _debug = _debug, enabled
    try:
        yield
    finally:
        _debug = before


def runs_definition() -> bool:
    """Whether ops are computed by their definitions now."""
    return _backend == "torch"


def debugging() -> bool:
    """Whether the values of indices are to be checked."""
    return _debug


def kernels(device: torch.device) -> ModuleType:
    """The launchers for tensors on this device, imported when first needed: neither Numba nor Triton needs the other."""
    on_gpu = device.type == "cuda" or _backend == "triton"
    return importlib.import_module("rest_triton.kernels.gpu" if on_gpu else "rest_triton.kernels.cpu")


def splits_hubs(device: torch.device) -> bool:
    """Whether the kernels of this device want to know the long rows of the graph."""
    return device.type == "cuda" or _backend == "triton"
