"""See tests/one_thread.py."""

from ..one_thread import on_one_thread

__all__ = ["on_one_thread"]
