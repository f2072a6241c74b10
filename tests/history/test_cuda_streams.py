"""CudaStreams with stand-ins for torch's CUDA objects: which stream work is given to. No GPU is needed."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rest_triton.history.streams import COMPUTE, REFRESH, CudaStreams, Resource


class Stream:
    def __init__(self, device: Any = None, name: str = "") -> None:
        self.name, self.waits = name, list[Any]()

    def wait_stream(self, other: "Stream") -> None:
        self.waits.append(other)

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)


def test_compute_follows_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made inside ``torch.cuda.stream(a)`` and used inside ``torch.cuda.stream(b)``: work runs on b, after a's."""
    first, second = Stream(name="first"), Stream(name="second")
    now = SimpleNamespace(stream=first)

    @contextmanager
    def stream(chosen: Stream) -> Any:
        before, now.stream = now.stream, chosen
        yield
        now.stream = before

    class Event:
        def record(self, on: Stream) -> None:
            self.on = on

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: now.stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    streams, weights = CudaStreams(torch.device("cuda")), Resource("weights")
    ran = []
    streams.submit(COMPUTE, lambda: ran.append(now.stream.name), writes=[weights])
    now.stream = second
    streams.submit(COMPUTE, lambda: ran.append(now.stream.name), writes=[weights])
    streams.submit(REFRESH, lambda: ran.append(now.stream.name), reads=[weights])
    assert ran == ["first", "second", ""] and second.waits == [first]
    (waited,) = streams.streams[REFRESH].waits
    assert waited.on is second
