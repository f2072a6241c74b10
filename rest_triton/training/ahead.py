"""The next batch is prepared on a thread while this one is computed."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(make: Callable[[int], T], count: int) -> Generator[T]:
    """``make(0), make(1), …``, in order. While the caller uses one of them, a thread makes the next one.

    An error of ``make`` is raised where its result is asked for. A caller that stops early waits for at most one ``make``.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="rest_triton ahead") as thread:
        waiting = thread.submit(make, 0) if count else None
        for index in range(count):
            assert waiting is not None
            made = waiting.result()
            if index + 1 < count:
                waiting = thread.submit(make, index + 1)
            yield made
