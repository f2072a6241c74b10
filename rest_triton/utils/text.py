"""Numbers as text."""


def percent(share: float | None) -> str:
    """``71.23 %``. None and NaN are ``-``: a split without nodes has no score."""
    return "-" if share is None or share != share else f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """``35 ms``, ``4.2 s``, ``12.5 min`` or ``3.1 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
