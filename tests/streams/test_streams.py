"""Streams on a CPU: everything in order, and a thread for what can be done later."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from rest_triton.history.streams import COMPUTE, IO, REFRESH, WRITER, Resource, SyncStreams, streams_for

SOON = 10.0  # seconds: never reached, unless something is broken
NOT_YET = 0.1


@pytest.fixture
def streams() -> Iterator[SyncStreams]:
    streams = SyncStreams()
    yield streams
    if streams._failure is None:
        streams.finish()


@pytest.fixture
def held(streams: SyncStreams) -> Iterator[threading.Event]:
    """Nothing that is given to the thread is done before this is set."""
    release = threading.Event()
    streams.submit_io(lambda: not_none(release.wait(SOON)))
    yield release
    release.set()


def not_none(value: bool) -> None:
    assert value, "the thread was not let go on"


def in_thread(work: Callable[[], object]) -> threading.Event:
    """Begins work elsewhere; set when it is done."""
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set()), daemon=True).start()
    return done


def fail() -> None:
    raise OSError("disk full")


def test_a_cpu_works_in_order() -> None:
    assert isinstance(streams_for(torch.device("cpu")), SyncStreams)


def test_submitted_work_is_done_at_once(streams: SyncStreams) -> None:
    resource, seen = Resource("table"), []

    def work() -> str:
        seen.append((streams.current, threading.current_thread()))
        return streams.submit(REFRESH, lambda: streams.current, inputs=[torch.ones(1)])

    assert streams.submit(IO, work, reads=[resource], writes=[resource]) == REFRESH
    assert seen == [(IO, threading.current_thread())] and streams.current == COMPUTE


def test_failing_work_leaves_the_stream(streams: SyncStreams) -> None:
    with pytest.raises(OSError, match="disk full"):
        streams.submit(IO, fail)
    assert streams.current == COMPUTE


def test_guards_remember_the_last_write_and_the_reads_since(streams: SyncStreams) -> None:
    resource = Resource("table")
    streams.submit(IO, lambda: None, reads=[resource])
    assert resource.written is None and resource.read.keys() == {IO}
    streams.submit(REFRESH, lambda: None, writes=[resource])
    assert resource.written is not None and resource.written.stream == REFRESH and resource.read == {}
    streams.submit(COMPUTE, lambda: None, reads=[resource])
    streams.submit_io(lambda: None, reads=[resource])
    assert resource.read.keys() == {COMPUTE, WRITER}


def test_later_work_is_done_in_order_by_one_thread(streams: SyncStreams) -> None:
    done: list[tuple[int, threading.Thread]] = []
    for n in range(20):
        streams.submit_io(lambda n=n: done.append((n, threading.current_thread())))
    streams.finish()
    assert [n for n, _ in done] == list(range(20))
    assert len({thread for _, thread in done}) == 1 and done[0][1] is not threading.current_thread()


def test_finishing_can_be_repeated(streams: SyncStreams) -> None:
    streams.finish()
    done: list[int] = []
    for n in range(2):
        streams.submit_io(lambda n=n: (time.sleep(NOT_YET), done.append(n))[1])
        streams.finish()
        streams.finish()
        assert done == list(range(n + 1)) and streams._thread is None


def test_a_full_queue_holds_the_caller_up(streams: SyncStreams, held: threading.Event) -> None:
    done: list[int] = []
    for n in range(SyncStreams.PENDING):
        streams.submit_io(lambda n=n: done.append(n))  # beside the one that the thread is at
    one_more = in_thread(lambda: streams.submit_io(lambda: done.append(SyncStreams.PENDING)))
    assert not one_more.wait(NOT_YET) and done == []
    held.set()
    assert one_more.wait(SOON)
    streams.finish()
    assert done == list(range(SyncStreams.PENDING + 1))


USES: dict[str, tuple[dict[str, int], dict[str, int], bool]] = {
    "a read waits for a write": ({"writes": 0}, {"reads": 0}, True),
    "a write waits for a read": ({"reads": 0}, {"writes": 0}, True),
    "a write waits for a write": ({"writes": 0}, {"writes": 0}, True),
    "a read waits for no read": ({"reads": 0}, {"reads": 0}, False),
    "no wait for another table": ({"writes": 0}, {"writes": 1}, False),
    "no wait without a resource": ({"writes": 0}, {}, False),
}


@pytest.mark.parametrize("use", USES)
def test_waiting_for_later_work(streams: SyncStreams, held: threading.Event, use: str) -> None:
    later, now, waits = USES[use]
    resources, order = [Resource("table"), Resource("another")], []
    streams.submit_io(lambda: order.append("later"), **{name: [resources[n]] for name, n in later.items()})
    done = in_thread(
        lambda: streams.submit(IO, lambda: order.append("now"), **{name: [resources[n]] for name, n in now.items()})
    )
    assert done.wait(NOT_YET if waits else SOON) != waits
    held.set()
    assert done.wait(SOON)
    streams.finish()
    assert order == (["later", "now"] if waits else ["now", "later"])


def test_a_failure_in_the_thread_surfaces_at_every_call(streams: SyncStreams) -> None:
    """It surfaces wherever the caller comes by next, again and again; nothing is written after it."""
    resource, after = Resource("table"), []
    release = threading.Event()
    streams.submit_io(lambda: not_none(release.wait(SOON)))
    streams.submit_io(fail, writes=[resource])
    streams.submit_io(lambda: after.append(1), reads=[resource])
    release.set()
    with pytest.raises(RuntimeError, match="writing to disk failed: disk full; what is on disk is not to be used") as caught:
        streams.submit(COMPUTE, lambda: after.append(2), reads=[resource])
    assert isinstance(caught.value.__cause__, OSError) and streams.current == COMPUTE
    with pytest.raises(RuntimeError, match="disk full"):
        streams.submit_io(lambda: after.append(3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="disk full"):
            streams.finish()
    assert after == [] and streams._thread is None


def test_a_failure_surfaces_in_the_end(streams: SyncStreams) -> None:
    streams.submit_io(fail)
    with pytest.raises(RuntimeError, match="disk full"):
        streams.finish()


def test_a_failure_does_not_leave_the_caller_at_a_full_queue(streams: SyncStreams) -> None:
    release = threading.Event()
    streams.submit_io(lambda: not_none(release.wait(SOON)))
    streams.submit_io(fail)
    for _ in range(SyncStreams.PENDING - 1):
        streams.submit_io(lambda: None)
    at_queue = in_thread(lambda: streams.submit_io(lambda: None))
    assert not at_queue.wait(NOT_YET)
    release.set()
    assert at_queue.wait(SOON)
    with pytest.raises(RuntimeError, match="disk full"):
        streams.finish()
