"""What long work shows while it runs: one line on a terminal, kept up to date; nothing elsewhere."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 0.2  # seconds between two looks of the line


_under_way: "list[Progress]" = []


class Progress:
    """One line about work that is going on. ``say`` replaces what it tells; the seconds count up by themselves."""

    def __init__(self, what: str) -> None:
        self.what, self.detail = what, ""
        self.begin = time.perf_counter()

    def say(self, detail: str) -> None:
        self.detail = detail

    def print(self, line: str) -> None:
        """A line of results on standard output, above the one that is kept up to date."""
        clear = "\r\x1b[K" if self in _under_way and sys.stdout.isatty() else ""
        print(f"{clear}{line}", flush=True)

    def line(self) -> str:
        """No longer than the terminal is wide: what wraps cannot be replaced."""
        seconds = f"  {time.perf_counter() - self.begin:.0f} s"
        wide = shutil.get_terminal_size().columns - 1
        text = f"{self.what}{': ' if self.detail else ''}{self.detail}"
        return f"{text}{seconds}" if len(text) + len(seconds) <= wide else f"{text[: wide - len(seconds) - 1]}…{seconds}"


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show that ``what`` is under way, with its seconds, until the block ends.

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
            if _under_way[-1] is shown:  # what is going on inside says more
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
    """A line that a person should see, on a terminal or in a log."""
    clear = "\r\x1b[K" if _under_way else ""  # the line of what is under way comes back below
    print(f"{clear}{text}", file=sys.stderr, flush=True)
