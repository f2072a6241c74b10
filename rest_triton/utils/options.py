"""Fields of dataclasses that are settings: what the command line and the checks need to know of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any


def option(
    default: Any, text: str, *, group: str, choices: Sequence[str] = (), least: float | None = None,
    most: float | None = None, word: str = "", accepts: Callable[[Any], bool] | None = None,
    only: tuple[str, Sequence[str]] | None = None, former: Mapping[str, str] | None = None,
) -> Any:  # fmt: skip
    """A field with metadata for the command line and the checks.

    Args:
        word: a value that is allowed instead of a number. accepts: whether a value is one, where there are several.
        only: (another setting, its values for which this one has effect).
        former: choices of earlier versions, and what to give instead. Files of old runs may have them, flags may not.
    """
    metadata = dict(
        help=text, choices=tuple(choices), least=least, most=most, group=group, word=word, accepts=accepts, only=only,
        former=former or {},
    )  # fmt: skip
    return field(default=default, metadata=metadata)
