"""Errors that the user can mend, and how commands report them."""

import difflib
import errno
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

#: Failures of the machine that name their cause: no room, no permission, no such file, a broken disk.
_ENVIRONMENT = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "ENOENT", "EISDIR", "ENOTDIR", "EIO", "EFBIG")
}


class UserError(ValueError):
    """An error that the user can mend. The message names the value, the limit and the way out.

    Commands print it without a traceback. Every other exception is a defect of this package and keeps its traceback.
    """


def is_users(error: BaseException) -> bool:
    """Whether a command reports ``error`` as one line: a :class:`UserError`, or a failure of the disk or file system."""
    return isinstance(error, UserError) or (isinstance(error, OSError) and error.errno in _ENVIRONMENT)


@contextmanager
def reported() -> Iterator[None]:
    """Print an error that the user can mend as one line on standard error, and exit with code 1. Catch no other error."""
    try:
        yield
    except Exception as error:
        if not is_users(error):
            raise
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'products'? known are: arxiv, products``."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, 1, 0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known are: {', '.join(names)}"
