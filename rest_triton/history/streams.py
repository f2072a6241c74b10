"""Where work runs, and what it waits for.

A stream is a place where work runs in the order in which it was submitted: a CUDA stream, the calling thread, or a thread
that writes to disk. Streams run beside each other. What several of them use, a table or a buffer, has a :class:`Resource`:
it remembers the last work that wrote it, and the work that has read it since. Work is submitted with the resources that it
reads and writes, and its stream first waits

    for a resource that it reads:   the last write
    for a resource that it writes:  the last write, and every read since
    for a tensor handed to it:   what the submitting stream has done so far

by events, in both directions. No stream waits for a whole device, and between CUDA streams the host waits for nobody.
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
    """A moment in the order of a stream: all that was submitted to it before has been done."""

    stream: str
    handle: Any = None


@dataclass(eq=False)
class Resource:
    """What is known about the use of a thing that several streams use."""

    name: str
    written: Event | None = None
    read: dict[str, Event] = field(default_factory=dict)  # by stream: a stream's last read comes after its earlier ones


class Streams(ABC):
    """Submitting work. Subclasses say what an event is, and what waiting for one."""

    def __init__(self) -> None:
        self.current = COMPUTE

    @abstractmethod
    def _mark(self) -> Event:
        """An event after all that the current stream has been given so far."""

    @abstractmethod
    def _wait(self, event: Event) -> None:
        """Nothing that the current stream is given from now on begins before the event."""

    @abstractmethod
    def _record_stream(self, tensor: Tensor) -> None:
        """The current stream uses a tensor of another one: its memory is not given away before it has."""

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """Whatever is done in the block is given to ``stream``."""
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
        """Give ``work`` to a stream, after all that it depends on; returns what it returns.

        Args:
            reads, writes: the resources of what it reads and writes.
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
            finally:  # also what failed half-way may have begun something
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
        """Give ``work`` to the thread that writes to disk, where there is one."""
        self.submit(WRITER, work, reads=reads, writes=writes)

    def finish(self) -> None:  # noqa: B027 (where everything runs at once there is nothing to finish)
        """The host waits until all work that was submitted is done: for checkpoints and for the end, never in a step. What
        failed in another thread fails here."""


class SyncStreams(Streams):
    """On a CPU: everything runs at once where it is submitted, and is done when ``submit`` returns. Work for later goes to a
    thread, through a queue that holds a few pieces of work: a disk that cannot keep up slows training down, and does not
    fill the memory."""

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
        """Runs after all work for later that was given before. Reads and writes of the calling thread are over already."""
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
                if self._failure is None:  # what follows a failed write could only make it worse
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
    """On a GPU: a stream for each stream, events between them."""

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
        """Compute on the caller's current CUDA stream, which may be another one than before."""
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
            self._writer._wait(event)  # a thread cannot be waited for by a stream: the host does
        else:
            self.streams[self.current].wait_event(event.handle)

    def _record_stream(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(self.streams[self.current])

    def submit_io(
        self, work: Callable[[], None], *, reads: Sequence[Resource] = (), writes: Sequence[Resource] = ()
    ) -> None:
        """The thread waits for the streams that it depends on; the host goes on."""
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
