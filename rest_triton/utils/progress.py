"""A progress line for long work: updated on a terminal, absent elsewhere."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 0.2  # seconds between two updates of the line


_under_way: "list[Progress]" = []


class Progress:
    """The progress line of one task. ``say`` replaces its detail; a thread updates the seconds."""

    def __init__(self, what: str) -> None:
        self.what, self.detail = what, ""
        self.begin = time.perf_counter()

    def say(self, detail: str) -> None:
        self.detail = detail

    def print(self, line: str) -> None:
        """Print a line of results on standard output, above the progress line."""
        clear = "\r\x1b[K" if self in _under_way and sys.stdout.isatty() else ""
        print(f"{clear}{line}", flush=True)

    def line(self) -> str:
        """The text of the line, cut to the width of the terminal: a wrapped line cannot be replaced."""
        seconds = f"  {time.perf_counter() - self.begin:.0f} s"
        wide = shutil.get_terminal_size().columns - 1
        text = f"{self.what}{': ' if self.detail else ''}{self.detail}"
        return f"{text}{seconds}" if len(text) + len(seconds) <= wide else f"{text[: wide - len(seconds) - 1]}…{seconds}"


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a progress line for ``what``, with its seconds, until the block ends.

    Example::

        with progress("partitioning products into 40 clusters") as p:
            p.say("coarsening")
    """
    shown = Progress(what)
    if not sys.stderr.isatty():
        yield shown
        return
    stop = threading.Event()
    _under_way.append(shown)

    def refresh() -> None:
        while not stop.wait(INTERVAL):
            if _under_way[-1] is shown:  # only the innermost task has a line
                print(f"\r\x1b[K{shown.line()}", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        stop.set()
        thread.join()
        _under_way.remove(shown)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def notice(text: str) -> None:
    """Print a line for the user on standard error."""
    clear = "\r\x1b[K" if _under_way else ""  # the progress line is drawn again below
    print(f"{clear}{text}", file=sys.stderr, flush=True)
