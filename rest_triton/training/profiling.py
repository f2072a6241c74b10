"""A trace of training for torch's profiler."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


@contextmanager
def profiled(path: Path, wanted: bool) -> Iterator[None]:
    """Write what runs in the block to ``path``, for chrome://tracing or Perfetto, if that is wanted."""
    if not wanted:
        yield
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it tells the terminal when it starts and stops
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities, record_shapes=False) as trace:
        yield
    trace.export_chrome_trace(str(path))
