"""Where work runs, and what it waits for.

A lane is a place where work runs in the order in which it was submitted: a CUDA stream, the calling thread, or a thread that
writes to disk. Lanes run beside each other. What several of them use, a table or a buffer, has a :class:`Guard`: it
remembers the last work that wrote it, and the work that has read it since. Work is submitted with the guards that it reads
and writes, and its lane first waits

    for a guard that it reads:   the last write
    for a guard that it writes:  the last write, and every read since
    for a tensor handed to it:   what the submitting lane has done so far

by events, in both directions. No lane waits for a whole device, and between CUDA streams the host waits for nobody.
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
    """A moment in the order of a lane: all that was submitted to it before has been done."""

    lane: str
    handle: Any = None


@dataclass(eq=False)
class Guard:
    """What is known about the use of a thing that several lanes use."""

    name: str
    written: Event | None = None
    read: dict[str, Event] = field(default_factory=dict)  # by lane: a lane's last read comes after its earlier ones


class Lanes(ABC):
    """Submitting work. Subclasses say what an event is, and what waiting for one."""

    def __init__(self) -> None:
        self.current = COMPUTE

    @abstractmethod
    def _mark(self) -> Event:
        """An event after all that the current lane has been given so far."""

    @abstractmethod
    def _wait(self, event: Event) -> None:
        """Nothing that the current lane is given from now on begins before the event."""

    @abstractmethod
    def _keep(self, tensor: Tensor) -> None:
        """The current lane uses a tensor of another one: its memory is not given away before it has."""

    @contextmanager
    def on(self, lane: str) -> Iterator[None]:
        """Whatever is done in the block is given to ``lane``."""
        before, self.current = self.current, lane
        try:
            yield
        finally:
            self.current = before

    def submit(
        self,
        lane: str,
        work: Callable[[], T],
        *,
        reads: Sequence[Guard] = (),
        writes: Sequence[Guard] = (),
        takes: Sequence[Tensor] = (),
    ) -> T:
        """Give ``work`` to a lane, after all that it depends on; returns what it returns.

        Args:
            reads, writes: the guards of what it reads and writes.
            takes: tensors of the submitting lane that it uses.

        Example::

            lanes.submit(IO, lambda: table.copy_(h), writes=[guard], takes=[h])
        """
        handed = self._mark() if takes and lane != self.current else None
        with self.on(lane):
            self._wait_for(lane, reads, writes)
            if handed is not None:
                self._wait(handed)
                for tensor in takes:
                    self._keep(tensor)
            try:
                return work()
            finally:  # also what failed half-way may have begun something
                self._remember(self._mark(), reads, writes)

    def _wait_for(self, lane: str, reads: Sequence[Guard], writes: Sequence[Guard]) -> None:
        for guard in reads:
            if guard.written is not None and guard.written.lane != lane:
                self._wait(guard.written)
        for guard in writes:
            if guard.written is not None and guard.written.lane != lane:
                self._wait(guard.written)
            for event in guard.read.values():
                if event.lane != lane:
                    self._wait(event)

    @staticmethod
    def _remember(done: Event, reads: Sequence[Guard], writes: Sequence[Guard]) -> None:
        for guard in reads:
            guard.read[done.lane] = done
        for guard in writes:
            guard.written, guard.read = done, {}

    def later(self, work: Callable[[], None], *, reads: Sequence[Guard] = (), writes: Sequence[Guard] = ()) -> None:
        """Give ``work`` to the thread that writes to disk, where there is one."""
        self.submit(WRITER, work, reads=reads, writes=writes)

    def finish(self) -> None:  # noqa: B027 (where everything runs at once there is nothing to finish)
        """The host waits until all work that was submitted is done: for checkpoints and for the end, never in a step. What
        failed in another thread fails here."""


class InOrder(Lanes):
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

    def _keep(self, tensor: Tensor) -> None:
        pass

    def later(self, work: Callable[[], None], *, reads: Sequence[Guard] = (), writes: Sequence[Guard] = ()) -> None:
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


class Streams(Lanes):
    """On a GPU: a stream for each lane, events between them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        compute = torch.cuda.current_stream(device)
        self.streams = {COMPUTE: compute, REFRESH: torch.cuda.Stream(device), IO: torch.cuda.Stream(device)}
        self._writer = InOrder()

    @contextmanager
    def on(self, lane: str) -> Iterator[None]:
        with super().on(lane), torch.cuda.stream(self.streams[lane]):
            yield

    def _mark(self) -> Event:
        event = torch.cuda.Event()
        event.record(self.streams[self.current])
        return Event(self.current, event)

    def _wait(self, event: Event) -> None:
        if event.lane == WRITER:
            self._writer._wait(event)  # a thread cannot be waited for by a stream: the host does
        else:
            self.streams[self.current].wait_event(event.handle)

    def _keep(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(self.streams[self.current])

    def later(self, work: Callable[[], None], *, reads: Sequence[Guard] = (), writes: Sequence[Guard] = ()) -> None:
        """The thread waits for the streams that it depends on; the host goes on."""
        before = [
            e for guard in (*reads, *writes) for e in (guard.written, *(guard.read.values() if guard in writes else ()))
        ]
        events = [e.handle for e in before if e is not None and e.lane != WRITER]

        def after_streams() -> None:
            for event in events:
                event.synchronize()
            work()

        self._writer.later(after_streams, reads=reads, writes=writes)

    def finish(self) -> None:
        self._writer.finish()
        for stream in self.streams.values():
            stream.synchronize()


def lanes_for(device: torch.device) -> Lanes:
    return Streams(device) if device.type == "cuda" else InOrder()
