"""Lanes on a CPU: everything in order, and a thread for what can be done later."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from rest_triton.history.streams import COMPUTE, IO, REFRESH, WRITER, Guard, InOrder, lanes_for

SOON = 10.0  # seconds: never reached, unless something is broken
NOT_YET = 0.1


@pytest.fixture
def lanes() -> Iterator[InOrder]:
    lanes = InOrder()
    yield lanes
    if lanes._failure is None:
        lanes.finish()


@pytest.fixture
def held(lanes: InOrder) -> Iterator[threading.Event]:
    """Nothing that is given to the thread is done before this is set."""
    release = threading.Event()
    lanes.later(lambda: not_none(release.wait(SOON)))
    yield release
    release.set()


def not_none(value: bool) -> None:
    assert value, "nobody let the thread go on"


def in_thread(work: Callable[[], object]) -> threading.Event:
    """Begins work elsewhere; set when it is done."""
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set()), daemon=True).start()
    return done


def fail() -> None:
    raise OSError("disk full")


def test_a_cpu_works_in_order() -> None:
    assert isinstance(lanes_for(torch.device("cpu")), InOrder)


def test_submitted_work_is_done_at_once(lanes: InOrder) -> None:
    guard, seen = Guard("table"), []

    def work() -> str:
        seen.append((lanes.current, threading.current_thread()))
        return lanes.submit(REFRESH, lambda: lanes.current, takes=[torch.ones(1)])

    assert lanes.submit(IO, work, reads=[guard], writes=[guard]) == REFRESH
    assert seen == [(IO, threading.current_thread())] and lanes.current == COMPUTE


def test_failing_work_leaves_the_lane(lanes: InOrder) -> None:
    with pytest.raises(OSError, match="disk full"):
        lanes.submit(IO, fail)
    assert lanes.current == COMPUTE


def test_guards_remember_the_last_write_and_the_reads_since(lanes: InOrder) -> None:
    guard = Guard("table")
    lanes.submit(IO, lambda: None, reads=[guard])
    assert guard.written is None and guard.read.keys() == {IO}
    lanes.submit(REFRESH, lambda: None, writes=[guard])
    assert guard.written is not None and guard.written.lane == REFRESH and guard.read == {}
    lanes.submit(COMPUTE, lambda: None, reads=[guard])
    lanes.later(lambda: None, reads=[guard])
    assert guard.read.keys() == {COMPUTE, WRITER}


def test_later_work_is_done_in_order_by_one_thread(lanes: InOrder) -> None:
    done: list[tuple[int, threading.Thread]] = []
    for n in range(20):
        lanes.later(lambda n=n: done.append((n, threading.current_thread())))
    lanes.finish()
    assert [n for n, _ in done] == list(range(20))
    assert len({thread for _, thread in done}) == 1 and done[0][1] is not threading.current_thread()


def test_finishing_can_be_repeated(lanes: InOrder) -> None:
    lanes.finish()
    done: list[int] = []
    for n in range(2):
        lanes.later(lambda n=n: (time.sleep(NOT_YET), done.append(n))[1])
        lanes.finish()
        lanes.finish()
        assert done == list(range(n + 1)) and lanes._thread is None


def test_a_full_queue_holds_the_caller_up(lanes: InOrder, held: threading.Event) -> None:
    done: list[int] = []
    for n in range(InOrder.PENDING):
        lanes.later(lambda n=n: done.append(n))  # beside the one that the thread is at
    one_more = in_thread(lambda: lanes.later(lambda: done.append(InOrder.PENDING)))
    assert not one_more.wait(NOT_YET) and done == []
    held.set()
    assert one_more.wait(SOON)
    lanes.finish()
    assert done == list(range(InOrder.PENDING + 1))


USES: dict[str, tuple[dict[str, int], dict[str, int], bool]] = {
    "a read waits for a write": ({"writes": 0}, {"reads": 0}, True),
    "a write waits for a read": ({"reads": 0}, {"writes": 0}, True),
    "a write waits for a write": ({"writes": 0}, {"writes": 0}, True),
    "a read waits for no read": ({"reads": 0}, {"reads": 0}, False),
    "nobody waits for another table": ({"writes": 0}, {"writes": 1}, False),
    "nobody waits for nothing": ({"writes": 0}, {}, False),
}


@pytest.mark.parametrize("use", USES)
def test_waiting_for_later_work(lanes: InOrder, held: threading.Event, use: str) -> None:
    later, now, waits = USES[use]
    guards, order = [Guard("table"), Guard("another")], []
    lanes.later(lambda: order.append("later"), **{name: [guards[n]] for name, n in later.items()})
    done = in_thread(lambda: lanes.submit(IO, lambda: order.append("now"), **{name: [guards[n]] for name, n in now.items()}))
    assert done.wait(NOT_YET if waits else SOON) != waits
    held.set()
    assert done.wait(SOON)
    lanes.finish()
    assert order == (["later", "now"] if waits else ["now", "later"])


def test_a_failure_in_the_thread_is_everybodys(lanes: InOrder) -> None:
    """It surfaces wherever the caller comes by next, again and again; nothing is written after it."""
    guard, after = Guard("table"), []
    release = threading.Event()
    lanes.later(lambda: not_none(release.wait(SOON)))
    lanes.later(fail, writes=[guard])
    lanes.later(lambda: after.append(1), reads=[guard])
    release.set()
    with pytest.raises(RuntimeError, match="writing to disk failed: disk full; what is on disk is not to be used") as caught:
        lanes.submit(COMPUTE, lambda: after.append(2), reads=[guard])
    assert isinstance(caught.value.__cause__, OSError) and lanes.current == COMPUTE
    with pytest.raises(RuntimeError, match="disk full"):
        lanes.later(lambda: after.append(3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="disk full"):
            lanes.finish()
    assert after == [] and lanes._thread is None


def test_a_failure_surfaces_in_the_end(lanes: InOrder) -> None:
    lanes.later(fail)
    with pytest.raises(RuntimeError, match="disk full"):
        lanes.finish()


def test_a_failure_does_not_leave_the_caller_at_a_full_queue(lanes: InOrder) -> None:
    release = threading.Event()
    lanes.later(lambda: not_none(release.wait(SOON)))
    lanes.later(fail)
    for _ in range(InOrder.PENDING - 1):
        lanes.later(lambda: None)
    at_queue = in_thread(lambda: lanes.later(lambda: None))
    assert not at_queue.wait(NOT_YET)
    release.set()
    assert at_queue.wait(SOON)
    with pytest.raises(RuntimeError, match="disk full"):
        lanes.finish()
