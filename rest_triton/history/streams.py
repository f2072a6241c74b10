"""Streams: where work runs, and what it waits for.

A stream runs work in the order of its submission. It is a CUDA stream, the calling thread, or a thread that writes to disk.
Streams run concurrently. A table or buffer that several streams use has a :class:`Resource`. It stores the last work that
wrote it, and the work that has read it since. Work is submitted with the resources that it reads and writes. Its stream
first waits, by events,

    for a resource that it reads:   for the last write
    for a resource that it writes:  for the last write and every read since
    for a tensor among its inputs:  for all work on the submitting stream so far

No stream waits for a whole device. Between CUDA streams the host does not wait.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

COMPUTE, REFRESH, IO, WRITER = "compute", "refresh", "io", "writer"
T = TypeVar("T")


@dataclass(frozen=True)
class Event:
    """A point in the order of a stream, after all work that was submitted to it before."""

    stream: str
    handle: Any = None


@dataclass(eq=False)
class Resource:
    """The last uses of a table or buffer that several streams share."""

    name: str
    written: Event | None = None
    read: dict[str, Event] = field(default_factory=dict)  # the last read of each stream


class Streams(ABC):
    """The order of work. Subclasses implement events and waits."""

    def __init__(self) -> None:
        self.current = COMPUTE

    @abstractmethod
    def _mark(self) -> Event:
        """An event after all work on the current stream so far."""

    @abstractmethod
    def _wait(self, event: Event) -> None:
        """Delay all later work on the current stream until the event."""

    @abstractmethod
    def _record_stream(self, tensor: Tensor) -> None:
        """Keep the memory of another stream's tensor until the current stream has used it."""

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """Run the work of the block on ``stream``."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def submit(
        self,
        stream: str,
        work: Callable[[], T],
        *,
        reads: Sequence[Resource] = (),
        writes: Sequence[Resource] = (),
        inputs: Sequence[Tensor] = (),
    ) -> T:
        """Run ``work`` on a stream, after the work that it depends on. Returns its result.

        Args:
            reads, writes: the resources that it reads and writes.
            inputs: tensors of the submitting stream that it uses.

        Example::

            streams.submit(IO, lambda: table.copy_(h), writes=[resource], inputs=[h])
        """
        handed = self._mark() if inputs and stream != self.current else None
        with self.on(stream):
            self._wait_for(stream, reads, writes)
            if handed is not None:
                self._wait(handed)
                for tensor in inputs:
                    self._record_stream(tensor)
            try:
                return work()
            finally:  # also after an error: part of the work may have begun
                self._remember(self._mark(), reads, writes)

    def _wait_for(self, stream: str, reads: Sequence[Resource], writes: Sequence[Resource]) -> None:
        for resource in reads:
            if resource.written is not None and resource.written.stream != stream:
                self._wait(resource.written)
        for resource in writes:
            if resource.written is not None and resource.written.stream != stream:
                self._wait(resource.written)
            for event in resource.read.values():
                if event.stream != stream:
                    self._wait(event)

    @staticmethod
    def _remember(done: Event, reads: Sequence[Resource], writes: Sequence[Resource]) -> None:
        for resource in reads:
            resource.read[done.stream] = done
        for resource in writes:
            resource.written, resource.read = done, {}

    def submit_io(
        self, work: Callable[[], None], *, reads: Sequence[Resource] = (), writes: Sequence[Resource] = ()
    ) -> None:
        """Run ``work`` on the thread that writes to disk, if there is one."""
        self.submit(WRITER, work, reads=reads, writes=writes)

    def finish(self) -> None:  # noqa: B027 (streams that run work at once have nothing to finish)
        """Wait on the host until all submitted work is done, for a checkpoint or at the end, never in a step.

        An error of another thread is raised here.
        """


class SyncStreams(Streams):
    """Streams on a CPU: work runs in the calling thread and is done when ``submit`` returns.

    Only writes to disk go to a thread, through a queue of a few entries. A slow disk slows training down and does not fill
    the memory.
    """

    PENDING = 4

    def __init__(self) -> None:
        super().__init__()
        self._queue: queue.Queue[tuple[Callable[[], None], threading.Event] | None] = queue.Queue(self.PENDING)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def _mark(self) -> Event:
        return Event(self.current)

    def _wait(self, event: Event) -> None:
        if isinstance(event.handle, threading.Event):
            event.handle.wait()
            self._raise_failure()

    def _record_stream(self, tensor: Tensor) -> None:
        pass

    def submit_io(
        self, work: Callable[[], None], *, reads: Sequence[Resource] = (), writes: Sequence[Resource] = ()
    ) -> None:
        """Run ``work`` after all earlier work of the writer. Work of the calling thread is done already."""
        self._raise_failure()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="rest_triton writer", daemon=True)
            self._thread.start()
        done = threading.Event()
        self._remember(Event(WRITER, done), reads, writes)
        self._queue.put((work, done))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            try:
                if self._failure is None:  # nothing is written after a failed write
                    work()
            except BaseException as failure:
                self._failure = failure
            finally:
                done.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"writing to disk failed: {self._failure}; what is on disk is not to be used"
            ) from self._failure

    def finish(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._raise_failure()


class CudaStreams(Streams):
    """Streams on a GPU: CUDA streams, with CUDA events between them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        compute = torch.cuda.current_stream(device)
        self.streams = {COMPUTE: compute, REFRESH: torch.cuda.Stream(device), IO: torch.cuda.Stream(device)}
        self._writer = SyncStreams()

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        with super().on(stream), torch.cuda.stream(self.streams[stream]):
            yield

    def submit(self, stream: str, work: Callable[[], T], **options: Any) -> T:
        self._follow()
        return super().submit(stream, work, **options)

    def _follow(self) -> None:
        """Take the caller's current CUDA stream as the compute stream. It may have changed since the last call."""
        now = torch.cuda.current_stream(self.device)
        if self.current == COMPUTE and now != self.streams[COMPUTE]:
            now.wait_stream(self.streams[COMPUTE])
            self.streams[COMPUTE] = now

    def _mark(self) -> Event:
        event = torch.cuda.Event()
        event.record(self.streams[self.current])
        return Event(self.current, event)

    def _wait(self, event: Event) -> None:
        if event.stream == WRITER:
            self._writer._wait(event)  # the host waits: a CUDA stream cannot wait for a thread
        else:
            self.streams[self.current].wait_event(event.handle)

    def _record_stream(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(self.streams[self.current])

    def submit_io(
        self, work: Callable[[], None], *, reads: Sequence[Resource] = (), writes: Sequence[Resource] = ()
    ) -> None:
        """Run ``work`` on the writer thread. The thread waits for the streams that it depends on; the host does not."""
        before = [
            e
            for resource in (*reads, *writes)
            for e in (resource.written, *(resource.read.values() if resource in writes else ()))
        ]
        events = [e.handle for e in before if e is not None and e.stream != WRITER]

        def after_streams() -> None:
            for event in events:
                event.synchronize()
            work()

        self._writer.submit_io(after_streams, reads=reads, writes=writes)

    def finish(self) -> None:
        self._writer.finish()
        for cuda in self.streams.values():
            cuda.synchronize()


def streams_for(device: torch.device) -> Streams:
    return CudaStreams(device) if device.type == "cuda" else SyncStreams()
