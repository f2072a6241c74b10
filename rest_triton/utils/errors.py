"""Telling somebody who mistyped a name which one may have been meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'products'? Known are: arxiv, products``."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, 1, 0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known are: {', '.join(names)}"
